"""Several local steps a round, over every sparsifier: against the slow twin, and against modules trained one by one."""

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradsift
from gradsift import Cosine, Energy, FederatedData, LinkTime, LocalSteps, Money, NormalizedTime, OneGradient
from gradsift.cost import CostModel
from gradsift.sampling import participants
from gradsift.simulation.engine import Engine
from tests.simulation import hand, models
from tests.simulation.hand import assert_same, with_twin
from tests.simulation.problems import blobs, mlp
from tests.simulation.test_run import assert_same_end
from tests.simulation.ways import WAYS, going

pytestmark = pytest.mark.slow  # many runs

LOSS = nn.CrossEntropyLoss()
DIM = 57
SPARSIFIERS = gradsift.sparsifiers()


def controller(sparsifier: str) -> gradsift.Controller[Any]:
    """One that learns, where there is one for the sparsifier."""
    dense = gradsift.sparsifier(sparsifier).dense
    return gradsift.controller("fixed", k=9) if dense else gradsift.controller("extended-sign", window=3)


def check_run(sparsifier: str, steps: int, rounds: int = 7, **options: Any) -> None:
    """A run of an engine is that of its slow twin."""
    parts = (mlp(), LOSS, blobs(), sparsifier, controller(sparsifier))
    engine, twin = with_twin(*parts, **{"lr": 0.3, "local": LocalSteps(steps), **options})
    for number in range(1, rounds + 1):
        record = engine.step()
        assert_same(engine, record, next(twin))
        assert record["steps"] == steps
        assert engine.state.server.steps == number * steps
        assert record["up_elements"] > 0  # every round has its exchange


# Against the slow twin.


@pytest.mark.parametrize("clients_per_round", [None, 4], ids=["all", "some"])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
def test_runs_are_those_of_the_twin(sparsifier: str, steps: int, clients_per_round: int | None) -> None:
    check_run(sparsifier, steps, clients_per_round=clients_per_round)


@pytest.mark.parametrize("clients_per_round", [None, 4], ids=["all", "some"])
@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_through_memory_is_the_same(way: str, sparsifier: str, clients_per_round: int | None) -> None:
    with going(way):
        check_run(sparsifier, 3, clients_per_round=clients_per_round, clients_per_chunk=2)


@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
def test_schedules_costs_and_late_observations_are_the_same(sparsifier: str) -> None:
    cost = LinkTime(up_bandwidth=[50.0 * (1 + i) for i in range(6)], down_bandwidth=400.0, latency=0.1, compute=0.5)
    options = {"cost": cost, "lr": Cosine(0.5, rounds=9), "delay": 1, "charge_probe": True, "probe_samples": 3}
    check_run(sparsifier, 2, rounds=10, clients_per_round=3, seed=5, **options)


# Against others of its kind.


@pytest.mark.parametrize("sparsifier", ["fab-top-k", "periodic-k", "send-all"])
def test_one_local_step_is_one_gradient(sparsifier: str) -> None:
    made = [
        hand.engine(mlp(), LOSS, blobs(), sparsifier, controller(sparsifier), local=local)
        for local in (LocalSteps(1), OneGradient())
    ]
    for number in range(1, 11):
        one, other = (dict(engine.step()) for engine in made)
        if number == 1:
            assert one == other
            assert torch.equal(made[0].state.residual, made[1].state.residual)
        for name, value in one.items():
            assert other[name] == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value), name
        torch.testing.assert_close(made[0].state.server.weights, made[1].state.server.weights, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Branching cannot be batched over clients")
@pytest.mark.parametrize("way", ["one by one", "one pass", "vmap"])
@pytest.mark.parametrize("k", [1, 3, 7, 30])
def test_as_many_steps_as_a_period_has_rounds_are_fedavg(k: int, way: str) -> None:
    """At its exchanges, bit for bit; the batched ways take a first step from common weights by other products."""
    kinds: dict[str, Callable[[], nn.Module]] = {
        "one by one": models.Branching,
        "one pass": mlp,
        "vmap": models.grouped,
    }
    module, apart = models.seeded(kinds[way]), 0.0 if way == "one by one" else 1e-12
    fixed = gradsift.controller("fixed", k=k)
    fedavg = hand.engine(module, LOSS, blobs(), "fedavg", fixed)
    period = fedavg.method.local.period(fedavg.flat.dim, k)
    steps = hand.engine(module, LOSS, blobs(), "send-all", fixed, local=LocalSteps(period))
    for _ in range(4):
        rows = [fedavg.step() for _ in range(period)]
        record = steps.step()
        torch.testing.assert_close(fedavg.state.server.weights, steps.state.server.weights, rtol=0, atol=apart)
        assert not steps.state.residual.any()
        assert fedavg.state.server.steps == steps.state.server.steps
        assert record["train_loss"] == pytest.approx(np.mean([row["train_loss"] or 0.0 for row in rows]), abs=1e-12)
        for name in ("up_elements", "down_elements", "up_bytes", "down_bytes", "contribution"):
            assert dict(record)[name] == dict(rows[-1])[name]
        assert record["round_cost"] == pytest.approx(sum(row["round_cost"] for row in rows))


# What a round costs.


@pytest.mark.parametrize(
    ("cost", "each"),
    [
        (NormalizedTime(comm_time=10, comp_time=2.5), 2.5),
        (LinkTime(up_bandwidth=100.0, down_bandwidth=300.0, compute=[1.0, 2.0, 7.0, 1.0, 3.0, 1.0]), 7.0),
        (Energy(up=1e-3, down=1e-3, compute=0.5), 6 * 0.5),
        (Money(up=1e-3, down=1e-3, compute=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 21.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_gradient_is_charged(cost: CostModel, each: float) -> None:
    fixed = gradsift.controller("fixed", k=9)
    costs = {}
    for steps in (1, 2, 6):
        engine = hand.engine(mlp(), LOSS, blobs(), "fab-top-k", fixed, cost=cost, local=LocalSteps(steps))
        costs[steps] = engine.step()["round_cost"]
    assert costs[2] - costs[1] == pytest.approx(each)
    assert costs[6] - costs[1] == pytest.approx(5 * each)


# Models that do more than that.


@pytest.mark.parametrize("clients_per_round", [None, 4])
@pytest.mark.parametrize("kind", ["plain", "BatchNorm"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_it_is_fedavg_as_everybody_writes_it(kind: str, clients_per_round: int | None, chunk: int | None) -> None:
    """A module and an optimizer a client, and an average of their states."""
    data, model = blobs(), mlp() if kind == "plain" else models.seeded(models.normed)
    options: dict[str, Any] = {"clients_per_round": clients_per_round, "clients_per_chunk": chunk}
    options |= {"buffers": "average"} if kind == "BatchNorm" else {}
    engine = hand.engine(model, LOSS, data, "send-all", local=LocalSteps(3), **options)
    shared = copy.deepcopy(model).double()
    steps = itertools.count(1)
    for number in range(1, 4):
        clients = participants(data.num_clients, clients_per_round, 0, number)
        local = [copy.deepcopy(shared) for _ in clients]
        for step in itertools.islice(steps, 3):
            for module, client in zip(local, clients, strict=True):
                optimizer = torch.optim.SGD(module.parameters(), lr=hand.LR)
                x, y = hand.batch(data, int(client), step)
                optimizer.zero_grad()
                LOSS(module(x), y).backward()
                optimizer.step()
        share = data.share[clients] / data.share[clients].sum()
        shared.load_state_dict(hand.average([module.state_dict() for module in local], share))
        engine.step()
        have = engine.model().state_dict()
        for name, want in shared.state_dict().items():
            torch.testing.assert_close(have[name], want, rtol=0, atol=1e-12)


def test_residuals_are_no_part_of_the_local_weights() -> None:
    """What a client could not send yet does not move it: the second round starts from the common weights."""
    engine = hand.engine(mlp(), LOSS, blobs(), "fab-top-k", gradsift.controller("fixed", k=2), local=LocalSteps(2))
    engine.step()
    before, weights, module = engine.state.residual.clone(), engine.state.server.weights.clone(), mlp().double()
    record = engine.step()
    drift = []
    for client in range(6):
        hand.put(module, weights)
        first = hand.gradient(module, LOSS, *hand.batch(blobs(), client, 3))
        hand.put(module, weights - hand.LR * first)
        drift.append(first + hand.gradient(module, LOSS, *hand.batch(blobs(), client, 4)))
    changed = (engine.state.residual - before - torch.stack(drift)).abs() > 1e-12
    assert changed.sum(dim=1).tolist() == record["contribution"]  # nothing else than what was sent and kept


def masks(seed: int = 0, **settings: Any) -> Tensor:
    """[N, 400] the sum of the dropout masks of two local steps, doubled each."""
    x, y = np.ones((10, 400)), np.zeros(10)
    data = FederatedData.from_arrays(x, y, np.repeat(np.arange(5), 2))
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(400, 1, bias=False))

    def loss(out: Tensor, target: Tensor) -> Tensor:
        return out.mean() + 0 * target.mean()

    chosen = {"local": LocalSteps(2), "batch_size": 1, "seed": seed, **settings}
    engine = hand.engine(model, loss, data, "periodic-k", **chosen)
    engine.step()
    sent = engine.state.residual.eq(0).all(dim=0)
    assert 1 <= int(sent.sum()) < 20  # one coordinate, and those that all masks happened to hide
    return engine.state.residual


@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_dropout_is_new_in_every_step_and_repeats(chunk: int | None) -> None:
    drawn = masks(clients_per_chunk=chunk)
    assert set(drawn.flatten().tolist()) == {0.0, 2.0, 4.0}  # the same mask twice would leave no 2
    assert 0.4 < float((drawn == 2).double().mean()) < 0.6
    assert len({tuple(row.tolist()) for row in drawn}) == 5
    assert torch.equal(drawn, masks(clients_per_chunk=chunk))
    assert not torch.equal(drawn, masks(seed=1, clients_per_chunk=chunk))


@pytest.mark.filterwarnings("ignore:Branching cannot be batched over clients")
@pytest.mark.parametrize("kind", ["image", "convolutions", "tied", "attention", "control flow"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_models_of_every_kind_take_local_steps(kind: str) -> None:
    model = models.seeded({**models.KINDS, "control flow": models.Branching}[kind])
    engine = hand.engine(model, LOSS, blobs(), "send-all", local=LocalSteps(2))
    engine.step()
    want = torch.zeros_like(engine.state.server.weights)
    for client, share in enumerate(blobs().share):
        module = copy.deepcopy(model).double()
        for step in (1, 2):
            gradient = hand.gradient(module, LOSS, *hand.batch(blobs(), client, step))
            hand.put(module, hand.flat(module) - hand.LR * gradient)
        want += float(share) * hand.flat(module)
    torch.testing.assert_close(engine.state.server.weights, want, rtol=0, atol=1e-12)


# Resume.

KINDS: dict[str, dict[str, Any]] = {
    "fab, late": {"delay": 1, "clients_per_round": 4},
    "periodic-k": {"sparsifier": "periodic-k"},
    "send-all": {"sparsifier": "send-all"},
    "dropout": {"model": models.seeded(lambda: nn.Sequential(nn.Linear(5, 9), nn.Dropout(), nn.Linear(9, 3)))},
    "BatchNorm": {"model": models.seeded(models.normed), "buffers": "average", "clients_per_round": 4},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_same_run(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"sparsifier": "fab-top-k", "model": mlp()} | KINDS[kind]
    model, sparsifier = options.pop("model"), options["sparsifier"]

    def run(name: str, rounds: int, steps: int = 3, **others: Any) -> None:
        gradsift.simulate(
            *(model, LOSS, blobs()),
            controller=controller(sparsifier),
            local=LocalSteps(steps),
            **({"rounds": rounds, "batch_size": 8, "eval_every": 1, "checkpoint_every": 2} | options | others),
            out=tmp_path / name,
        )

    run("whole", 7)
    run("parts", 3)
    with pytest.raises(gradsift.GradsiftError, match=r"parts is another run: local\.steps was 3, not 2"):
        run("parts", 7, steps=2, resume=True)
    run("parts", 7, resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_fedavg_by_the_papers_clock_takes_no_other_local_computation_silently() -> None:
    """``fedavg`` with local steps is send-all with local steps: its period is its local computation's."""
    one, other = (
        hand.engine(mlp(), LOSS, blobs(), name, gradsift.controller("fixed", k=3), local=LocalSteps(2))
        for name in ("fedavg", "send-all")
    )
    for _ in range(3):
        assert one.step() == other.step()
    assert_equal(one, other)


def assert_equal(one: Engine, other: Engine) -> None:
    assert torch.equal(one.state.server.weights, other.state.server.weights)
    assert torch.equal(one.state.residual, other.state.residual)
