"""Periodic-k: k random coordinates per round, the same for all clients; each is sent once before any is sent again.

Jiang and Agrawal (NeurIPS 2018) and Konecny et al. (2016), as in the paper's comparison (Section V-A, item 3). A pass
over all D coordinates follows one random permutation; the last round of a pass sends the coordinates that remain.
``Round.offset`` counts the elements that each client has sent before, so k may change in every round. A client with a
smaller k than others sends the first of the round's coordinates.
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
        """The elements at the first k' of the round's coordinates."""
        coordinates = self.coordinates(uploads.dim, rnd).to(uploads.indices.device)
        if isinstance(uploads, Ragged) or rnd.client_k is not None:
            return self._ragged(uploads, coordinates, rnd)
        sent = members(coordinates, uploads.dim)[uploads.indices]  # equally many in each row
        rows = uploads.indices.shape[:-1]
        return Sparse(uploads.indices[sent].view(*rows, -1), uploads.values[sent].view(*rows, -1), uploads.dim)

    @staticmethod
    def _ragged(uploads: Sparse, coordinates: Tensor, rnd: Round) -> Sparse:
        """``truncate`` for rows of different lengths."""
        device, count = coordinates.device, len(coordinates)
        place = torch.full((uploads.span,), count, device=device)  # position of each coordinate in this round
        place[coordinates] = torch.arange(count, device=device)
        ends = torch.tensor(rnd.client_k or (rnd.k,), device=device)[:, None]
        return masked(uploads, place[uploads.indices] >= ends.clamp(max=count))

    def coordinates(self, dim: int, rnd: Round) -> Tensor:
        """The coordinates of this round in the order of the permutation: k, or the fewer that remain of the pass."""
        passes, start = divmod(rnd.offset, dim)
        return _permutation(dim, rnd.seed, passes)[start : start + rnd.k].clone()  # protects the cache from callers


@functools.lru_cache(maxsize=4)
def _permutation(dim: int, seed: int, passes: int) -> Tensor:
    return torch.from_numpy(rng(seed, "permutation", number=passes).permutation(dim))
