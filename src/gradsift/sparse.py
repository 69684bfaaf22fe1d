"""Sparse vectors as sets of (index, value), and the few operations every sparsifier is made of.

Shapes: D dimensions, N clients, k elements. Everything works on one vector [D] or [k] and, row by row, on [N, D] or
[N, k]; nothing here loops over clients or elements.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradsift.errors import GradsiftError

_SCATTER_ELEMENTS = 2**27  # of the dense rows made at a time on CUDA: half a gigabyte


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
    """The k elements of each row with the largest absolute values; of equal ones, those with the lowest indices.

    They come in the order of ``rank``, except that all elements (k = D) come as they are.
    """
    dim = dense.shape[-1]
    if not 1 <= k <= dim:
        raise GradsiftError(f"k must be in [1, {dim}], got {k!r}")
    if k == dim:
        return everything(dense)
    magnitude = dense.abs()
    top, indices = magnitude.topk(k, dim=-1)
    # torch.topk breaks ties as it likes: where more elements reach the threshold than fit, choose among them ourselves,
    # and put the equal ones among the chosen in order.
    crowded = (magnitude >= top[..., -1:]).sum(dim=-1) > k
    swapped = ((top[..., 1:] == top[..., :-1]) & (indices[..., 1:] < indices[..., :-1])).any(dim=-1)
    if bool((crowded | swapped).any()):
        if dense.dim() == 1:
            indices = _lowest_of_ties(magnitude, top[..., -1:], k)
        elif bool(crowded.any()):
            indices[crowded] = _lowest_of_ties(magnitude[crowded], top[crowded, -1:], k)
        return rank(Sparse(indices, dense.gather(-1, indices), dim))
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
    indices, values, dim = sparse
    if _is_ranked(sparse):
        return sparse
    by_index = indices.argsort(dim=-1)
    indices, values = indices.gather(-1, by_index), values.gather(-1, by_index)
    by_value = values.abs().argsort(dim=-1, descending=True, stable=True)
    return Sparse(indices.gather(-1, by_value), values.gather(-1, by_value), dim)


def _is_ranked(sparse: Sparse) -> bool:
    """Whether the elements are in the order of ``rank`` already: a look costs far less than a sort."""
    magnitude, indices = sparse.values.abs(), sparse.indices
    left, right = magnitude[..., :-1], magnitude[..., 1:]
    rising = indices[..., :-1] < indices[..., 1:]
    return bool(((left > right) | ((left == right) & rising)).all())


def densify(sparse: Sparse) -> Tensor:
    """The full vector(s), zero where the set has no element."""
    full = sparse.values.new_zeros((*sparse.values.shape[:-1], sparse.dim))
    return full.scatter(-1, sparse.indices, sparse.values)


def weighted_sum(rows: Sparse, share: Tensor) -> Sparse:
    """The share-weighted sum of the N rows [N, k], over the union of their indices, ordered by index.

    The result does not depend on the order inside a row: on the CPU each element is summed in the order of the clients,
    on CUDA in an order that is always the same.
    """
    if share.shape != rows.indices.shape[:1]:
        raise GradsiftError(f"share must have shape {list(rows.indices.shape[:1])}, got {list(share.shape)}")
    touched = torch.zeros(rows.dim, dtype=torch.bool, device=rows.indices.device)
    touched[rows.indices.reshape(-1)] = True
    indices = touched.nonzero().squeeze(-1)
    wide = torch.promote_types(rows.values.dtype, torch.float32)  # half precision is for sending, not for summing
    total = _total(rows._replace(values=rows.values.to(wide)), share.to(rows.values.device, wide))
    return Sparse(indices, total[indices], rows.dim)


def _total(rows: Sparse, share: Tensor) -> Tensor:
    """[D] the weighted sum of the rows, always added in the same order, so that a run repeats bit for bit."""
    if not rows.values.is_cuda:
        contributions = rows.values * share[:, None]
        return contributions.new_zeros(rows.dim).index_add_(0, rows.indices.reshape(-1), contributions.reshape(-1))
    # CUDA's index_add_ adds in any order, and its index_put_ sorts first: dense rows and one product are quicker.
    total = rows.values.new_zeros(rows.dim)
    step = max(1, _SCATTER_ELEMENTS // rows.dim)
    for first in range(0, len(share), step):
        part = slice(first, first + step)
        total += share[part] @ densify(Sparse(rows.indices[part], rows.values[part], rows.dim))
    return total


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
