"""What a user's own classes return is checked: a wrong result is an error that names it, not a wrong training."""

# ruff: noqa: ARG002  (overridden methods have arguments that they do not need)

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradsift
from gradsift import Controller, GradsiftError, NormalizedTime, Proposal, Round, Sparse, Traffic
from gradsift.control.fixed import Fixed
from gradsift.local import AddGradients, LocalComputation, LocalSteps
from gradsift.sparsify.fab_top_k import FabTopK
from gradsift.values import Int8, ValueType
from tests.method.drivers import DRIVERS
from tests.registered import own_names
from tests.simulation.problems import blobs, mlp


def train(rounds: int = 3, **slots: Any) -> gradsift.Result:
    others: dict[str, Any] = {"controller": Fixed(5), "lr": 0.3, "batch_size": 8}
    return gradsift.simulate(mlp(), nn.CrossEntropyLoss(), blobs(4), rounds=rounds, **(others | slots))


def changed(upload: Sparse, **parts: Any) -> Sparse:
    return upload._replace(**parts)


UPLOADS: dict[str, tuple[Callable[[Sparse], Any], str]] = {
    "twice": (lambda up: changed(up, indices=torch.zeros_like(up.indices)), "holds index 0 twice in row 0"),
    "outside": (lambda up: changed(up, indices=up.indices + 10_000), r"outside \[0, 57\)"),
    "integers": (lambda up: changed(up, values=up.values.long()), "must hold floating-point numbers, got torch.int64"),
    "shapes": (lambda up: changed(up, values=up.values[:, 1:]), "differ in shape"),
    "another dim": (lambda up: changed(up, dim=58), "is of 58 elements, but the model has 57"),
    "nothing": (lambda _: None, "must be a Sparse, got None"),
    "too few rows": (lambda up: Sparse(up.indices[1:], up.values[1:], up.dim), r"is \[3, 5\] for residuals \[4, 57\]"),
}


@pytest.mark.parametrize("what", UPLOADS)
def test_an_upload(what: str) -> None:
    change, message = UPLOADS[what]

    class Own(FabTopK):
        def upload(self, residual: Tensor, rnd: Round) -> Sparse:
            return change(super().upload(residual, rnd))  # type: ignore[no-any-return]

    with pytest.raises(GradsiftError, match=message):
        train(sparsifier=Own())


def test_an_upload_of_more_than_k() -> None:
    class Own(FabTopK):
        def upload(self, residual: Tensor, rnd: Round) -> Sparse:
            return super().upload(residual, rnd.at(rnd.k + 3))

    with pytest.raises(GradsiftError, match="has 8 elements, but k is 5"):
        train(sparsifier=Own())


@pytest.mark.parametrize("what", ["never sent", "twice"])
def test_a_merged_gradient(what: str) -> None:
    class Own(FabTopK):
        def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
            merged = super().merge(uploads, share, rnd)
            absent = next(index for index in range(merged.dim) if index not in uploads.indices)
            first = merged.indices[1] if what == "twice" else absent
            return merged._replace(indices=torch.cat([torch.tensor([first]), merged.indices[1:]]))

    with pytest.raises(GradsiftError, match="indices that were sent" if what == "never sent" else "twice"):
        train(sparsifier=Own())


@pytest.mark.parametrize("what", ["fewer", "others", "integers"])
def test_rounded_values(what: str) -> None:
    class Own(ValueType):
        def rounded(self, message: Sparse) -> Sparse:
            if what == "fewer":
                return Sparse(message.indices[:, 1:], message.values[:, 1:], message.dim)
            if what == "others":
                return message._replace(indices=message.dim - 1 - message.indices)
            return message._replace(values=message.values.long())

    with pytest.raises(
        GradsiftError, match="floating-point" if what == "integers" else "other indices than the upload"
    ):
        train(values=Own())


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0, None, "free", np.ones(2)])
@pytest.mark.parametrize("controller", [Fixed(5), gradsift.controller("extended-sign")])
def test_a_cost(cost: Any, controller: Controller[Any], tmp_path: Path) -> None:
    class Own(NormalizedTime):
        def round_cost(self, traffic: Traffic) -> float:
            return cost  # type: ignore[no-any-return]

    with pytest.raises(GradsiftError, match=r"the cost of a round by .* must be"):
        train(cost=Own(comm_time=10), controller=controller, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("k", "probe_k", "message"),
    [
        (float("nan"), None, "k must be a finite number, got nan"),
        ((), None, r"k must be a finite number, got \(\)"),
        ("7", None, "k must be a finite number, got '7'"),
        ((5.0, float("inf"), 5.0, 5.0), None, "k of a client must be a finite number, got inf"),
        (5.0, float("nan"), "k' must be a finite number, got nan"),
        (5.0, (2.0, 2.0), "proposed one k for all clients, but 2 values of k'"),
        ((5.0, 5.0), None, "proposed k for 2 clients, not for client 3"),
    ],
)
def test_a_proposal(k: Any, probe_k: Any, message: str) -> None:
    class Own(Fixed):
        def propose(self, state: Any, number: int) -> Proposal:
            return Proposal(number, k, probe_k)

    with pytest.raises(GradsiftError, match=message):
        train(controller=Own(5))


def test_a_proposal_that_is_none() -> None:
    class Own(Fixed):
        def propose(self, state: Any, number: int) -> Proposal:
            return 5  # type: ignore[return-value]

    with pytest.raises(GradsiftError, match="a controller must propose a Proposal, got 5"):
        train(controller=Own(5))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("driver", DRIVERS)
def test_numbers_of_numpy_are_numbers(kind: Any, driver: str, tmp_path: Path) -> None:
    class Own(Fixed):
        def propose(self, state: Any, number: int) -> Proposal:
            return Proposal(number, kind(6), kind(3))

    class Cost(NormalizedTime):
        def round_cost(self, traffic: Traffic) -> float:
            return np.float32(2)  # type: ignore[return-value]

    folder = {"out": tmp_path / "run"} if driver == "simulator" else {}  # its records and checkpoints are JSON
    run = DRIVERS[driver](controller=Own(5), cost=Cost(comm_time=1), **folder)
    assert [(record["k"], record["used_k"], record["probe_k"], record["cost"]) for record in run.records] == [
        (6, 6, 3, 2.0 * (number + 1)) for number in range(len(run.records))
    ]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_local_computation_that_takes_other_gradients_than_it_says(steps: int) -> None:
    @dataclass(frozen=True)
    class Own(LocalComputation):
        @property
        def computations(self) -> int:
            return 2

        def accumulate(self, residual: Tensor, weights: Tensor, lr: float, add_gradients: AddGradients) -> None:
            for step in range(steps):
                add_gradients(residual, weights, step)

    with pytest.raises(GradsiftError, match=f"took {steps} gradients, its computations are 2"):
        train(local=Own())


@pytest.mark.parametrize("period", [0, 2.5])
def test_a_period(period: Any) -> None:
    class Own(LocalSteps):
        def period(self, dim: int, k: int) -> int:
            return period  # type: ignore[no-any-return]

    with pytest.raises(GradsiftError, match=f"the period of local computation .* must be .* got {period}"):
        train(local=Own(1), sparsifier="send-all")


def test_a_value_type_that_rounds_in_its_own_way_is_what_arrives_in_every_driver() -> None:
    class Own(Int8):
        def rounded(self, message: Sparse) -> Sparse:
            return message.with_values(super().rounded(message).values / 2)

    with own_names():
        gradsift.register_value_type("own")(Own)
        runs = [DRIVERS[driver](values=Own(), controller=Fixed(9)) for driver in DRIVERS]
        plain = DRIVERS["simulator"](values=Int8(), controller=Fixed(9))
    assert torch.equal(runs[0].weights, runs[1].weights)
    assert not torch.equal(runs[0].weights, plain.weights)


@pytest.mark.parametrize("sparsifier", ["send-all", "fedavg", "unidirectional-top-k"])
def test_values_of_another_precision_leave_that_of_the_weights(sparsifier: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"sparsifier": sparsifier, "controller": Fixed(57), "values": "float64"}
    whole = train(6, **options)
    assert whole.weights.dtype == torch.float32
    train(3, out=tmp_path / "run", **options)
    resumed = train(6, out=tmp_path / "run", resume=True, **options)
    assert torch.equal(resumed.weights, whole.weights)


def test_a_parameter_without_dimensions() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = mlp(), nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Tensor) -> Tensor:
            scaled: Tensor = self.inner(x) * self.scale
            return scaled

    result = gradsift.simulate(
        Scaled(), nn.CrossEntropyLoss(), blobs(4), controller=Fixed(9), rounds=5, lr=0.3, batch_size=8
    )
    assert isinstance(result.model, Scaled)
    assert result.model.scale.shape == ()
    assert result.model.scale.item() != 1


def test_a_minibatch_far_larger_than_the_data_is_all_of_it() -> None:
    large, all_of_it = (train(3, batch_size=size) for size in (100_000, int(blobs(4).size.max())))
    assert torch.allclose(large.weights, all_of_it.weights)


@pytest.mark.parametrize(("option", "message"), [({"out": 3}, "out must be a path, got 3")])
def test_options_of_simulate(option: dict[str, Any], message: str) -> None:
    with pytest.raises(GradsiftError, match=message):
        train(**option)


def test_extra_config_must_be_a_dict(tmp_path: Path) -> None:
    with pytest.raises(GradsiftError, match="extra_config must be a dict, got 3"):
        train(out=tmp_path / "run", extra_config=3)
    assert not (tmp_path / "run").exists()
