"""The Flower driver against the simulator, over whole runs: the same k, the same messages, the same weights."""

import copy
import itertools
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from torch import nn

import gradsift
from gradsift import Controller, CostModel, LinkTime, NormalizedTime, Settings
from gradsift.flower import GradientTask, SparseStrategy, gradient_app
from gradsift.simulation.engine import Engine
from gradsift.simulation.schedule import Constant, Cosine, Schedule
from tests.flower.grid import LocalGrid
from tests.simulation.problems import blobs, mlp

ROUNDS = 20
DIM = 57
CLIENTS = 4

CONTROLLERS: dict[str, dict[str, Any]] = {
    "fixed": {"k": 7},
    "replay": {"sequence": [1 + (5 * m) % DIM for m in range(ROUNDS + 2)]},
    "sign": {},
    "extended-sign": {"window": 4},
    "value": {"scale": 30.0},
    "exp3": {"grid": "log", "arms": 5},
    "continuous-bandit": {},
}
PAIRS = [
    *itertools.product(["fab-top-k"], CONTROLLERS),
    *itertools.product(["fub-top-k", "unidirectional-top-k", "periodic-k"], ["extended-sign"]),
    *itertools.product(["fedavg", "send-all"], ["fixed"]),
]


def pair(
    sparsifier: str,
    controller: Controller[Any],
    exchanges: int,
    lr: Schedule | None = None,
    cost: CostModel | None = None,
    clients_per_round: int | None = None,
    **settings: Any,
) -> tuple[Engine, SparseStrategy, LocalGrid, ArrayRecord]:
    model, data = mlp().double(), blobs(CLIENTS)
    cost = cost or NormalizedTime(comm_time=10)
    parts = (gradsift.sparsifier(sparsifier), controller, cost, lr or Constant(0.3))
    how = Settings(batch_size=8, clients_per_round=clients_per_round, delay=2 - exchanges, **settings)
    cpu = torch.device("cpu")
    engine = Engine(mlp(), nn.CrossEntropyLoss(), data, *parts, how, device=cpu, dtype=torch.float64)
    double, local = data.to("cpu", torch.float64), copy.deepcopy(model)

    def task(context: Context) -> GradientTask:
        rows = data.rows(int(context.node_config["partition-id"]))
        x, y = double.x[rows], double.y[rows]
        return GradientTask(local, nn.CrossEntropyLoss(), x, y, 8, how.probe_samples, how.seed)

    strategy = SparseStrategy(
        model,
        sparsifier=parts[0],
        controller=parts[1],
        cost=parts[2],
        lr=parts[3],
        seed=how.seed,
        exchanges=exchanges,
        fraction_train=(clients_per_round or CLIENTS) / CLIENTS,
        fraction_evaluate=0,
    )
    return engine, strategy, LocalGrid(lambda: gradient_app(task), CLIENTS), ArrayRecord(model.state_dict())


def play(strategy: SparseStrategy, grid: LocalGrid, arrays: ArrayRecord, number: int) -> None:
    """One round as ``Strategy.start`` makes it."""
    config = ConfigRecord()
    strategy.aggregate_train(number, grid.send_and_receive(strategy.configure_train(number, arrays, config, grid)))
    strategy.aggregate_evaluate(
        number, grid.send_and_receive(strategy.configure_evaluate(number, arrays, config, grid))
    )


def assert_same_round(engine: Engine, strategy: SparseStrategy) -> None:
    before = engine.state.weights
    record, ours = engine.step(), strategy.records[-1]
    assert ours["refused"] == 0
    assert (ours["round"], ours["used-k"]) == (record["round"], record["used_k"])
    assert ours.get("probe-k") == record["probe_k"]
    assert ours["k"] == pytest.approx(record["k"], rel=1e-9)
    assert ours["cost"] == pytest.approx(record["cost"], rel=1e-12)
    assert (ours["up-elements"], ours["down-elements"]) == (record["up_elements"], record["down_elements"])
    state = strategy.rounds.state
    stepped = (engine.state.weights != before).nonzero().squeeze(-1)
    changed = (state.changed == record["round"]).nonzero().squeeze(-1)
    assert set(stepped.tolist()) <= set(changed.tolist())
    torch.testing.assert_close(state.weights, engine.state.weights, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("sparsifier", "control"), PAIRS)
@pytest.mark.parametrize("exchanges", [1, 2])
def test_whole_runs_are_the_simulators(sparsifier: str, control: str, exchanges: int) -> None:
    controller = gradsift.controller(control, **CONTROLLERS[control])
    engine, strategy, grid, arrays = pair(sparsifier, controller, exchanges)
    used = set()
    for number in range(1, ROUNDS + 1):
        play(strategy, grid, arrays, number)
        assert_same_round(engine, strategy)
        used.add(strategy.records[-1]["used-k"])
    assert len(used) > 1 or not controller.varies


@pytest.mark.parametrize("sparsifier", ["fab-top-k", "periodic-k", "fedavg"])
@pytest.mark.parametrize("exchanges", [1, 2])
def test_with_some_of_the_clients(sparsifier: str, exchanges: int) -> None:
    """Absentees catch up before they train, and take their losses at weights that they never held."""
    dense = gradsift.sparsifier(sparsifier).dense
    controller = gradsift.controller("fixed", k=9) if dense else gradsift.controller("extended-sign", window=3)
    engine, strategy, grid, arrays = pair(
        sparsifier, controller, exchanges, Cosine(0.5, rounds=30), clients_per_round=3, probe_samples=3, seed=5
    )
    for number in range(1, ROUNDS + 1):
        play(strategy, grid, arrays, number)
        assert_same_round(engine, strategy)


def test_a_cost_in_bytes_sees_the_encoded_sizes() -> None:
    cost = LinkTime(up_bandwidth=[50.0 * (1 + i) for i in range(CLIENTS)], down_bandwidth=400.0, latency=0.1)
    engine, strategy, grid, arrays = pair(
        "fab-top-k", gradsift.controller("sign"), 1, cost=cost, clients_per_round=3, encoded_bytes=True
    )
    for number in range(1, ROUNDS + 1):
        play(strategy, grid, arrays, number)
        assert_same_round(engine, strategy)
