"""The options of local steps: against plain Python, exactly, and against torch's own optimizer.

Shapes: residual [N, D], weights [D]; numbers are small multiples of powers of two, so that all sums are exact.
"""

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given

import gradsift
from gradsift import GradsiftError, LocalSteps
from tests.examples import examples
from tests.local.test_every_local_computation import Case, Gradients, cases
from tests.reference.literal import Vector
from tests.reference.local import local_steps
from tests.sparsify.cases import assert_same, unchanged

OPTIONS: list[dict[str, Any]] = [
    {"rate": 0.5},
    {"rate": 0.0},
    {"momentum": 0.5},
    {"momentum": 1.0},
    {"weight_decay": 0.25},
    {"residual_decay": 0.5},
    {"residual_decay": 0.0},
    {"rate": 0.5, "momentum": 0.5, "weight_decay": 0.25, "residual_decay": 0.5},
]
options = pytest.mark.parametrize("chosen", OPTIONS, ids=str)
steps = pytest.mark.parametrize("count", [1, 2, 3])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@options
@steps
@dtypes
@given(case=cases())
@examples(30)
def test_it_adds_what_the_slow_obvious_way_adds(
    count: int, chosen: dict[str, Any], dtype: torch.dtype, case: Case
) -> None:
    residual, weights, target = (tensor.to(dtype) for tensor in case[:3])
    before, local, asked = residual.tolist(), LocalSteps(count, **chosen), Gradients(target)
    with unchanged(weights, target):
        local.accumulate(residual, weights, case.lr, asked)
    assert asked.steps == list(range(count))

    def gradient(client: int, where: Vector, step: int) -> Vector:
        return [(w - t) / 2**step for w, t in zip(where, target[client].tolist(), strict=True)]

    for client, row in enumerate(before):
        want = local_steps(local, row, weights.tolist(), case.lr, lambda at, step, i=client: gradient(i, at, step))  # type: ignore[misc]
        assert residual[client].tolist() == want
    assert residual.dtype == dtype


@options
@given(case=cases())
@examples(30)
def test_one_client_alone_gets_what_it_gets_among_all(chosen: dict[str, Any], case: Case) -> None:
    local, together = LocalSteps(3, **chosen), case.residual.clone()
    local.accumulate(together, case.weights, case.lr, Gradients(case.target))
    for row in range(len(together)):
        alone = case.residual[row].clone()
        local.accumulate(alone, case.weights, case.lr, Gradients(case.target[row]))
        assert_same(alone, together[row])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("rate", [1.0, 0.3])
@given(case=cases())
@examples(20)
def test_it_is_torchs_optimizer(rate: float, weight_decay: float, momentum: float, case: Case) -> None:
    """The drift is what it moved the weights by; momentum starts anew in each round."""
    local = LocalSteps(4, rate=rate, momentum=momentum, weight_decay=weight_decay)
    residual = torch.zeros_like(case.residual)
    for _ in range(2):
        residual.zero_()
        local.accumulate(residual, case.weights, case.lr, Gradients(case.target))
    for row, target in zip(residual, case.target, strict=True):
        own = case.weights.clone().requires_grad_()
        sgd = torch.optim.SGD([own], lr=rate * case.lr, momentum=momentum, weight_decay=weight_decay)
        for step in range(4):
            own.grad = (own.detach() - target) / 2**step
            sgd.step()
        torch.testing.assert_close(case.weights - case.lr * row, own.detach(), rtol=0, atol=1e-12)


@given(case=cases())
@examples(30)
def test_without_a_step_size_there_is_no_way_to_go_and_still_a_gradient(case: Case) -> None:
    """Schedules may end at 0."""
    residual = case.residual.clone()
    LocalSteps(2, momentum=0.5).accumulate(residual, case.weights, 0.0, Gradients(case.target))
    gradient = case.weights - case.target
    assert torch.equal(residual, case.residual + gradient + (0.5 * gradient + gradient / 2))


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ({"rate": -0.5}, "rate must be at least 0, got -0.5"),
        ({"rate": math.inf}, "rate must be a finite number, got inf"),
        ({"rate": "1"}, "rate must be a finite number, got '1'"),
        ({"momentum": -0.1}, "momentum must be in [0.0, 1.0], got -0.1"),
        ({"momentum": 1.1}, "momentum must be in [0.0, 1.0], got 1.1"),
        ({"momentum": True}, "momentum must be a finite number, got True"),
        ({"weight_decay": -1e-4}, "weight_decay must be at least 0, got -0.0001"),
        ({"weight_decay": math.nan}, "weight_decay must be a finite number, got nan"),
        ({"residual_decay": 1.5}, "residual_decay must be in [0.0, 1.0], got 1.5"),
        ({"residual_decay": None}, "residual_decay must be a finite number, got None"),
        ({"momentun": 0.9}, "'local-steps' has no option 'momentun'; did you mean 'momentum'"),
    ],
)
def test_bad_options_are_refused_by_their_value(chosen: dict[str, Any], named: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(named)):
        gradsift.local_computation("local-steps", steps=2, **chosen)
