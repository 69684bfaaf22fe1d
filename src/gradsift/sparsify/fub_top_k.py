"""FUB-top-k, fairness-unaware bidirectional top-k: the server keeps the k largest elements of the aggregate.

The global top-k of Shi et al. (ICDCS 2019) and the bidirectional top-k of Sattler et al. (TNNLS 2019), with all uploads
sent to the server directly, as in the paper's comparison (Section V-A, item 2).
"""

from dataclasses import dataclass

from torch import Tensor

from gradsift import sparse
from gradsift.sparse import Sparse, dense_sum, members
from gradsift.sparsify.base import Round, TopKUpload


@dataclass(frozen=True)
class FubTopK(TopKUpload):
    """Up: each client's k largest. Down: the k largest |b_j|, whichever clients sent them."""

    def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """The k largest elements of the share-weighted sum of the uploads."""
        total = dense_sum(uploads, share)
        sent = members(uploads.indices, uploads.span)[: uploads.dim]
        if sparse.queued(total) and uploads.size >= rnd.k:  # the union has at least k elements
            chosen = total.abs().where(sent, -1).argsort(descending=True, stable=True)[: rnd.k]
        else:
            union = sent.nonzero().squeeze(-1)
            chosen = union[total[union].abs().argsort(descending=True, stable=True)[: rnd.k]]
        return Sparse(chosen, total[chosen], uploads.dim)
