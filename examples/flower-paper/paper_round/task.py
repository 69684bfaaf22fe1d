"""The digits and a small network, the same on the server and on every client."""

import functools

from flwr.app import Context
from torch import nn

from gradsift.data import FederatedData, load
from gradsift.flower import GradientTask
from gradsift.models import small_mlp

LOSS = nn.CrossEntropyLoss()


def network(context: Context) -> nn.Module:
    """The initial model: the seed makes it the same everywhere."""
    model = small_mlp(10, 64, hidden=int(context.run_config["hidden"]), seed=int(context.run_config["seed"]))
    return model.double() if context.run_config["double"] else model


@functools.cache
def digits(clients: int) -> FederatedData:
    """Shared out among so many clients."""
    return load("digits", clients=clients)


def task(context: Context) -> GradientTask:
    """One client's samples, with its model."""
    data = digits(int(context.node_config["num-partitions"]))
    rows = data.rows(int(context.node_config["partition-id"]))
    x = data.x[rows].double() if context.run_config["double"] else data.x[rows]
    batch_size, seed = int(context.run_config["batch-size"]), int(context.run_config["seed"])
    return GradientTask(network(context), LOSS, x, data.y[rows], batch_size, seed=seed)
