"""The local computations of a round's clients, one part of the clients at a time.

Shapes: n clients of a round, D weights, b samples per minibatch.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradsift import contract, weighing
from gradsift.data.federated import FederatedData
from gradsift.draws import rng
from gradsift.method import Method
from gradsift.simulation.clients import Clients, Part
from gradsift.simulation.flat import FlatModel, Named
from gradsift.simulation.state import State

Rows = Callable[[int], Tensor]  # local step of the round, from 0 -> [n, b] the rows of the data in its minibatches


class Computed(NamedTuple):
    """What clients computed besides their residuals."""

    losses: Tensor  # [n] minibatch losses, the mean over local steps
    largest: Tensor  # [n] the largest absolute value of each residual
    mass: Tensor  # [n] the sum of the absolute values of each residual; zeros if the controller does not weigh
    buffers: Named  # [n, ...] the moving buffers


class LocalWork:
    """Runs a method's local computation on the clients' minibatches."""

    def __init__(self, flat: FlatModel, data: FederatedData, method: Method) -> None:
        self.flat, self.data, self.method = flat, data, method

    def add(
        self, residual: Tensor, state: State, clients: Clients, part: Part, rows: Rows, lr: float | None
    ) -> Computed:
        """Run the local computation of a part of the clients, which adds to their ``residual`` in place.

        ``lr`` may be None if the local computation does not need the plan.
        """
        present, length, seed = clients.present[part], int(clients.batch[part][0]), self.method.seed
        buffers = {name: state.local_buffers[name][present] for name in self.flat.moving}
        losses: list[Tensor] = []

        def add_gradients(total: Tensor, point: Tensor, step: int) -> None:
            nonlocal buffers
            batch = rows(step)[part][:, :length]
            number = state.server.steps + 1 + step
            _seed(total.device, int(rng(seed, "dropout", client=int(present[0]), number=number).integers(2**63)))
            means, buffers = self.flat.add_gradients(total, point, buffers, self.data.x[batch], self.data.y[batch])
            losses.append(means)

        with torch.random.fork_rng(devices=[residual.device] if residual.is_cuda else []), torch.enable_grad():
            self.method.local.accumulate(residual, state.server.weights, math.nan if lr is None else lr, add_gradients)
        contract.check_count(self.method, len(losses))
        mean = losses[0] if len(losses) == 1 else torch.stack(losses).mean(dim=0)
        mass = weighing.residual_mass(residual) if self.method.controller.weighs else torch.zeros_like(mean)
        return Computed(mean, torch.maximum(residual.amax(1), -residual.amin(1)), mass, buffers)


def joined(parts: Sequence[Part], results: Sequence[Computed], clients: int) -> Computed:
    """The results of all parts, in the order of the clients."""
    if len(results) == 1:
        return results[0]
    order = client_order(parts, clients)

    def join(tensors: Iterable[Tensor]) -> Tensor:
        together = torch.cat(list(tensors))
        return together if order is None else together[order]

    losses, largest, mass, buffers = zip(*results, strict=True)
    moved = {name: join(part[name] for part in buffers) for name in buffers[0]}
    return Computed(join(losses), join(largest), join(mass), moved)


def client_order(parts: Sequence[Part], clients: int) -> Tensor | None:
    """[n] the position of each client in the concatenated parts, or None if they are in the clients' order already."""
    if all(isinstance(part, slice) for part in parts):
        return None
    return torch.from_numpy(np.argsort(np.concatenate([np.arange(clients)[part] for part in parts])))


def _seed(device: torch.device, seed: int) -> None:
    """``torch.manual_seed`` for the CPU and this device only, without the stack trace it keeps for other devices."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)  # a tensor's device has an index
