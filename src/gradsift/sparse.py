"""Sparse vectors as sets of (index, value), and the few operations every sparsifier is made of.

Shapes: D dimensions, N clients, k elements. Everything works on one vector [D] or [k] and, row by row, on [N, D] or
[N, k]; nothing here loops over elements, and over clients only where a row is very long. What a round needs does not
make the host wait for a CUDA device: sizes are known beforehand, and sorting everything is quicker there than asking
which part needs it.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from gradsift.errors import GradsiftError

_SCATTER_ELEMENTS = 2**27  # of the dense rows made at a time on CUDA: half a gigabyte
_LONG_ROW = 2**24  # elements of a row above which adding its few to a sum is quicker than making it dense, on CUDA
_EXCHANGES = 6  # of equal neighbours, before a whole sort
_MANY, _FEW = 2**20, 32  # on the CPU: elements in all, and elements for each that is chosen, that are worth blocks


def queued(values: Tensor) -> bool:
    """Whether work on these is queued, so that asking for a result makes the host wait: on CUDA."""
    return values.is_cuda


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

    def to(self, device: torch.device) -> "Sparse":
        """The same on another device."""
        if self.values.device == device:
            return self
        return type(self)(self.indices.to(device), self.values.to(device), self.dim)

    def rows(self, part: slice | Tensor) -> "Sparse":
        """Some of the rows."""
        return type(self)(self.indices[part], self.values[part], self.dim)

    def with_values(self, values: Tensor) -> "Sparse":
        """The same elements with other values."""
        return Sparse(self.indices, values, self.dim)

    @property
    def span(self) -> int:
        """How many different indices there may be: ``dim``, and one more where rows are padded."""
        return self.dim

    @property
    def lengths(self) -> list[int]:
        """Elements of each row of [N, k]."""
        return [self.size] * len(self.indices)


class _Known(Sparse):
    """A Sparse of which more is known, for as long as nothing of it is replaced."""

    __slots__ = ()

    def _replace(self, **changes: Any) -> Sparse:  # type: ignore[override]
        return Sparse(*self)._replace(**changes)


class Ranked(_Known):
    """The rows are in the order of ``rank``."""

    __slots__ = ()


class Whole(_Known):
    """All elements of each row, in the order of their indices."""

    __slots__ = ()

    def with_values(self, values: Tensor) -> Sparse:
        """The same elements with other values."""
        return Whole(self.indices, values, self.dim)


class Ragged(_Known):
    """Rows of different lengths: places of a row that are not used hold the index ``dim`` and the value 0."""

    __slots__ = ()

    def with_values(self, values: Tensor) -> "Sparse":
        """The same elements with other values."""
        return Ragged(self.indices, values, self.dim)

    @property
    def span(self) -> int:
        """One more than ``dim``, for the places that are not used."""
        return self.dim + 1

    @property
    def lengths(self) -> list[int]:
        """Elements of each row of [N, k]."""
        counts: list[int] = (self.indices < self.dim).sum(dim=-1).tolist()
        return counts


def top_k(dense: Tensor, k: int | Sequence[int]) -> Sparse:
    """The k elements of each row with the largest absolute values; of equal ones, those with the lowest indices.

    They come in the order of ``rank``, except that all elements (k = D) come as they are. ``k`` may be one number for
    each row.
    """
    dim = dense.shape[-1]
    if isinstance(k, Sequence):
        return largest(top_k(dense, max(k)), k)
    if not 1 <= k <= dim:
        raise GradsiftError(f"k must be in [1, {dim}], got {k!r}")
    if k == dim:
        return everything(dense)
    if not queued(dense) and dense.numel() >= _MANY and dim >= _FEW * k:
        found = _top_k_by_blocks(dense, k)
        if found is not None:
            return found
    magnitude = dense.abs()
    if queued(dense) and _takes_lowest_first(dense.device):
        indices = magnitude.topk(k, dim=-1, sorted=False).indices
        del magnitude  # as large as ``dense``
        return _sorted_by_size(Sparse(indices, dense.gather(-1, indices), dim))
    # torch.topk breaks ties as it likes: where more elements reach the threshold than fit, which one more shows, choose
    # among them ourselves, and put the equal ones among the chosen in order.
    top, indices = magnitude.topk(k + 1, dim=-1)
    crowded = top[..., k - 1] == top[..., k]
    top, indices = top[..., :k], indices[..., :k]
    if bool(crowded.any()):
        if dense.dim() == 1:
            indices = _lowest_of_ties(magnitude, top[..., -1:], k)
        else:
            indices[crowded] = _lowest_of_ties(magnitude[crowded], top[crowded, -1:], k)
    elif _put_ties_in_order(top, indices):
        return Ranked(indices, dense.gather(-1, indices), dim)
    return rank(Sparse(indices, dense.gather(-1, indices), dim))


def _top_k_by_blocks(dense: Tensor, k: int) -> Sparse | None:
    """``top_k`` of the few blocks that it can lie in; None: the last of them and another have equal maxima.

    Of the k + 1 blocks with the largest maxima each has an element as large as the last maximum, so the k + 1 largest
    elements are all there. What is read whole is only read: torch.topk would make 16 bytes of every element first, and
    the absolute values before it another 4, all of it in memory fresh from the system.
    """
    dim = dense.shape[-1]
    each = math.isqrt(dim // k)  # elements of a block: then there are about as many blocks as elements in k of them
    blocks = dim // each
    body = dense[..., : each * blocks].view(*dense.shape[:-1], each, blocks)  # a block is a column
    peaks = torch.maximum(body.amax(-2), body.amin(-2).neg_())
    top, chosen = peaks.topk(k + 2, dim=-1)
    if bool((top[..., k] == top[..., k + 1]).any()):
        return None
    chosen = chosen[..., : k + 1].sort(dim=-1).values.unsqueeze(-2)
    chosen = chosen.expand(*chosen.shape[:-2], each, k + 1)
    rest = torch.arange(each * blocks, dim).expand(*dense.shape[:-1], -1)
    where = torch.cat([(chosen + blocks * torch.arange(each)[:, None]).flatten(-2), rest], dim=-1)  # rising
    found = top_k(torch.cat([body.gather(-1, chosen).flatten(-2), dense[..., each * blocks :]], dim=-1), k)
    return Ranked(where.gather(-1, found.indices), found.values, dim)


def _put_ties_in_order(top: Tensor, indices: Tensor) -> bool:
    """Exchange neighbours of equal size until their indices rise; False: there are too many, and a sort is better.

    Among thousands of real gradient elements a few pairs are equal, by chance.
    """
    equal = top[..., 1:] == top[..., :-1]
    for _ in range(_EXCHANGES):
        falling = equal & (indices[..., 1:] < indices[..., :-1])
        falling[..., 1:] &= ~falling[..., :-1]  # of three in a row only the first two at once
        if not bool(falling.any()):
            return True
        *row, left = falling.nonzero(as_tuple=True)
        first, second = (*row, left), (*row, left + 1)
        indices[first], indices[second] = indices[second], indices[first]
    return False


@functools.cache
def _takes_lowest_first(device: torch.device) -> bool:
    """Whether this device's topk, unsorted, takes the lowest of equal elements and keeps equals in order.

    It does where it selects by radix, and then the order of ``rank`` is one stable sort away; torch does not promise
    it, so it is tried once, on rows short and long (which go different ways), full of ties.
    """
    generator = torch.Generator().manual_seed(0)
    for rows, dim in ((3, 50), (64, 5_000), (2, 300_000), (32, 300_000), (1, 2_000_000)):
        trial = torch.randint(0, 9, (rows, dim), generator=generator).float().to(device)
        for k in sorted({1, 7, dim // 9, dim // 2, dim - 1}):
            indices = trial.topk(k, sorted=False).indices
            got = _sorted_by_size(Sparse(indices, trial.gather(-1, indices), dim)).indices
            if not torch.equal(got, trial.argsort(dim=-1, descending=True, stable=True)[:, :k]):
                return False
    return True


def _sorted_by_size(sparse: Sparse) -> Ranked:
    """Ranked, of rows whose equal elements are in the order of their indices."""
    order = sparse.values.abs().argsort(dim=-1, descending=True, stable=True)
    return Ranked(sparse.indices.gather(-1, order), sparse.values.gather(-1, order), sparse.dim)


def _lowest_of_ties(magnitude: Tensor, threshold: Tensor, k: int) -> Tensor:
    above = magnitude > threshold
    tied = magnitude == threshold
    room = k - above.sum(dim=-1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(dim=-1) <= room))
    return chosen.nonzero()[:, -1].view(*magnitude.shape[:-1], k)


def everything(dense: Tensor) -> Whole:
    """All elements of each row; the values are ``dense`` itself, not a copy."""
    dim = dense.shape[-1]
    return Whole(torch.arange(dim, device=dense.device).expand(dense.shape), dense, dim)


def nothing(dense: Tensor) -> Sparse:
    """No element of any row: an empty message about ``dense``."""
    empty = dense.new_empty((*dense.shape[:-1], 0))
    return Sparse(empty.long(), empty, dense.shape[-1])


def rank(sparse: Sparse) -> Ranked:
    """The same sets, each row ordered by absolute value, largest first; equal ones by index, lowest first."""
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
    """Whether the elements are in the order of ``rank`` already: on the CPU a look costs far less than a sort."""
    magnitude, indices = sparse.values.abs(), sparse.indices
    left, right = magnitude[..., :-1], magnitude[..., 1:]
    rising = indices[..., :-1] < indices[..., 1:]
    return bool(((left > right) | ((left == right) & rising)).all())


def largest(sparse: Sparse, k: int | Sequence[int]) -> Sparse:
    """The first k elements of each row in the order of ``rank``; ``k`` may be one number for each row [N]."""
    if isinstance(k, Sequence):
        return first_places(rank(largest(sparse, max(k))), k)
    if isinstance(sparse, Whole):
        return top_k(sparse.values, k)
    indices, values, dim = rank(sparse)
    kind = Ragged if isinstance(sparse, Ragged) else Ranked
    return kind(indices[..., :k], values[..., :k], dim)


def first_places(sparse: Sparse, lengths: Sequence[int]) -> Ragged:
    """The elements in the first places of each row [N, k], as many as ``lengths`` says."""
    indices, values, dim = sparse
    ends = torch.tensor(lengths, device=indices.device)[:, None]
    beyond = torch.arange(sparse.size, device=indices.device) >= ends
    return Ragged(indices.masked_fill(beyond, dim), values.masked_fill(beyond, 0), dim)


def densify(sparse: Sparse) -> Tensor:
    """The full vector(s), zero where the set has no element; of a Whole its values themselves."""
    if isinstance(sparse, Whole):
        return sparse.values
    full = sparse.values.new_zeros((*sparse.values.shape[:-1], sparse.span))
    return full.scatter_(-1, sparse.indices, sparse.values)[..., : sparse.dim]


def members(indices: Tensor, dim: int) -> Tensor:
    """[D] whether each coordinate is among ``indices``, of any shape."""
    return torch.zeros(dim, dtype=torch.bool, device=indices.device).index_fill_(0, indices.reshape(-1), True)


def kept(upload: Sparse, merged: Sparse) -> Tensor:
    """[..., k] whether each element of an upload is among those of ``merged``."""
    return members(merged.indices, upload.span)[upload.indices]


def weighted_sum(rows: Sparse, share: Tensor) -> Sparse:
    """The share-weighted sum of the N rows [N, k], over the union of their indices, ordered by index."""
    total = dense_sum(rows, share)
    if rows.size == 0:
        return nothing(total)  # a CUDA device is not asked how many there are
    if isinstance(rows, Whole):
        return everything(total)
    indices = members(rows.indices, rows.span)[: rows.dim].nonzero().squeeze(-1)
    return Sparse(indices, total[indices], rows.dim)


def dense_sum(rows: Sparse, share: Tensor) -> Tensor:
    """[D] the share-weighted sum of the N rows [N, k], always added in the same order: a run repeats bit for bit.

    The result does not depend on the order inside a row: on the CPU each element is summed in the order of the clients,
    on CUDA in an order that is always the same.
    """
    if share.shape != rows.indices.shape[:1]:
        raise GradsiftError(f"share must have shape {list(rows.indices.shape[:1])}, got {list(share.shape)}")
    wide = torch.promote_types(rows.values.dtype, torch.float32)  # half precision is for sending, not for summing
    values = rows.values.to(wide)
    share = share.to(values.device, wide, non_blocking=values.is_cuda)  # the other way it would not be there in time
    total, whole = values.new_zeros(rows.span), isinstance(rows, Whole)
    if rows.size == 0:
        return total[: rows.dim]
    # Products are rounded before they are added, whole or not: B' - B is zero where both are the sum of the same.
    if rows.dim > _LONG_ROW if queued(values) else whole:
        for row, indices, weight in zip(values, rows.indices, share, strict=True):
            total = total.add_(row * weight) if whole else total.index_add_(0, indices, row * weight)
        return total[: rows.dim]
    if not queued(values):
        contributions = values * share[:, None]
        return total.index_add_(0, rows.indices.reshape(-1), contributions.reshape(-1))[: rows.dim]
    # CUDA's index_add_ adds in any order where an index comes twice, and its index_put_ sorts first: dense rows and one
    # product are quicker.
    step, total = max(1, _SCATTER_ELEMENTS // rows.dim), total[: rows.dim]
    for first in range(0, len(share), step):
        part = slice(first, first + step)
        total += share[part] @ densify(type(rows)(rows.indices[part], values[part], rows.dim))
    return total


def difference(left: Sparse, right: Sparse) -> Sparse:
    """left - right of two vectors [k], over the union of their indices; exact zeros are left out."""
    if left.dim != right.dim:
        raise GradsiftError(f"dimensions differ: {left.dim} and {right.dim}")
    change = densify(left) - densify(right)
    indices = change.nonzero().squeeze(-1)
    return Sparse(indices, change[indices], left.dim)


def stack(uploads: Sequence[Sparse]) -> Sparse:
    """The uploads of N clients, [k] each, as one [N, k]; padded, where they have different lengths."""
    if not uploads:
        raise GradsiftError("no clients: there is no upload to stack")
    for upload in uploads:
        if upload.dim != uploads[0].dim or upload.indices.dim() != 1 or upload.indices.shape != upload.values.shape:
            shapes = [(each.dim, list(each.indices.shape), list(each.values.shape)) for each in uploads]
            raise GradsiftError(f"uploads must be [k] of the same dimension, got (dim, indices, values): {shapes}")
    indices, values, dim = [upload.indices for upload in uploads], [upload.values for upload in uploads], uploads[0].dim
    if len({upload.size for upload in uploads}) == 1:
        return Sparse(torch.stack(indices), torch.stack(values), dim)
    padded = pad_sequence(indices, batch_first=True, padding_value=dim)
    return Ragged(padded, pad_sequence(values, batch_first=True), dim)


def concatenate(parts: Sequence[Sparse]) -> Sparse:
    """The rows of several [n, k] as one; rows may have different lengths."""
    first, longest = parts[0], max(part.size for part in parts)
    kind = Ragged if any(isinstance(part, Ragged) or part.size < longest for part in parts) else type(first)
    indices = [functional.pad(part.indices, (0, longest - part.size), value=first.dim) for part in parts]
    values = [functional.pad(part.values, (0, longest - part.size)) for part in parts]
    return kind(torch.cat(indices), torch.cat(values), first.dim)
