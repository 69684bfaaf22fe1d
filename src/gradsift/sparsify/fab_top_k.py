"""FAB-top-k, fairness-aware bidirectional top-k: Algorithm 1 of Han, Wang, Leung (ICDCS 2020), Section III-B.

The paper finds kappa, the number of top elements taken from every client, by binary search over set unions. The same
set needs no search: give each coordinate its best rank over the clients; the coordinates of rank below kappa are the
union of the clients' top kappa, and kappa is where their count would pass k.
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
        """J by fair selection; b_j over everyone who sent j, whatever its rank there."""
        total = dense_sum(uploads, share)
        chosen = fair_selection(uploads, rnd.k)
        return Sparse(chosen, total[chosen], uploads.dim)


def fair_selection(uploads: Sparse, k: int) -> Tensor:
    """J: the k coordinates that come first by (best rank over clients, largest |a_ij| at that rank, lowest index)."""
    ranked = rank(uploads)
    where, levels = ranked.indices.reshape(-1), ranked.size
    ranks = torch.arange(levels, dtype=torch.int32, device=where.device).expand_as(ranked.indices)
    best = ranks.new_full((uploads.span,), levels).scatter_reduce_(0, where, ranks.reshape(-1), "amin")
    leading = ranked.values.abs().where(ranks == best[ranked.indices], 0)
    size = leading.new_zeros(uploads.span).scatter_reduce_(0, where, leading.reshape(-1), "amax")[: uploads.dim]
    best = best[: uploads.dim]

    if sparse.queued(best) and levels >= k:
        # Where every client sent k elements the answer is never short, and a CUDA device sorts all coordinates sooner
        # than it tells the host how many there are.
        by_size = size.argsort(descending=True, stable=True)
        return by_size[best[by_size].argsort(stable=True)][:k]
    # All coordinates of best rank below kappa, where their count would pass k, and the largest of those at kappa.
    union = torch.bincount(best, minlength=levels + 1)[:levels].cumsum(0)  # [r]: |union of the clients' top r + 1|
    kappa = int((union <= k).sum())
    sure = (best < kappa).nonzero().squeeze(-1)
    edge = (best == kappa).nonzero().squeeze(-1) if kappa < levels else sure[:0]
    return torch.cat([sure, edge[size[edge].argsort(descending=True, stable=True)][: k - len(sure)]])
