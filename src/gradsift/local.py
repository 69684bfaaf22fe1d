"""Local computations: what a client adds to its residual in a round.

Shapes: D weights, n clients; residual [n, D] or [D], weights [D].
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradsift import check
from gradsift.registry import Registry

# (total, weights, step): adds to ``total`` each client's gradient at ``weights`` on its minibatch of this local step.
# ``weights`` is [D] if all clients have the same weights, and has the shape of ``total`` if they differ.
AddGradients = Callable[[Tensor, Tensor, int], None]


class LocalComputation(ABC):
    """How a client computes what it adds to its residual. A new one defines ``accumulate``."""

    name: ClassVar[str] = ""
    needs_plan: ClassVar[bool] = True  # False if gradients depend only on the global weights, not on k or lr

    @property
    def computations(self) -> int:
        """The number of gradients that a client computes in a round, which cost models charge."""
        return 1

    def period(self, dim: int, k: int) -> int:
        """The number of rounds between exchanges, in which the clients and the step size stay the same."""
        del dim, k
        return 1

    @abstractmethod
    def accumulate(self, residual: Tensor, weights: Tensor, lr: float, add_gradients: AddGradients) -> None:
        """Add to each client's ``residual``, in place, what it computes from the global ``weights``."""


_REGISTRY: Registry[LocalComputation] = Registry("local computation", LocalComputation)  # type: ignore[type-abstract]
local_computation = _REGISTRY.make  # such as local_computation("local-steps", steps=5)
register_local_computation = _REGISTRY.register
describe = _REGISTRY.describe
registered = _REGISTRY.registered
local_computations = _REGISTRY.names


@register_local_computation("one-gradient")
@dataclass(frozen=True)
class OneGradient(LocalComputation):
    """One minibatch gradient at the global weights: the paper's Algorithm 1."""

    needs_plan: ClassVar[bool] = False

    def accumulate(self, residual: Tensor, weights: Tensor, lr: float, add_gradients: AddGradients) -> None:
        """a_i <- a_i + gradient."""
        del lr
        add_gradients(residual, weights, 0)


@register_local_computation("local-steps")
@dataclass(frozen=True)
class LocalSteps(LocalComputation):
    """``steps`` SGD steps from the global weights; the client adds its drift, over lr, to its residual.

    The drift is the global weights minus the local weights after the last step. With a dense sparsifier this is FedAvg
    (McMahan et al., AISTATS 2017). The residual does not affect the local steps.
    """

    steps: int
    rate: float = 1.0  # the local step size is rate * lr
    momentum: float = 0.0  # of the local steps; it starts anew in each round
    weight_decay: float = 0.0  # adds weight_decay * weights to each gradient
    residual_decay: float = 1.0  # the residual is multiplied by it before each round; 1 keeps all of it

    def __post_init__(self) -> None:
        check.integer("steps", self.steps, 1)
        check.real("rate", self.rate, low=0.0)
        check.real("momentum", self.momentum, 0.0, 1.0)
        check.real("weight_decay", self.weight_decay, low=0.0)
        check.real("residual_decay", self.residual_decay, 0.0, 1.0)

    @property
    def computations(self) -> int:
        """One gradient per local step."""
        return self.steps

    @property
    def plain(self) -> bool:
        """Whether steps follow the gradient alone, so that the drift over lr is the sum of the gradients."""
        return (self.rate, self.momentum, self.weight_decay) == (1, 0, 0)

    def accumulate(self, residual: Tensor, weights: Tensor, lr: float, add_gradients: AddGradients) -> None:
        """a_i <- residual_decay * a_i + drift / lr."""
        drift, velocity = residual.new_zeros(residual.shape), None
        for step in range(self.steps):
            local = (drift * -lr).add_(weights) if step else weights
            if self.plain:
                add_gradients(drift, local, step)
                continue
            gradient = residual.new_zeros(residual.shape)
            add_gradients(gradient, local, step)
            gradient.add_(local, alpha=self.weight_decay)
            velocity = gradient if velocity is None else velocity.mul_(self.momentum).add_(gradient)
            drift.add_(velocity, alpha=self.rate)
        if self.residual_decay != 1:
            residual.mul_(self.residual_decay)
        residual.add_(drift)


@register_local_computation("periodic-averaging")
@dataclass(frozen=True)
class PeriodicAveraging(LocalComputation):
    """One local step per round, and an exchange every max(1, floor(D / 2k)) rounds: FedAvg as the paper counts rounds.

    The period gives FedAvg the same average traffic as methods that send k elements with their indices (the paper's
    Section V-A, item 4). Between two exchanges a client's residual is the sum of its local gradients, so its local
    weights are ``weights - lr * residual``.
    """

    def period(self, dim: int, k: int) -> int:
        """max(1, floor(D / 2k))."""
        return max(1, dim // (2 * k))

    def accumulate(self, residual: Tensor, weights: Tensor, lr: float, add_gradients: AddGradients) -> None:
        """a_i <- a_i + gradient at the client's local weights."""
        add_gradients(residual, (residual * -lr).add_(weights), 0)
