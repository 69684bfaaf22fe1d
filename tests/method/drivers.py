"""The two drivers that the tests of whole methods run: the simulator, and Flower's in-process grid, on the same data.

A client of the grid finds its parts by name, as one on another machine does.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from torch import Tensor, nn

import gradsift
from gradsift.flower import GradientTask, SparseStrategy, gradient_app
from gradsift.records.record import Record
from tests.flower.grid import LocalGrid
from tests.simulation.problems import blobs, mlp

ROUNDS, CLIENTS = 5, 4
PROBING = "extended-sign"  # calls every method of every slot


class Run(NamedTuple):
    records: list[Record]
    weights: Tensor


def on_simulator(**slots: Any) -> Run:
    others = {
        "controller": PROBING,
        "encoded_bytes": True,
        "lr": 0.3,
        "rounds": ROUNDS,
        "batch_size": 8,
        "dtype": torch.float64,
    }
    result = gradsift.simulate(mlp(), nn.CrossEntropyLoss(), blobs(CLIENTS), **{**others, **slots})
    return Run(result.records, result.weights)


def on_flower(**slots: Any) -> Run:
    module = copy.deepcopy(mlp()).double()
    data, local = blobs(CLIENTS).to("cpu", torch.float64), copy.deepcopy(module)

    def task(context: Context) -> GradientTask:
        rows = data.rows(int(context.node_config["partition-id"]))
        return GradientTask(local, nn.CrossEntropyLoss(), data.x[rows], data.y[rows], 8)

    options = {"controller": PROBING, "exchanges": 2, "lr": 0.3, "fraction_evaluate": 0, **slots}
    strategy = SparseStrategy(module, **options)
    grid = LocalGrid(lambda: gradient_app(task), CLIENTS)
    arrays, config = ArrayRecord(module.state_dict()), ConfigRecord()
    for number in range(1, ROUNDS + 1):
        asked = strategy.configure_train(number, arrays, config, grid)
        strategy.aggregate_train(number, grid.send_and_receive(asked))
        asked = strategy.configure_evaluate(number, arrays, config, grid)
        strategy.aggregate_evaluate(number, grid.send_and_receive(asked))
    assert strategy.refused == []
    return Run(without_bytes(strategy.records), strategy.rounds.server.weights)


DRIVERS: dict[str, Callable[..., Run]] = {"simulator": on_simulator, "flower": on_flower}


def assert_same_run(left: Run, right: Run) -> None:
    assert torch.equal(left.weights, right.weights)
    assert left.records == right.records


def without_bytes(records: Sequence[Record]) -> list[Record]:
    """Flower's messages hold the names of the parts, which are not equally long."""
    return [{**record, "up_bytes": 0.0, "down_bytes": 0.0} for record in records]
