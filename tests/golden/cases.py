"""The golden runs: short runs over the digits that touch every part of a round, each with its records and weights."""

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from torch import Tensor, nn

import gradsift
from gradsift import Energy, FederatedData, LinkTime, Money, NormalizedTime, WeightedSum
from gradsift.data import load
from gradsift.flower import GradientTask, SparseStrategy, gradient_app
from gradsift.simulation import memory
from tests.flower.grid import LocalGrid

ROUNDS = 14
CLIENTS = 8
CONTROLLERS: dict[str, dict[str, Any]] = {
    "fixed": {"k": 90.5},
    "replay": {"sequence": [1 + (97 * m) % 1210 for m in range(ROUNDS)]},
    "sign": {},
    "extended-sign": {"window": 3},
    "value": {"scale": 30.0},
    "exp3": {"grid": "log", "arms": 5},
    "continuous-bandit": {},
}
SPARSE = ("fab-top-k", "fub-top-k", "unidirectional-top-k", "periodic-k")
DENSE = ("fedavg", "send-all")
PAIRS = [*itertools.product(SPARSE, CONTROLLERS), *((name, "fixed") for name in DENSE)]
DTYPES = {"float64": torch.float64, "float32": torch.float32}
LINK = LinkTime(up_bandwidth=[100.0 * (1 + i) for i in range(CLIENTS)], down_bandwidth=900.0, latency=0.1, compute=0.5)


class Run(NamedTuple):
    """What a golden run leaves."""

    records: list[dict[str, Any]]
    weights: Tensor


Case = Callable[[Path, pytest.MonkeyPatch], Run]


def digits(clients: int = CLIENTS) -> FederatedData:
    return load("digits", clients=clients, partition="dirichlet", alpha=0.5)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def mlp() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)))


def batch_norm() -> nn.Module:
    return seeded(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    )


def dropout() -> nn.Module:
    return seeded(
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)
        )
    )


def convolutions() -> nn.Module:
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 10)
        )
    )


def control(name: str, dense: bool = False) -> Any:
    return gradsift.controller(name, **({"k": 90} if dense else CONTROLLERS[name]))


def simulated(
    sparsifier: str = "fab-top-k", controller: str = "extended-sign", model: nn.Module | None = None, **options: Any
) -> Run:
    chosen: dict[str, Any] = {
        "cost": NormalizedTime(comm_time=10),
        "lr": 0.3,
        "rounds": ROUNDS,
        "batch_size": 8,
        "eval_every": 5,
        "dtype": torch.float64,
    }
    result = gradsift.simulate(
        model or mlp(),
        nn.CrossEntropyLoss(),
        digits(),
        sparsifier=sparsifier,
        controller=control(controller, sparsifier in DENSE),
        **(chosen | options),
    )
    return Run([dict(record) for record in result.records], result.weights)


def pair(sparsifier: str, controller: str, dtype: str) -> Case:
    return lambda _folder, _patch: simulated(sparsifier, controller, dtype=DTYPES[dtype])


def other(**options: Any) -> Case:
    return lambda _folder, _patch: simulated(**options)


def streamed(**options: Any) -> Case:
    def run(folder: Path, patch: pytest.MonkeyPatch) -> Run:
        del folder
        patch.setattr(memory, "must_stream", lambda *_: True)
        return simulated(clients_per_chunk=3, **options)

    return run


def resumed(**options: Any) -> Case:
    def run(folder: Path, patch: pytest.MonkeyPatch) -> Run:
        del patch
        kept = {"out": folder / "run", "checkpoint_every": 4, **options}
        simulated(**(kept | {"rounds": 6}))
        return simulated(**kept, resume=True)

    return run


def on_flower(
    sparsifier: str = "fab-top-k",
    controller: str = "extended-sign",
    *,
    model: nn.Module | None = None,
    dtype: str = "float64",
    fraction: float = 1.0,
    **options: Any,
) -> Case:
    def run(folder: Path, patch: pytest.MonkeyPatch) -> Run:
        del folder, patch
        module = copy.deepcopy(model or mlp()).to(DTYPES[dtype])
        data = digits(4).to("cpu", DTYPES[dtype])
        local = copy.deepcopy(module)

        def task(context: Context) -> GradientTask:
            rows = data.rows(int(context.node_config["partition-id"]))
            return GradientTask(local, nn.CrossEntropyLoss(), data.x[rows], data.y[rows], 8)

        strategy = SparseStrategy(
            module,
            sparsifier=sparsifier,
            controller=control(controller, sparsifier in DENSE),
            lr=0.3,
            fraction_train=fraction,
            fraction_evaluate=0,
            **{"encoded_bytes": "cost" in options, **options},  # normalised time counted numbers then
        )
        grid, arrays, config = (
            LocalGrid(lambda: gradient_app(task), 4),
            ArrayRecord(module.state_dict()),
            ConfigRecord(),
        )
        for number in range(1, ROUNDS + 1):
            asked = strategy.configure_train(number, arrays, config, grid)
            strategy.aggregate_train(number, grid.send_and_receive(asked))
            asked = strategy.configure_evaluate(number, arrays, config, grid)
            strategy.aggregate_evaluate(number, grid.send_and_receive(asked))
        return Run([dict(record) for record in strategy.records], strategy.rounds.server.weights)

    return run


COST = WeightedSum((1.0, Energy(up=3e-4, down=1e-4, compute=0.5)), (2.0, Money(up=1e-3, down=1e-4, compute=0.1)))
CASES: dict[str, Case] = {
    **{f"{s}+{c} {kind}": pair(s, c, kind) for s, c in PAIRS for kind in DTYPES},
    **{f"some clients {s}": other(sparsifier=s, controller="fixed", clients_per_round=3) for s in (*SPARSE, *DENSE)},
    "some clients learned": other(clients_per_round=3, probe_samples=2, seed=3),
    "delay": other(delay=1),
    "delay, some clients": other(delay=1, clients_per_round=3, controller="value"),
    "batch norm": other(model=batch_norm(), buffers="average"),
    "batch norm fedavg": other(model=batch_norm(), buffers="average", sparsifier="fedavg", controller="fixed"),
    "dropout, by vmap": other(model=dropout(), dtype=torch.float32, clients_per_chunk=3),
    "convolutions": other(model=convolutions(), dtype=torch.float32),
    "convolutions fedavg": other(model=convolutions(), sparsifier="fedavg", controller="fixed", dtype=torch.float32),
    **{f"streamed {s}": streamed(sparsifier=s, controller="fixed") for s in (*SPARSE, *DENSE)},
    "streamed learned, some clients": streamed(clients_per_round=5),
    **{f"encoded bytes {s}": other(sparsifier=s, controller="fixed", cost=LINK, encoded_bytes=True) for s in SPARSE},
    "encoded bytes learned": other(cost=LINK, encoded_bytes=True, charge_probe=True),
    "encoded bytes, buffers": other(cost=LINK, encoded_bytes=True, model=batch_norm(), buffers="average"),
    "probe charged, dense fallback": other(charge_probe=True, dense_fallback=True, cost=LINK),
    "energy and money": other(cost=COST, lr=gradsift.Cosine(0.4, rounds=20), clients_per_round=5),
    "resumed": resumed(),
    "resumed late": resumed(delay=1, clients_per_round=3),
    "resumed fedavg": resumed(sparsifier="fedavg", controller="fixed"),
    **{
        f"flower {s}+{c} {n} exchanges": on_flower(s, c, exchanges=n)
        for s, c in (*((s, "extended-sign") for s in SPARSE), *((s, "fixed") for s in DENSE))
        for n in (1, 2)
    },
    **{f"flower {c} {n} exchanges": on_flower("fab-top-k", c, exchanges=n) for c in CONTROLLERS for n in (1, 2)},
    **{f"flower float32 {n} exchanges": on_flower(dtype="float32", exchanges=n) for n in (1, 2)},
    **{f"flower some clients {n} exchanges": on_flower(fraction=0.75, exchanges=n) for n in (1, 2)},
    **{f"flower {v}": on_flower(values=v, dtype="float32") for v in ("float16", "bfloat16", "int8")},
    "flower link": on_flower(cost=LinkTime(up_bandwidth=500.0, down_bandwidth=900.0, latency=0.1, compute=0.5)),
    "flower batch norm": on_flower(model=batch_norm(), buffers="average", controller="fixed"),
}
