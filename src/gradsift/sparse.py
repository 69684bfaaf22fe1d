"""Sparse vectors as sets of (index, value), and the few operations every sparsifier is made of.

Shapes: D dimensions, N clients, k elements. Everything works on one vector [D] or [k] and, row by row, on [N, D] or
[N, k]; nothing here loops over clients or elements.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradsift.errors import GradsiftError


class Sparse(NamedTuple):
    """A set of (index, value) pairs of a vector of ``dim`` elements; leading batch dimensions allowed.

    The order of the elements means nothing: a codec may change it, and whoever needs an order makes it.
    """

    indices: Tensor  # int64 [..., k], distinct within a row
    values: Tensor  # [..., k]
    dim: int

    @property
    def size(self) -> int:
        """Elements in each row."""
        return self.indices.shape[-1]


def top_k(dense: Tensor, k: int) -> Sparse:
    """The k elements of each row with the largest absolute values; of equal ones, those with the lowest indices."""
    dim = dense.shape[-1]
    if not 1 <= k <= dim:
        raise GradsiftError(f"k must be in [1, {dim}], got {k!r}")
    if k == dim:
        return everything(dense)
    magnitude = dense.abs()
    top = magnitude.topk(k, dim=-1, sorted=False)
    threshold = top.values.amin(dim=-1, keepdim=True)
    indices = top.indices.sort(dim=-1).values
    # torch.topk breaks ties as it likes: where more elements reach the threshold than fit, choose among them ourselves.
    crowded = (magnitude >= threshold).sum(dim=-1) > k
    if bool(crowded.any()):
        if dense.dim() == 1:
            indices = _lowest_of_ties(magnitude, threshold, k)
        else:
            indices[crowded] = _lowest_of_ties(magnitude[crowded], threshold[crowded], k)
    return Sparse(indices, dense.gather(-1, indices), dim)


def _lowest_of_ties(magnitude: Tensor, threshold: Tensor, k: int) -> Tensor:
    above = magnitude > threshold
    tied = magnitude == threshold
    room = k - above.sum(dim=-1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(dim=-1) <= room))
    return chosen.nonzero()[:, -1].view(*magnitude.shape[:-1], k)


def everything(dense: Tensor) -> Sparse:
    """All elements of each row; the values are ``dense`` itself, not a copy."""
    dim = dense.shape[-1]
    return Sparse(torch.arange(dim, device=dense.device).expand(dense.shape), dense, dim)


def nothing(dense: Tensor) -> Sparse:
    """No element of any row: an empty message about ``dense``."""
    empty = dense.new_empty((*dense.shape[:-1], 0))
    return Sparse(empty.long(), empty, dense.shape[-1])


def rank(sparse: Sparse) -> Sparse:
    """The same sets, each row ordered by absolute value, largest first; equal ones by index, lowest first."""
    by_index = sparse.indices.argsort(dim=-1)
    indices, values = sparse.indices.gather(-1, by_index), sparse.values.gather(-1, by_index)
    by_value = values.abs().argsort(dim=-1, descending=True, stable=True)
    return Sparse(indices.gather(-1, by_value), values.gather(-1, by_value), sparse.dim)


def densify(sparse: Sparse) -> Tensor:
    """The full vector(s), zero where the set has no element."""
    full = sparse.values.new_zeros((*sparse.values.shape[:-1], sparse.dim))
    return full.scatter(-1, sparse.indices, sparse.values)


def weighted_sum(rows: Sparse, share: Tensor) -> Sparse:
    """The share-weighted sum of the N rows [N, k], over the union of their indices, ordered by index.

    Each element is summed in the order of the clients, so the result does not depend on the order inside a row.
    """
    if share.shape != rows.indices.shape[:1]:
        raise GradsiftError(f"share must have shape {list(rows.indices.shape[:1])}, got {list(share.shape)}")
    flat = rows.indices.reshape(-1)
    wide = torch.promote_types(rows.values.dtype, torch.float32)  # half precision is for sending, not for summing
    contributions = (rows.values.to(wide) * share.to(rows.values.device, wide)[:, None]).reshape(-1)
    total = _accumulate(contributions.new_zeros(rows.dim), flat, contributions)
    touched = torch.zeros(rows.dim, dtype=torch.bool, device=flat.device)
    touched[flat] = True
    indices = touched.nonzero().squeeze(-1)
    return Sparse(indices, total[indices], rows.dim)


def _accumulate(total: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    # Both add in the order given; CUDA's index_add_ would add in any order, and a run would not repeat.
    if total.is_cuda:
        return total.index_put_((indices,), values, accumulate=True)
    return total.index_add_(0, indices, values)


def restrict(sparse: Sparse, indices: Tensor) -> Sparse:
    """The elements of one vector [k] at ``indices``, all of which it holds, ordered by index."""
    indices = indices.sort().values
    return Sparse(indices, densify(sparse)[indices], sparse.dim)


def difference(left: Sparse, right: Sparse) -> Sparse:
    """left - right of two vectors [k], over the union of their indices; exact zeros are left out."""
    if left.dim != right.dim:
        raise GradsiftError(f"dimensions differ: {left.dim} and {right.dim}")
    change = densify(left) - densify(right)
    indices = change.nonzero().squeeze(-1)
    return Sparse(indices, change[indices], left.dim)


def stack(uploads: Sequence[Sparse]) -> Sparse:
    """The uploads of N clients, [k] each, as one [N, k]."""
    if not uploads:
        raise GradsiftError("no clients: there is no upload to stack")
    shapes = {(upload.dim, tuple(upload.indices.shape), tuple(upload.values.shape)) for upload in uploads}
    if len(shapes) > 1:
        raise GradsiftError(f"uploads differ in (dim, indices, values) shapes: {sorted(shapes)}")
    indices = torch.stack([upload.indices for upload in uploads])
    return Sparse(indices, torch.stack([upload.values for upload in uploads]), uploads[0].dim)
