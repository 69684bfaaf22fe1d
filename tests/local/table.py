"""Every local computation of the package, for the tests that run them all: a new one gets its line here."""

from collections.abc import Callable
from typing import Any, NamedTuple

from gradsift import LocalSteps
from tests.reference.literal import Vector
from tests.reference.local import Gradient, local_steps


class Row(NamedTuple):
    """How to build a local computation, and what it adds to one client's residual, in plain Python."""

    options: dict[str, Any]
    computations: int
    period: Callable[[int, int], int]  # (dim, k)
    added: Callable[[Vector, Vector, float, Gradient], Vector]  # (residual, weights, lr, gradient) -> residual


def every_round(dim: int, k: int) -> int:
    del dim, k
    return 1


def one_gradient(residual: Vector, weights: Vector, lr: float, gradient: Gradient) -> Vector:
    """Algorithm 1: a_i <- a_i + the gradient at the common weights."""
    del lr
    return [a + g for a, g in zip(residual, gradient(weights, 0), strict=True)]


def three_steps(residual: Vector, weights: Vector, lr: float, gradient: Gradient) -> Vector:
    """Steps down from the common weights; the gradients met on the way are added up, the residual plays no part."""
    return local_steps(LocalSteps(3), residual, weights, lr, gradient)


def periodic_averaging(residual: Vector, weights: Vector, lr: float, gradient: Gradient) -> Vector:
    """The residual is the way from the common weights to the client's own, where it takes its gradient."""
    own = [w - lr * a for w, a in zip(weights, residual, strict=True)]
    return [a + g for a, g in zip(residual, gradient(own, 0), strict=True)]


TABLE: dict[str, Row] = {
    "one-gradient": Row({}, 1, every_round, one_gradient),
    "local-steps": Row({"steps": 3}, 3, every_round, three_steps),
    "periodic-averaging": Row({}, 1, lambda dim, k: max(1, int(dim / (2 * k))), periodic_averaging),
}
