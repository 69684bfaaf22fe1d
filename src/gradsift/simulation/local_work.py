"""The local computations of a round's clients, a part of them at a time.

Shapes: n clients of a round, D weights, b samples a minibatch.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradsift.data.federated import FederatedData
from gradsift.draws import rng
from gradsift.method import Method
from gradsift.simulation.clients import Clients, Part
from gradsift.simulation.flat import FlatModel, Named
from gradsift.simulation.state import State

Rows = Callable[[int], Tensor]  # local step of the round, from 0 -> [n, b] the rows of the data in each minibatch


class Computed(NamedTuple):
    """What clients computed, beside what they added to their residuals."""

    losses: Tensor  # [n] of their minibatches, the mean over local steps
    largest: Tensor  # [n] the largest absolute value of each residual
    buffers: Named  # [n, ...] that training changed


class LocalWork:
    """Runs a method's local computation on the clients' minibatches."""

    def __init__(self, flat: FlatModel, data: FederatedData, method: Method) -> None:
        self.flat, self.data, self.method = flat, data, method

    def add(
        self, residual: Tensor, state: State, clients: Clients, part: Part, rows: Rows, lr: float | None
    ) -> Computed:
        """Add to the residuals of a part of the clients, in place, what they compute; None: ``lr`` is not needed."""
        who, length, seed = clients.present[part], int(clients.batch[part][0]), self.method.seed
        buffers = {name: state.local_buffers[name][who] for name in self.flat.moving}
        losses: list[Tensor] = []

        def add_gradients(total: Tensor, point: Tensor, step: int) -> None:
            nonlocal buffers
            chosen = rows(step)[part][:, :length]
            number = state.server.steps + 1 + step
            _seed(total.device, int(rng(seed, "dropout", client=int(who[0]), number=number).integers(2**63)))
            values, buffers = self.flat.add_gradients(total, point, buffers, self.data.x[chosen], self.data.y[chosen])
            losses.append(values)

        with torch.random.fork_rng(devices=[residual.device] if residual.is_cuda else []), torch.enable_grad():
            self.method.local.accumulate(residual, state.server.weights, math.nan if lr is None else lr, add_gradients)
        mean = losses[0] if len(losses) == 1 else torch.stack(losses).mean(dim=0)
        return Computed(mean, torch.maximum(residual.amax(1), -residual.amin(1)), buffers)


def joined(parts: Sequence[Part], results: Sequence[Computed], clients: int) -> Computed:
    """The results of all parts, in the order of the clients."""
    if len(results) == 1:
        return results[0]
    order = in_order(parts, clients)

    def join(tensors: Sequence[Tensor]) -> Tensor:
        together = torch.cat(list(tensors))
        return together if order is None else together[order]

    names = results[0].buffers
    return Computed(
        join([each.losses for each in results]),
        join([each.largest for each in results]),
        {name: join([each.buffers[name] for each in results]) for name in names},
    )


def in_order(parts: Sequence[Part], clients: int) -> Tensor | None:
    """[n] where each client is among the parts, one after the other; None: the parts are in the clients' order."""
    if all(isinstance(part, slice) for part in parts):
        return None
    return torch.from_numpy(np.argsort(np.concatenate([np.arange(clients)[part] for part in parts])))


def _seed(device: torch.device, seed: int) -> None:
    """What ``torch.manual_seed`` does for the CPU and this device; it keeps a stack trace for every other kind."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)  # a tensor's device has a number
