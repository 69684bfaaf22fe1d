"""Always-send-all: every client sends its whole gradient in every round, which is plain SGD on the pooled gradient.

The paper's item 5 of Section V-A.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradsift.sparse import Sparse, everything, weighted_sum
from gradsift.sparsify.base import Round, Sparsifier


@dataclass(frozen=True)
class SendAll(Sparsifier):
    """Up and down: all D elements, without indices; k plays no part."""

    dense: ClassVar[bool] = True

    def upload(self, residual: Tensor, rnd: Round) -> Sparse:
        """Everything."""
        del rnd
        return everything(residual)

    def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """The share-weighted sum of whole vectors."""
        del rnd
        return weighted_sum(uploads, share)
