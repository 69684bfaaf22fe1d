"""Local steps in plain Python: the slow obvious twin of ``gradsift.local.LocalSteps``, for one client."""

from collections.abc import Callable

import torch
from torch import Tensor

from gradsift.local import AddGradients, LocalComputation, LocalSteps
from tests.reference.literal import Vector

Gradient = Callable[[Vector, int], Vector]  # (where, local step) -> the gradient there


def local_steps(local: LocalSteps, residual: Vector, weights: Vector, lr: float, gradient: Gradient) -> Vector:
    """The residual after a round: what is kept of it, and how far the client came from the common weights, over lr."""
    own, velocity, way = list(weights), [0.0] * len(weights), [0.0] * len(weights)
    for step in range(local.steps):
        slope = gradient(own, step)
        for j, weight in enumerate(own):
            velocity[j] = local.momentum * velocity[j] + slope[j] + local.weight_decay * weight
            way[j] += local.rate * velocity[j]
            own[j] = weights[j] - lr * way[j]
    return [local.residual_decay * a + w for a, w in zip(residual, way, strict=True)]


class LiteralSteps(LocalComputation):
    """The local computation for one client [D]: tensors in, tensors out."""

    def __init__(self, local: LocalSteps) -> None:
        self.local = local

    @property
    def computations(self) -> int:
        """One gradient per local step."""
        return self.local.steps

    def accumulate(self, residual: Tensor, weights: Tensor, lr: float, add_gradients: AddGradients) -> None:
        """Add what the client computes to its residual, in place."""

        def gradient(where: Vector, step: int) -> Vector:
            found = torch.zeros_like(residual)
            add_gradients(found, torch.tensor(where, dtype=residual.dtype), step)
            numbers: Vector = found.tolist()
            return numbers

        after = local_steps(self.local, residual.tolist(), weights.tolist(), lr, gradient)
        residual.copy_(torch.tensor(after, dtype=residual.dtype))
