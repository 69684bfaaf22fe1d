"""The engine against its slow twin, over whole runs, for every sparsifier and controller that go together."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import gradsift
from gradsift import Controller, Cosine, LinkTime, sparse
from gradsift.simulation import one_pass_conv
from gradsift.simulation.engine import Engine
from tests.reference.twin import Step
from tests.simulation.hand import assert_same, with_twin
from tests.simulation.problems import blobs, mlp
from tests.simulation.ways import WAYS, going

pytestmark = pytest.mark.slow  # many runs

ROUNDS = 40
DIM = 57

CONTROLLERS: dict[str, dict[str, Any]] = {
    "fixed": {"k": 7},
    "replay": {"sequence": [1 + (5 * m) % DIM for m in range(ROUNDS)]},
    "sign": {},
    "extended-sign": {"window": 4},
    "value": {"scale": 30.0},
    "exp3": {"grid": "log", "arms": 5},
    "continuous-bandit": {},
    "planned": {},
}
QUICK = ("fixed", "extended-sign", "exp3", "planned")
PAIRS = [
    pytest.param(name, control, id=f"{name}-{control}")
    for name, control in itertools.product(gradsift.sparsifiers(), CONTROLLERS)
    if not (gradsift.sparsifier(name).dense and control != "fixed")
]


def both(sparsifier: str, controller: Controller[Any], **options: Any) -> tuple[Engine, Iterator[Step]]:
    """An engine and its twin, on the same problem."""
    return with_twin(mlp(), nn.CrossEntropyLoss(), blobs(), sparsifier, controller, **{"lr": 0.3, **options})


@pytest.mark.parametrize(("sparsifier", "control"), PAIRS)
@pytest.mark.parametrize("clients_per_round", [None, 4], ids=["all", "some"])
def test_whole_runs_are_the_same(sparsifier: str, control: str, clients_per_round: int | None) -> None:
    controller = gradsift.controller(control, **CONTROLLERS[control])
    engine, twin = both(sparsifier, controller, clients_per_round=clients_per_round)
    used = set()
    for _ in range(ROUNDS):
        record = engine.step()
        step = next(twin)
        assert_same(engine, record, step)
        used.add(record["used_k"])
    assert len(used) > 1 or not controller.varies


@pytest.mark.parametrize(("sparsifier", "control"), [pair for pair in PAIRS if pair.values[1] in QUICK])
@pytest.mark.parametrize(("way", "clients_per_round"), [*zip(WAYS[1:], [None, 4, 4, None], strict=True), ("queued", 4)])
def test_every_way_through_memory_is_the_same(
    way: str, sparsifier: str, clients_per_round: int | None, control: str
) -> None:
    """What is queued on CUDA, on the CPU; residuals that the device has no room for, a chunk of clients at a time."""
    controller = gradsift.controller(control, **CONTROLLERS[control])
    with going(way):
        engine, twin = both(sparsifier, controller, clients_per_round=clients_per_round, clients_per_chunk=2)
        for _ in range(ROUNDS):
            assert_same(engine, engine.step(), next(twin))


@pytest.mark.parametrize("way", ["one after another", "queued", "queued, nothing unfolded"])
@pytest.mark.parametrize("sparsifier", ["fab-top-k", "fedavg"])
@pytest.mark.parametrize("kind", ["pools", "strides", "uneven"])
def test_convolutions_are_the_same(kind: str, sparsifier: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers with a backward of their own in one pass, as on the CPU and as they are queued on CUDA."""
    if way == "queued, nothing unfolded":
        monkeypatch.setattr(one_pass_conv, "QUEUED_UNFOLD_LIMIT", 0)
    if way.startswith("queued"):
        monkeypatch.setattr(sparse, "queued", lambda _: True)
    torch.manual_seed(0)
    model = {
        "pools": nn.Sequential(
            *(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 5, padding=2), nn.ReLU()),
            *(nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(16, 3)),
        ),
        "strides": nn.Sequential(
            *(nn.Conv2d(1, 4, (3, 2), stride=(2, 1), padding=(1, 0)), nn.Tanh(), nn.MaxPool2d((3, 2), ceil_mode=True)),
            *(nn.Conv2d(4, 6, 2, groups=2, dilation=(1, 2), bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)),
        ),
        "uneven": nn.Sequential(
            *(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, (5, 2), padding=(3, 0)), nn.ReLU()),
            *(nn.Conv2d(2, 5, (4, 5), padding=(0, 2), bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(125, 3)),
        ),
    }[kind]
    flat = blobs(features=64)
    data = replace(flat, x=flat.x.view(-1, 1, 8, 8), test_x=flat.test_x.view(-1, 1, 8, 8))
    controller = gradsift.controller("fixed", k=20)
    engine, twin = with_twin(model, nn.CrossEntropyLoss(), data, sparsifier, controller)
    assert engine.flat._one_pass is not None
    assert engine.flat._one_pass.takes_client_weights
    for _ in range(8):
        assert_same(engine, engine.step(), next(twin))


@pytest.mark.parametrize("control", [name for name in CONTROLLERS if name not in ("fixed", "replay")])
@pytest.mark.parametrize("sparsifier", ["fab-top-k", "periodic-k"])
def test_a_late_observation_is_the_same(sparsifier: str, control: str) -> None:
    engine, twin = both(
        sparsifier, gradsift.controller(control, **CONTROLLERS[control]), delay=1, probe_samples=3, clients_per_round=5
    )
    for number in range(1, ROUNDS + 1):
        record = engine.step()
        assert_same(engine, record, next(twin))
        assert record["observed"] == (number - 1 or None)


@pytest.mark.parametrize("sparsifier", gradsift.sparsifiers())
def test_schedules_costs_and_probe_charges_are_the_same(sparsifier: str) -> None:
    dense = gradsift.sparsifier(sparsifier).dense
    controller = gradsift.controller("fixed", k=9) if dense else gradsift.controller("extended-sign", window=3)
    cost = LinkTime(up_bandwidth=[50.0 * (1 + i) for i in range(6)], down_bandwidth=400.0, latency=0.1, compute=0.5)
    engine, twin = both(
        sparsifier, controller, cost=cost, lr=Cosine(0.5, rounds=30), charge_probe=True, clients_per_round=3, seed=5
    )
    for _ in range(ROUNDS):
        assert_same(engine, engine.step(), next(twin))


@pytest.mark.parametrize("sparsifier", gradsift.sparsifiers())
def test_in_float32_one_round_from_equal_residuals_is_the_same(sparsifier: str) -> None:
    """A float32 run leaves the float64 twin's path sooner or later; from one state, one round must agree."""
    dense = gradsift.sparsifier(sparsifier).dense
    controller = gradsift.controller("fixed", k=9) if dense else gradsift.controller("sign")
    engine, twin = both(sparsifier, controller, dtype=torch.float32)
    record, step = engine.step(), next(twin)
    for name in ("used_k", "probe_k", "down_elements"):
        assert record[name] == step.record[name]
    torch.testing.assert_close(engine.state.server.weights.double(), step.weights, rtol=0, atol=1e-6)
    torch.testing.assert_close(engine.state.residual.double(), torch.stack(step.residuals), rtol=0, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_chunks_do_not_change_the_run(chunk: int) -> None:
    whole, _ = both("fab-top-k", gradsift.controller("sign"))
    parts, _ = both("fab-top-k", gradsift.controller("sign"), clients_per_chunk=chunk)
    for _ in range(20):
        assert whole.step()["used_k"] == parts.step()["used_k"]
        torch.testing.assert_close(whole.state.server.weights, parts.state.server.weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("control", [name for name in CONTROLLERS if name != "fixed"])
@pytest.mark.parametrize("sparsifier", ["fedavg", "send-all"])
def test_dense_sparsifiers_refuse_controllers_that_vary_k(sparsifier: str, control: str) -> None:
    with pytest.raises(gradsift.GradsiftError, match=f"'{sparsifier}' is dense.*'{control}'"):
        both(sparsifier, gradsift.controller(control, **CONTROLLERS[control]))


def test_a_dense_sparsifier_needs_a_whole_k() -> None:
    with pytest.raises(gradsift.GradsiftError, match=r"accepts only an integer k, got 7\.5"):
        both("fedavg", gradsift.controller("fixed", k=7.5))


def test_every_controller_is_in_the_table() -> None:
    assert set(CONTROLLERS) == set(gradsift.controllers())
