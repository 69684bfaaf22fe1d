"""Always-send-all, the paper's Section V-A, item 5: every client sends its full gradient in every round.

This is distributed SGD without compression.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradsift.sparse import Sparse, everything, weighted_sum
from gradsift.sparsify.base import Round, Sparsifier


@dataclass(frozen=True)
class SendAll(Sparsifier):
    """Up and down: all D elements, without indices; k has no effect."""

    dense: ClassVar[bool] = True

    def upload(self, residual: Tensor, rnd: Round) -> Sparse:
        """All D elements."""
        del rnd
        return everything(residual)

    def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """The share-weighted sum of the full vectors."""
        del rnd
        return weighted_sum(uploads, share)
