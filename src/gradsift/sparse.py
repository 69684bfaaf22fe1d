"""Sparse vectors as sets of (index, value) pairs, and the operations that sparsifiers are built from.

Shapes: D dimensions, N clients, k elements. Every operation works on one vector [D] or [k] and, row by row, on [N, D]
or [N, k]. The operations of a round do not make the host wait for a CUDA device: the sizes of their results are known
beforehand, and sorting all elements is quicker there than reading back which of them need it.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from gradsift.errors import GradsiftError

_SCATTER_ELEMENTS = 2**27  # on CUDA, rows are made dense in groups of at most this many elements: half a gigabyte
_LONG_ROW = 2**24  # on CUDA, longer rows are not made dense: adding their few elements to the sum is quicker
_SWAP_PASSES = 6  # attempts to order ties by swapping neighbours before sorting
_BLOCK_ELEMENTS, _BLOCK_RATIO = 2**20, 32  # on the CPU, top_k works by blocks from this many elements, and this D / k


def queued(values: Tensor) -> bool:
    """Whether operations on ``values`` are queued, so that reading a result makes the host wait: true on CUDA."""
    return values.is_cuda


class Sparse(NamedTuple):
    """A set of (index, value) pairs of a vector of ``dim`` elements; leading batch dimensions are allowed.

    The order of the pairs has no meaning: a codec may change it.
    """

    indices: Tensor  # int64 [..., k], distinct within a row
    values: Tensor  # [..., k]
    dim: int

    @property
    def size(self) -> int:
        """Elements in each row."""
        return self.indices.shape[-1]

    def to(self, device: torch.device) -> "Sparse":
        """The set on another device."""
        if self.values.device == device:
            return self
        return type(self)(self.indices.to(device), self.values.to(device), self.dim)

    def rows(self, part: slice | Tensor) -> "Sparse":
        """A selection of the rows."""
        return type(self)(self.indices[part], self.values[part], self.dim)

    def with_values(self, values: Tensor) -> "Sparse":
        """The same indices with other values, which may be in another order of size."""
        kind = Sparse if isinstance(self, Ranked) else type(self)
        return kind(self.indices, values, self.dim)

    @property
    def span(self) -> int:
        """How many different indices may occur: ``dim``, and one more if rows are padded."""
        return self.dim

    @property
    def lengths(self) -> list[int]:
        """The number of elements in each row of [N, k], without padding."""
        counts: list[int] = (self.indices < self.dim).sum(dim=-1).tolist()
        return counts


class _Special(Sparse):
    """A Sparse with a known structure, which ``_replace`` might destroy and therefore drops."""

    __slots__ = ()

    def _replace(self, **changes: Any) -> Sparse:  # type: ignore[override]
        return Sparse(*self)._replace(**changes)


class Ranked(_Special):
    """A Sparse whose rows are in the order of ``rank``."""

    __slots__ = ()


class Whole(_Special):
    """A Sparse with all elements of each row, in the order of their indices."""

    __slots__ = ()


class Ragged(_Special):
    """A Sparse whose rows have different lengths, padded with the index ``dim`` and the value 0."""

    __slots__ = ()

    @property
    def span(self) -> int:
        """One more than ``dim``, for the padding."""
        return self.dim + 1


def top_k(dense: Tensor, k: int | Sequence[int]) -> Sparse:
    """The k elements of each row with the largest absolute values; ties go to the lowest indices.

    ``k`` may be a sequence with one number per row. The result is in the order of ``rank``, or of indices if k = D.
    """
    dim = dense.shape[-1]
    if isinstance(k, Sequence):
        return largest(top_k(dense, max(k)), k)
    if not 1 <= k <= dim:
        raise GradsiftError(f"k must be in [1, {dim}], got {k!r}")
    if k == dim:
        return everything(dense)
    if not queued(dense) and dense.numel() >= _BLOCK_ELEMENTS and dim >= _BLOCK_RATIO * k:
        by_blocks = _top_k_by_blocks(dense, k)
        if by_blocks is not None:
            return by_blocks
    magnitude = dense.abs()
    if queued(dense) and _takes_lowest_first(dense.device):
        indices = magnitude.topk(k, dim=-1, sorted=False).indices
        del magnitude  # it takes as much memory as ``dense``
        return _sorted_by_size(Sparse(indices, dense.gather(-1, indices), dim))
    # torch.topk breaks ties arbitrarily. The element after the k-th shows whether there is a tie at the threshold; then
    # the tied elements are chosen here. Ties among the chosen are put in order afterwards.
    top, indices = magnitude.topk(k + 1, dim=-1)
    crowded = top[..., k - 1] == top[..., k]
    top, indices = top[..., :k], indices[..., :k]
    if bool(crowded.any()):
        indices[crowded] = _lowest_of_ties(magnitude[crowded], top[crowded, -1:], k)
    elif _ties_ordered(top, indices):
        return Ranked(indices, dense.gather(-1, indices), dim)
    return rank(Sparse(indices, dense.gather(-1, indices), dim))


def _top_k_by_blocks(dense: Tensor, k: int) -> Sparse | None:
    """``top_k`` of only the k + 1 blocks with the largest maxima; None if the last of them ties with another block.

    Each of these blocks has an element as large as the last maximum, so they contain the k + 1 largest elements. The
    full row is only read; torch.topk would allocate 16 bytes for every element of it, and ``abs`` another 4.
    """
    dim = dense.shape[-1]
    length = math.isqrt(dim // k)  # of a block: balances the number of blocks with the elements in k blocks
    blocks = dim // length
    body = dense[..., : length * blocks].view(*dense.shape[:-1], length, blocks)  # a block is a column
    peaks = torch.maximum(body.amax(-2), body.amin(-2).neg_())
    maxima, chosen = peaks.topk(k + 2, dim=-1)
    if bool((maxima[..., k] == maxima[..., k + 1]).any()):
        return None
    chosen = chosen[..., : k + 1].sort(dim=-1).values.unsqueeze(-2)
    chosen = chosen.expand(*chosen.shape[:-2], length, k + 1)
    tail = torch.arange(length * blocks, dim).expand(*dense.shape[:-1], -1)
    columns = torch.cat([(chosen + blocks * torch.arange(length)[:, None]).flatten(-2), tail], dim=-1)  # ascending
    top = top_k(torch.cat([body.gather(-1, chosen).flatten(-2), dense[..., length * blocks :]], dim=-1), k)
    return Ranked(columns.gather(-1, top.indices), top.values, dim)


def _ties_ordered(top: Tensor, indices: Tensor) -> bool:
    """Swap neighbours of equal size until their indices ascend; False if there are too many, and a sort is quicker."""
    equal = top[..., 1:] == top[..., :-1]
    for _ in range(_SWAP_PASSES):
        descending = equal & (indices[..., 1:] < indices[..., :-1])
        descending[..., 1:] &= ~descending[..., :-1]  # swaps must not overlap
        if not bool(descending.any()):
            return True
        *row, left = descending.nonzero(as_tuple=True)
        first, second = (*row, left), (*row, left + 1)
        indices[first], indices[second] = indices[second], indices[first]
    return False


@functools.cache
def _takes_lowest_first(device: torch.device) -> bool:
    """Whether unsorted ``topk`` on this device resolves ties to the lowest indices and returns ties in their order.

    Radix selection does so, and then one stable sort gives the order of ``rank``. torch does not guarantee it, so it is
    tried once on rows full of ties, short and long ones because torch selects from them in different ways.
    """
    generator = torch.Generator().manual_seed(0)
    for rows, dim in ((3, 50), (64, 5_000), (2, 300_000), (32, 300_000), (1, 2_000_000)):
        trial = torch.randint(0, 9, (rows, dim), generator=generator).float().to(device)
        for k in sorted({1, 7, dim // 9, dim // 2, dim - 1}):
            indices = trial.topk(k, sorted=False).indices
            ranked = _sorted_by_size(Sparse(indices, trial.gather(-1, indices), dim)).indices
            if not torch.equal(ranked, trial.argsort(dim=-1, descending=True, stable=True)[:, :k]):
                return False
    return True


def _sorted_by_size(sparse: Sparse) -> Ranked:
    """``rank`` for rows whose ties are already in the order of their indices."""
    order = sparse.values.abs().argsort(dim=-1, descending=True, stable=True)
    return Ranked(sparse.indices.gather(-1, order), sparse.values.gather(-1, order), sparse.dim)


def _lowest_of_ties(magnitude: Tensor, threshold: Tensor, k: int) -> Tensor:
    """The indices of all elements above the threshold, and of the first of those at it, k in total."""
    above = magnitude > threshold
    tied = magnitude == threshold
    room = k - above.sum(dim=-1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(dim=-1) <= room))
    return chosen.nonzero()[:, -1].view(*magnitude.shape[:-1], k)


def everything(dense: Tensor) -> Whole:
    """All elements of each row. The values are ``dense`` itself, not a copy."""
    dim = dense.shape[-1]
    return Whole(torch.arange(dim, device=dense.device).expand(dense.shape), dense, dim)


def nothing(dense: Tensor) -> Sparse:
    """The empty set for each row of ``dense``."""
    empty = dense.new_empty((*dense.shape[:-1], 0))
    return Sparse(empty.long(), empty, dense.shape[-1])


def rank(sparse: Sparse) -> Ranked:
    """The same sets with each row ordered by absolute value, largest first, and ties by index, lowest first."""
    if isinstance(sparse, Ranked):
        return sparse
    indices, values, dim = sparse
    if not queued(values) and _is_ranked(sparse):
        return Ranked(indices, values, dim)
    if not isinstance(sparse, Whole):
        by_index = indices.argsort(dim=-1)
        indices, values = indices.gather(-1, by_index), values.gather(-1, by_index)
    return _sorted_by_size(Sparse(indices, values, dim))


def _is_ranked(sparse: Sparse) -> bool:
    """Whether the elements are already in the order of ``rank``: on the CPU testing costs far less than sorting."""
    magnitude, indices = sparse.values.abs(), sparse.indices
    left, right = magnitude[..., :-1], magnitude[..., 1:]
    ascending = indices[..., :-1] < indices[..., 1:]
    return bool(((left > right) | ((left == right) & ascending)).all())


def largest(sparse: Sparse, k: int | Sequence[int]) -> Sparse:
    """The first k elements of each row in the order of ``rank``. ``k`` may be a sequence with one number per row."""
    if isinstance(k, Sequence):
        return first_places(rank(largest(sparse, max(k))), k)
    if isinstance(sparse, Whole):
        return top_k(sparse.values, k)
    indices, values, dim = rank(sparse)
    kind = Ragged if isinstance(sparse, Ragged) else Ranked
    return kind(indices[..., :k], values[..., :k], dim)


def first_places(sparse: Sparse, lengths: Sequence[int]) -> Ragged:
    """The first ``lengths[i]`` elements of each row i of [N, k], in their present order."""
    ends = torch.tensor(lengths, device=sparse.indices.device)[:, None]
    return masked(sparse, torch.arange(sparse.size, device=ends.device) >= ends)


def masked(sparse: Sparse, unused: Tensor) -> Ragged:
    """The rows without the elements where ``unused`` is True: padding takes their place."""
    return Ragged(sparse.indices.masked_fill(unused, sparse.dim), sparse.values.masked_fill(unused, 0), sparse.dim)


def densify(sparse: Sparse) -> Tensor:
    """The full vector(s), zero where the set has no element. A Whole returns its own values, not a copy."""
    if isinstance(sparse, Whole):
        return sparse.values
    full = sparse.values.new_zeros((*sparse.values.shape[:-1], sparse.span))
    return full.scatter_(-1, sparse.indices, sparse.values)[..., : sparse.dim]


def members(indices: Tensor, dim: int) -> Tensor:
    """[D] whether each coordinate is among ``indices``, which may have any shape."""
    return torch.zeros(dim, dtype=torch.bool, device=indices.device).index_fill_(0, indices.reshape(-1), True)


def kept(upload: Sparse, merged: Sparse) -> Tensor:
    """[..., k] whether each element of an upload is among those of ``merged``."""
    return members(merged.indices, upload.span)[upload.indices]


def weighted_sum(rows: Sparse, share: Tensor) -> Sparse:
    """The share-weighted sum of the N rows [N, k], over the union of their indices, ordered by index."""
    total = dense_sum(rows, share)
    if rows.size == 0:
        return nothing(total)  # ``nonzero`` would make the host wait for a CUDA device
    if isinstance(rows, Whole):
        return everything(total)
    indices = members(rows.indices, rows.span)[: rows.dim].nonzero().squeeze(-1)
    return Sparse(indices, total[indices], rows.dim)


def dense_sum(rows: Sparse, share: Tensor) -> Tensor:
    """[D] the share-weighted sum of the N rows [N, k], bit for bit the same in every run on a device.

    It does not depend on the order inside a row: on the CPU each coordinate is summed in the order of the clients, on
    CUDA in another fixed order.
    """
    if share.shape != rows.indices.shape[:1]:
        raise GradsiftError(f"share must have shape {list(rows.indices.shape[:1])}, got {list(share.shape)}")
    wide = torch.promote_types(rows.values.dtype, torch.float32)  # half precision is too coarse to sum in
    values = rows.values.to(wide)
    share = share.to(values.device, wide, non_blocking=values.is_cuda)  # to the CPU it must block
    total, whole = values.new_zeros(rows.span), isinstance(rows, Whole)
    if rows.size == 0:
        return total[: rows.dim]
    # Products are rounded before they are added, for all kinds of rows: B' - B is then zero where both sum the same.
    if rows.dim > _LONG_ROW if queued(values) else whole:
        for row, indices, weight in zip(values, rows.indices, share, strict=True):
            total = total.add_(row * weight) if whole else total.index_add_(0, indices, row * weight)
        return total[: rows.dim]
    if not queued(values):
        contributions = values * share[:, None]
        return total.index_add_(0, rows.indices.reshape(-1), contributions.reshape(-1))[: rows.dim]
    # CUDA's index_add_ adds repeated indices in any order, and its index_put_ sorts first: a matrix product of dense
    # rows is reproducible, and quicker.
    step, total = max(1, _SCATTER_ELEMENTS // rows.dim), total[: rows.dim]
    for first in range(0, len(share), step):
        part = slice(first, first + step)
        total += share[part] @ densify(type(rows)(rows.indices[part], values[part], rows.dim))
    return total


def difference(left: Sparse, right: Sparse) -> Sparse:
    """left - right for two sets [k], over the union of their indices without exact zeros."""
    if left.dim != right.dim:
        raise GradsiftError(f"dimensions differ: {left.dim} and {right.dim}")
    change = densify(left) - densify(right)
    indices = change.nonzero().squeeze(-1)
    return Sparse(indices, change[indices], left.dim)


def stack(uploads: Sequence[Sparse]) -> Sparse:
    """The uploads [k] of N clients as one [N, k], padded if their lengths differ."""
    if not uploads:
        raise GradsiftError("stack needs at least one upload")
    for upload in uploads:
        if upload.dim != uploads[0].dim or upload.indices.dim() != 1 or upload.indices.shape != upload.values.shape:
            shapes = [(upload.dim, list(upload.indices.shape), list(upload.values.shape)) for upload in uploads]
            raise GradsiftError(f"uploads must be [k] of the same dimension, got (dim, indices, values): {shapes}")
    return concatenate([Sparse(upload.indices[None], upload.values[None], upload.dim) for upload in uploads])


def concatenate(parts: Sequence[Sparse]) -> Sparse:
    """The rows of several [n, k] as one, padded if their lengths differ."""
    first, longest = parts[0], max(part.size for part in parts)
    kind = Ragged if any(isinstance(part, Ragged) or part.size < longest for part in parts) else type(first)
    indices = [functional.pad(part.indices, (0, longest - part.size), value=first.dim) for part in parts]
    values = [functional.pad(part.values, (0, longest - part.size)) for part in parts]
    return kind(torch.cat(indices), torch.cat(values), first.dim)
