"""FAB-top-k, fairness-aware bidirectional top-k: Algorithm 1 of Han, Wang, Leung (ICDCS 2020), Section III-B.

The paper finds kappa, the number of top elements taken from every client, by binary search over set unions. No search
is needed: give each coordinate its best rank over the clients; then the coordinates of rank below kappa are the union
of the clients' top kappa elements, and kappa is the largest number for which this union has at most k elements.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradsift import sparse
from gradsift.sparse import Sparse, dense_sum, rank
from gradsift.sparsify.base import Round, TopKUpload


@dataclass(frozen=True)
class FabTopK(TopKUpload):
    """Up: each client's k largest. Down: k elements, at least floor(k/N) of them from every client."""

    def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """J by fair selection; b_j sums over all clients that sent j, at any rank."""
        total = dense_sum(uploads, share)
        chosen = fair_selection(uploads, rnd.k)
        return Sparse(chosen, total[chosen], uploads.dim)


def fair_selection(uploads: Sparse, k: int) -> Tensor:
    """J: the k coordinates that come first by (best rank over clients, largest |a_ij| at that rank, lowest index)."""
    ranked = rank(uploads)
    indices, levels = ranked.indices.reshape(-1), ranked.size
    ranks = torch.arange(levels, dtype=torch.int32, device=indices.device).expand_as(ranked.indices)
    best = ranks.new_full((uploads.span,), levels).scatter_reduce_(0, indices, ranks.reshape(-1), "amin")
    leading = ranked.values.abs().where(ranks == best[ranked.indices], 0)
    size = leading.new_zeros(uploads.span).scatter_reduce_(0, indices, leading.reshape(-1), "amax")[: uploads.dim]
    best = best[: uploads.dim]

    if sparse.queued(best) and levels >= k:
        # The union has at least k coordinates, since each client sent k. Sorting all D coordinates on a CUDA device is
        # quicker than reading back the size of the union.
        by_size = size.argsort(descending=True, stable=True)
        return by_size[best[by_size].argsort(stable=True)][:k]
    # All coordinates of best rank below kappa, and the largest of those of rank kappa.
    union_size = torch.bincount(best, minlength=levels + 1)[:levels].cumsum(0)  # [r]: of the clients' top r + 1
    kappa = int((union_size <= k).sum())
    below = (best < kappa).nonzero().squeeze(-1)
    at = (best == kappa).nonzero().squeeze(-1) if kappa < levels else below[:0]
    return torch.cat([below, at[size[at].argsort(descending=True, stable=True)][: k - len(below)]])
