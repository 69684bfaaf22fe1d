"""Checks that the numbers of a round are finite. Errors name the round, the client and the value."""

import math

import torch
from torch import Tensor

from gradsift.data.federated import FederatedData
from gradsift.errors import RunError
from gradsift.sampling import Ints


def check_clients(number: int, data: FederatedData, clients: Ints, losses: Tensor, largest: Tensor) -> None:
    """Refuse a client with a loss or a largest residual element, each [n], that is not finite in round ``number``."""
    good = torch.isfinite(losses) & torch.isfinite(largest)
    if not bool(good.all()):
        row = int((~good).nonzero()[0])
        loss = float(losses[row])
        problem = "a gradient that is not finite" if math.isfinite(loss) else f"loss {loss}"
        raise _diverged(number, data, int(clients[row]), problem)


def check_weights(number: int, largest: Tensor) -> None:
    """Refuse global weights whose largest absolute value [] is not finite after round ``number``."""
    if not math.isfinite(float(largest)):
        raise RunError(f"round {number}: the step leads to weights that are not finite; try a smaller step size")


def mean_loss(number: int, data: FederatedData, clients: Ints, losses: Tensor) -> float:
    """The mean of the losses [s] of some samples, whose clients are ``clients`` [s]; refuses one that is not finite."""
    mean = float(losses.double().mean())
    if not math.isfinite(mean):
        for row in (~torch.isfinite(losses)).nonzero()[:1, 0].tolist():
            raise _diverged(number, data, int(clients[row]), f"loss {float(losses[row])} after the step")
    return mean


def _diverged(number: int, data: FederatedData, client: int, problem: str) -> RunError:
    return RunError(f"round {number}: client {data.label(client)} has {problem}; try a smaller step size")
