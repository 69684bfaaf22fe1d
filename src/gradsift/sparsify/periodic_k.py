"""Periodic-k: k random coordinates a round, the same for all clients, every coordinate once before any comes again.

Jiang and Agrawal (NeurIPS 2018) and Konecny et al. (2016), as the paper compares it (Section V-A, item 3). A pass over
all D coordinates follows one random permutation; the last round of a pass sends what remains of it. ``Round.offset``
says how many elements each client has sent before, so k may change every round. A client whose own k is smaller sends
the first of the round's coordinates.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from gradsift.draws import rng
from gradsift.sparse import Ragged, Sparse, dense_sum, first_places, masked, members
from gradsift.sparsify.base import Round, Sparsifier


@dataclass(frozen=True)
class PeriodicK(Sparsifier):
    """Up and down: the next k coordinates of the current permutation."""

    def upload(self, residual: Tensor, rnd: Round) -> Sparse:
        """The accumulated gradients at this round's coordinates."""
        dim = residual.shape[-1]
        coordinates = self.coordinates(dim, rnd).to(residual.device, non_blocking=True)
        indices = coordinates.expand(*residual.shape[:-1], -1)
        values = residual.gather(-1, indices)
        sent = Sparse(indices, values, dim)
        return sent if rnd.client_k is None else first_places(sent, rnd.client_k)

    def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """The share-weighted sum at the round's coordinates."""
        indices = uploads.indices[0]
        if isinstance(uploads, Ragged):
            indices = self.coordinates(uploads.dim, rnd).to(indices.device)
        return Sparse(indices, dense_sum(uploads, share)[indices], uploads.dim)

    def truncate(self, uploads: Sparse, rnd: Round) -> Sparse:
        """The first k' of the permutation's order are what a round at k' would have sent."""
        where = self.coordinates(uploads.dim, rnd).to(uploads.indices.device)
        if isinstance(uploads, Ragged) or rnd.client_k is not None:
            return self._first(uploads, where, rnd)
        sent = members(where, uploads.dim)[uploads.indices]  # as many in each row: all sent the same coordinates
        rows = uploads.indices.shape[:-1]
        return Sparse(uploads.indices[sent].view(*rows, -1), uploads.values[sent].view(*rows, -1), uploads.dim)

    @staticmethod
    def _first(uploads: Sparse, where: Tensor, rnd: Round) -> Sparse:
        """``truncate`` of rows of different lengths: of each row the elements at the first of its coordinates."""
        order = torch.full((uploads.span,), len(where), device=where.device)
        order[where] = torch.arange(len(where), device=where.device)
        ends = torch.tensor(rnd.client_k or (rnd.k,), device=where.device)[:, None]
        return masked(uploads, order[uploads.indices] >= ends.clamp(max=len(where)))

    def coordinates(self, dim: int, rnd: Round) -> Tensor:
        """The coordinates of this round, in the order of the permutation: k of them, or what the pass has left."""
        done, start = divmod(rnd.offset, dim)
        return _permutation(dim, rnd.seed, done)[start : start + rnd.k].clone()  # whoever writes to it, not the cache


@functools.lru_cache(maxsize=4)
def _permutation(dim: int, seed: int, done: int) -> Tensor:
    return torch.from_numpy(rng(seed, "permutation", number=done).permutation(dim))
