"""Server optimizers: the step that the server, and every client after it, makes of an update.

The update is what the server sends: the step size times the merged gradient, after rounding. Server and clients make
the same step of it, so their weights stay equal although only the update travels.

Shapes: D weights; update [k], or [D] if it is dense.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradsift import check
from gradsift.registry import Registry
from gradsift.sparse import Sparse, Whole, everything

Named = dict[str, Tensor]


class ServerOptimizer(ABC):
    """How updates become steps. A new one defines ``step``, and ``init`` if it has a memory."""

    name: ClassVar[str] = ""

    def init(self, weights: Tensor) -> Named:
        """The memory before the first round: tensors by name, none by default."""
        del weights
        return {}

    @abstractmethod
    def step(self, memory: Named, update: Sparse) -> tuple[Named, Sparse]:
        """The new memory and the step, which is subtracted from the weights; ``memory`` itself must not change.

        Use only operations whose result is the same on all processors: sums and products, one after the other.
        """


_REGISTRY: Registry[ServerOptimizer] = Registry("server optimizer", ServerOptimizer)  # type: ignore[type-abstract]
server_optimizer = _REGISTRY.make  # such as server_optimizer("momentum", momentum=0.9, nesterov=True)
register_server_optimizer = _REGISTRY.register
describe = _REGISTRY.describe
registered = _REGISTRY.registered
server_optimizers = _REGISTRY.names


@register_server_optimizer("sgd")
@dataclass(frozen=True)
class SGD(ServerOptimizer):
    """The update times ``rate``; with a rate of 1 the step is the update: the paper's equation (1)."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        check.real("rate", self.rate, low=0.0)

    def step(self, memory: Named, update: Sparse) -> tuple[Named, Sparse]:
        """rate * update."""
        return memory, update if self.rate == 1 else update.with_values(update.values * self.rate)


@register_server_optimizer("momentum")
@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """Momentum on the updates, as FedAvgM and DiLoCo use it; ``nesterov`` looks one step ahead.

    v <- momentum * v + update; the step is rate * v, or rate * (update + momentum * v) with ``nesterov``. DiLoCo's
    (Douillard et al., 2023) outer optimizer is ``Momentum(momentum=0.9, nesterov=True, rate=0.7)``.
    """

    momentum: float = 0.9
    nesterov: bool = False
    rate: float = 1.0

    def __post_init__(self) -> None:
        check.real("momentum", self.momentum, 0.0, 1.0)
        check.boolean("nesterov", self.nesterov)
        check.real("rate", self.rate, low=0.0)

    def init(self, weights: Tensor) -> Named:
        """No velocity."""
        return {"velocity": torch.zeros_like(weights)}

    def step(self, memory: Named, update: Sparse) -> tuple[Named, Sparse]:
        """All weights move, also those whose elements were not sent."""
        velocity = added(memory["velocity"] * self.momentum, update)
        step = added(velocity * self.momentum, update) if self.nesterov else velocity
        return {"velocity": velocity}, everything(step if self.rate == 1 else step * self.rate)


def added(vector: Tensor, update: Sparse) -> Tensor:
    """``vector`` [D] plus the elements of ``update``, in place."""
    if isinstance(update, Whole):
        return vector.add_(update.values)
    return vector.index_add_(0, update.indices, update.values.to(vector))
