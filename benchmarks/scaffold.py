"""SCAFFOLD's drift correction as a local computation, for benchmarks.local_steps."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradsift.local import AddGradients, LocalSteps, register_local_computation


@register_local_computation("scaffold")
@dataclass(frozen=True)
class Scaffold(LocalSteps):
    """Local steps with the drift correction of SCAFFOLD (Karimireddy et al., ICML 2020), which is sent for nothing.

    Each step adds c - c_i to the gradient of client i, where c_i is the mean of its gradients in the round before, and
    c the mean of all c_i. For an experiment only: all clients take part, in one chunk, a run cannot be resumed, and of
    the options of local steps only the rate counts. A residual of zeros begins a new run.
    """

    memory: ClassVar[dict[str, Tensor]] = {}

    def accumulate(self, residual: Tensor, weights: Tensor, lr: float, add_gradients: AddGradients) -> None:
        """a_i <- a_i + drift / lr."""
        own = self.memory.get("own")
        own = torch.zeros_like(residual) if own is None or not residual.any() else own
        correction = own.mean(dim=0) - own
        gradients, drift = torch.zeros_like(residual), torch.zeros_like(residual)
        for step in range(self.steps):
            gradient = torch.zeros_like(residual)
            add_gradients(gradient, (drift * -lr).add_(weights) if step else weights, step)
            gradients += gradient
            drift.add_(gradient + correction, alpha=self.rate)
        self.memory["own"] = gradients / self.steps
        residual += drift
