"""FAB-top-k, fairness-aware bidirectional top-k: Algorithm 1 of Han, Wang, Leung (ICDCS 2020), Section III-B.

The paper finds kappa, the number of top elements taken from every client, by binary search over set unions. The same
set needs no search: give each coordinate its best rank over the clients; the coordinates of rank below kappa are the
union of the clients' top kappa, and kappa is where their count would pass k.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradsift.round import Round
from gradsift.sparse import Sparse, rank, restrict, top_k, weighted_sum
from gradsift.sparsify.base import Sparsifier


@dataclass(frozen=True)
class FabTopK(Sparsifier):
    """Up: each client's k largest. Down: k elements, at least floor(k/N) of them from every client."""

    def choose(self, residual: Tensor, rnd: Round) -> Sparse:
        """J_i: the top k of each accumulated gradient."""
        return top_k(residual, rnd.k)

    def combine(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """J by fair selection; b_j over everyone who sent j, whatever its rank there."""
        total = weighted_sum(uploads, share)
        return total if total.size <= rnd.k else restrict(total, fair_selection(uploads, rnd.k))


def fair_selection(uploads: Sparse, k: int) -> Tensor:
    """J: the k coordinates that come first by (best rank over clients, largest |a_ij| at that rank, lowest index)."""
    ranked = rank(uploads)
    levels = ranked.size
    ranks = torch.arange(levels, device=ranked.indices.device).expand_as(ranked.indices)
    best = ranks.new_full((uploads.dim,), levels).scatter_reduce(
        0, ranked.indices.reshape(-1), ranks.reshape(-1), "amin"
    )

    # union[r]: how many coordinates have a best rank of at most r, which is |union of the clients' top r+1|.
    union = torch.bincount(best, minlength=levels + 1)[:levels].cumsum(0)
    kappa = int((union <= k).sum())
    chosen = (best < kappa).nonzero().squeeze(-1)
    room = k - chosen.shape[0]
    if room == 0 or kappa == levels:
        return chosen

    # The fill: of the coordinates first reached at rank kappa (the paper's kappa + 1), those largest there.
    level, magnitude = ranked.indices[:, kappa], ranked.values[:, kappa].abs()
    largest = magnitude.new_zeros(uploads.dim).scatter_reduce(0, level, magnitude, "amax")
    candidates = (best == kappa).nonzero().squeeze(-1)
    fill = rank(Sparse(candidates, largest[candidates], uploads.dim)).indices[:room]
    return torch.cat([chosen, fill])
