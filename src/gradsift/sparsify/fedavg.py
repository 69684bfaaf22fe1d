"""FedAvg: local steps, and a dense exchange every max(1, floor(D/(2k))) rounds.

McMahan et al. (AISTATS 2017), with the period that gives it the same average traffic as k-element methods that pay for
indices (the paper's Section V-A, item 4). A client's residual is the sum of its local gradients since the last
exchange, so its local weights are ``weights - lr * residual``, and the average of the clients' weights is
``weights - lr *`` the average of their residuals: FedAvg in the same three phases. The step size must not change
inside a period.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradsift.round import Round
from gradsift.sparse import Sparse, everything, nothing, weighted_sum
from gradsift.sparsify.base import Sparsifier


@dataclass(frozen=True)
class FedAvg(Sparsifier):
    """Up and down: nothing inside a period, all D elements without indices at its end."""

    dense: ClassVar[bool] = True

    def period(self, dim: int, k: int) -> int:
        """Rounds from one exchange to the next."""
        return max(1, dim // (2 * k))

    def point(self, weights: Tensor, residual: Tensor, lr: float) -> Tensor:
        """Each client's own weights: it has taken its local steps."""
        return (residual * -lr).add_(weights)  # one buffer of their size, not two

    def choose(self, residual: Tensor, rnd: Round) -> Sparse:
        """The whole local drift in the last round of a period, an empty message before."""
        ends = rnd.number % self.period(residual.shape[-1], rnd.k) == 0
        return everything(residual) if ends else nothing(residual)

    def combine(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """The share-weighted average of the drifts; empty for empty uploads."""
        del rnd
        return weighted_sum(uploads, share)
