"""What every local computation must do. A new one is tested by adding a line to the table in table.py.

Shapes: residual [N, D] or [D], weights [D]; every number is a small multiple of 1/64, so that all sums are exact.
"""

import inspect
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradsift
from gradsift import GradsiftError, LocalComputation
from tests.examples import examples
from tests.local.table import TABLE
from tests.reference.literal import Vector
from tests.sparsify.cases import assert_same, unchanged

every = pytest.mark.parametrize("name", TABLE)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def make(name: str) -> LocalComputation:
    return gradsift.local_computation(name, **TABLE[name].options)


class Case(NamedTuple):
    residual: Tensor  # [N, D]
    weights: Tensor  # [D]
    target: Tensor  # [N, D]: a client's gradient at w, in local step s, is (w - target) / (s + 1), but in powers of two
    lr: float


@st.composite
def cases(draw: st.DrawFn) -> Case:
    clients, dim = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    source = np.random.default_rng(draw(st.integers(0, 2**32)))
    residual, weights, target = (
        torch.from_numpy(source.integers(-64, 65, shape) / 64) for shape in ((clients, dim), (dim,), (clients, dim))
    )
    return Case(residual, weights, target, draw(st.sampled_from([0.25, 0.5, 1.0])))


class Gradients:
    """The driver's part: adds each client's gradient, and keeps what it was asked."""

    def __init__(self, target: Tensor) -> None:
        self.target = target
        self.steps: list[int] = []
        self.points: list[Tensor] = []
        self.total = torch.zeros_like(target)

    def __call__(self, total: Tensor, point: Tensor, step: int) -> None:
        assert total.shape == self.target.shape
        assert point.shape in (total.shape, total.shape[-1:])
        assert (total.dtype, point.dtype) == (self.target.dtype, self.target.dtype)
        assert total.untyped_storage().data_ptr() != point.untyped_storage().data_ptr(), (
            "writing to one moves the other"
        )
        self.steps.append(step)
        self.points.append(point.clone())
        gradient = (point - self.target) / 2**step
        self.total += gradient
        total += gradient


def subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_no_local_computation_is_missing() -> None:
    found = [cls for cls in subclasses(LocalComputation) if cls.__module__.startswith("gradsift.")]
    assert {cls.name for cls in found if not inspect.isabstract(cls)} == set(TABLE)
    assert set(TABLE) <= set(gradsift.local_computations())


@every
def test_it_carries_its_name_and_equals_another_of_its_kind(name: str) -> None:
    assert make(name).name == name
    assert make(name) == make(name)
    assert hash(make(name)) == hash(make(name))


@every
@dtypes
@given(case=cases())
@examples(60)
def test_it_adds_what_the_slow_obvious_way_adds(name: str, dtype: torch.dtype, case: Case) -> None:
    residual, weights, target = (tensor.to(dtype) for tensor in case[:3])
    before = residual.tolist()
    with unchanged(weights, target):
        make(name).accumulate(residual, weights, case.lr, Gradients(target))

    def gradient(client: int, where: Vector, step: int) -> Vector:
        return [(w - t) / 2**step for w, t in zip(where, target[client].tolist(), strict=True)]

    expected = [
        TABLE[name].added(row, weights.tolist(), case.lr, lambda where, step, i=i: gradient(i, where, step))  # type: ignore[misc]
        for i, row in enumerate(before)
    ]
    assert residual.tolist() == expected
    assert residual.dtype == dtype


@every
@given(case=cases())
@examples(60)
def test_what_it_adds_is_the_sum_of_the_gradients_that_it_asked_for(name: str, case: Case) -> None:
    """So nothing is lost: what a client sends, and what stays behind, are its gradients."""
    local, asked, residual = make(name), Gradients(case.target), case.residual.clone()
    local.accumulate(residual, case.weights, case.lr, asked)
    assert torch.equal(residual, case.residual + asked.total)
    assert asked.steps == list(range(local.computations))
    assert local.computations == TABLE[name].computations


@every
@given(case=cases())
@examples(40)
def test_one_client_alone_and_a_part_of_them_get_what_they_get_among_all(name: str, case: Case) -> None:
    local, together = make(name), case.residual.clone()
    local.accumulate(together, case.weights, case.lr, Gradients(case.target))
    for row in range(len(together)):
        alone = case.residual[row].clone()
        local.accumulate(alone, case.weights, case.lr, Gradients(case.target[row]))
        assert_same(alone, together[row])
    part, whole = slice(len(together) // 2, None), case.residual.clone()
    local.accumulate(whole[part], case.weights, case.lr, Gradients(case.target[part]))  # in place, also of a view
    assert_same(whole[part], together[part])
    assert_same(whole[: part.start], case.residual[: part.start])


@every
@given(case=cases())
@examples(20)
def test_a_driver_may_leave_out_what_it_says_it_does_not_need(name: str, case: Case) -> None:
    """Without ``needs_plan`` the gradients are queued before the step size is known."""
    local = make(name)
    if local.needs_plan:
        return
    with_lr, without = case.residual.clone(), case.residual.clone()
    local.accumulate(with_lr, case.weights, case.lr, Gradients(case.target))
    local.accumulate(without, case.weights, math.nan, Gradients(case.target))
    assert_same(without, with_lr)


@every
def test_no_graph_grows(name: str) -> None:
    residual, weights, target = torch.zeros(2, 3), torch.zeros(3), torch.ones(2, 3)
    with torch.enable_grad():
        make(name).accumulate(residual, weights, 0.5, Gradients(target))
    assert not residual.requires_grad


@every
@given(dim=st.integers(1, 10**6), data=st.data())
@examples(60)
def test_its_period(name: str, dim: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, dim))
    period = make(name).period(dim, k)
    assert type(period) is int
    assert period == TABLE[name].period(dim, k) >= 1


@pytest.mark.parametrize("steps", [0, -1, 1.0, 2.5, math.nan, None, True, "3"])
def test_local_steps_refuses_what_is_no_number_of_steps(steps: Any) -> None:
    with pytest.raises(
        GradsiftError, match=re.escape(f"steps must be {'at least 1' if steps in (0, -1) else 'an int'}")
    ):
        gradsift.local_computation("local-steps", steps=steps)


def test_names_and_options_are_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(GradsiftError, match="unknown local computation 'local-step'; did you mean 'local-steps'"):
        gradsift.local_computation("local-step")
    with pytest.raises(GradsiftError, match="'local-steps' needs the option steps"):
        gradsift.local_computation("local-steps")
    with pytest.raises(GradsiftError, match="'local-steps' has no option 'step'; did you mean 'steps'"):
        gradsift.local_computation("local-steps", step=3)
    with pytest.raises(GradsiftError, match="must be a subclass of LocalComputation"):
        gradsift.register_local_computation("no computation")(dict)
