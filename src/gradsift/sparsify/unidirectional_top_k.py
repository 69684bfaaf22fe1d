"""Unidirectional top-k: only the uplink is limited to k; the downlink is the union of all uploads, up to kN elements.

Lin et al., Deep Gradient Compression (ICLR 2018), as in the paper's comparison (Section V-A, item 1).
"""

from dataclasses import dataclass

from torch import Tensor

from gradsift.sparse import Sparse, weighted_sum
from gradsift.sparsify.base import Round, TopKUpload


@dataclass(frozen=True)
class UnidirectionalTopK(TopKUpload):
    """Up: each client's k largest. Down: all elements that any client sent."""

    def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """The share-weighted sum over the union."""
        del rnd
        return weighted_sum(uploads, share)
