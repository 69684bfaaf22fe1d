"""Periodic-k: k random coordinates a round, the same for all clients, every coordinate once before any comes again.

Jiang and Agrawal (NeurIPS 2018) and Konecny et al. (2016), as the paper compares it (Section V-A, item 3). A pass over
all D coordinates follows one random permutation; the last round of a pass sends what remains of it. ``Round.offset``
says how many elements each client has sent before, so k may change every round.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from gradsift.draws import rng
from gradsift.round import Round
from gradsift.sparse import Sparse, dense_sum, members
from gradsift.sparsify.base import Sparsifier


@dataclass(frozen=True)
class PeriodicK(Sparsifier):
    """Up and down: the next k coordinates of the current permutation."""

    def choose(self, residual: Tensor, rnd: Round) -> Sparse:
        """The accumulated gradients at this round's coordinates."""
        coordinates = self.coordinates(residual.shape[-1], rnd).to(residual.device, non_blocking=True)
        indices = coordinates.expand(*residual.shape[:-1], -1)
        return Sparse(indices, residual.gather(-1, indices), residual.shape[-1])

    def combine(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """The share-weighted sum; all clients sent the same coordinates."""
        del rnd
        indices = uploads.indices[0]
        return Sparse(indices, dense_sum(uploads, share)[indices], uploads.dim)

    def prefix(self, uploads: Sparse, rnd: Round, probe_k: int) -> Sparse:
        """The first k' of the permutation's order are what a round at k' would have sent."""
        wanted = self.coordinates(uploads.dim, rnd._replace(k=probe_k)).to(uploads.indices.device)
        sent = members(wanted, uploads.dim)[
            uploads.indices
        ]  # as many in each row, since all clients sent the same coordinates
        rows = uploads.indices.shape[:-1]
        return Sparse(uploads.indices[sent].view(*rows, -1), uploads.values[sent].view(*rows, -1), uploads.dim)

    def coordinates(self, dim: int, rnd: Round) -> Tensor:
        """The coordinates of this round, in the order of the permutation: k of them, or what the pass has left."""
        done, start = divmod(rnd.offset, dim)
        return _permutation(dim, rnd.seed, done)[start : start + rnd.k].clone()  # whoever writes to it, not the cache


@functools.lru_cache(maxsize=4)
def _permutation(dim: int, seed: int, done: int) -> Tensor:
    return torch.from_numpy(rng(seed, "permutation", number=done).permutation(dim))
