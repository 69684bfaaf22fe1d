"""The sizes of many messages at once, on the device that holds them: only histograms are copied to the host.

Each operation on the device takes time by itself, and each copy makes the host wait for all of them. So what can be is
counted in one operation for several histograms, and all of them are copied at once.

Shapes: N messages of k elements; indices, values and what is derived from them [N, k], histograms [N, bins].
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradsift.sparse import Ragged, Sparse
from gradsift.wire import huffman, integers, levels, sets, values
from gradsift.wire.bits import Ints, Mask, varint
from gradsift.wire.huffman import MAX_SYMBOLS
from gradsift.wire.integers import MAX_BITS
from gradsift.wire.levels import MAX_LEVELS, SAMPLE
from gradsift.wire.message import CHECKSUM_BYTES, MAGIC, has_room
from gradsift.wire.number_types import NumberType
from gradsift.wire.values import BUCKETS

_SHORT_BITS = 30  # of numbers that are counted as int32, which takes half the time of int64
_JOINED = 4  # kinds of symbols of a table: of one place, two joined, four and eight
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


class _Counts(NamedTuple):
    """What the sizes of messages follow from."""

    valid: bool  # all of them
    nonzero: Mask  # [N]: no value is zero
    low_bits: Ints  # [N], the fewest that may be raw
    high_bits: Ints  # [N, bins]
    breaks: Ints  # [N], indices that do not follow their neighbour, but for the first
    lengths: Ints  # [3 or 4, N, bit lengths]: of gaps, runs of indices, runs of signs, runs of places above 0
    levels: Ints  # [N], distinct magnitudes; 0 if there are too many for a table
    places: list[Ints]  # [N, symbols]: of places, two of them joined, four, eight; empty if no message has a table


def sizes(sparse: Sparse, kind: NumberType) -> Ints | None:
    """Return the size of each message [N], 0 for one that has to be planned by itself; None if all have to.

    A message is counted here if its values are sent in their own type, at most half of all elements are sent, and none
    of them is zero. Rows that are not valid messages give None.
    """
    count, dim = sparse.size, sparse.dim
    own = _INTEGERS.get(sparse.values.dtype)
    if own is None or own.itemsize != kind.base_bytes or isinstance(sparse, Ragged) or 2 * count > dim:
        return None
    if sparse.indices.dim() == 1 or not sparse.indices.numel():
        return None
    counts = _counted(sparse.indices, sparse.values.detach().view(own), dim, kind)
    if not counts.valid:
        return None
    header = len(MAGIC) + 2 + len(varint(dim)) + len(varint(count)) + CHECKSUM_BYTES
    return np.where(counts.nonzero, header + _content(counts, count, dim, kind), 0)


def _content(counts: _Counts, count: int, dim: int, kind: NumberType) -> Ints:
    """The sizes of the indices and values of the messages."""
    sizes = huffman.sizes(counts.lengths.reshape(-1, counts.lengths.shape[-1])).reshape(counts.lengths.shape[:2])
    gaps, runs, signs, *places = sizes + integers.rest_sizes(counts.lengths)
    _, coded_runs, coded_signs, *coded_places = counts.lengths.sum(axis=-1)
    rest = sets.indices_sizes(gaps, runs, coded_runs, counts.breaks, count, dim)
    rest += sets.mask_sizes(signs, coded_signs, count)
    content, usable = np.zeros_like(rest), np.zeros(len(rest), np.bool_)
    if places:
        content = levels.sizes(counts.places, places[0], coded_places[0], count, counts.levels, kind)
        usable = (counts.levels > 0) & has_room(count, rest + content + CHECKSUM_BYTES)
    # Where the raw bits of the values alone take as much as a table, their symbols need not be counted.
    left = ~(usable & (8 * content <= count * counts.low_bits))
    if left.any():
        low_bits, symbols = values.best_symbols(counts.high_bits[left], counts.low_bits[left], count, kind)
        plain = values.sizes(huffman.sizes(symbols), low_bits, count, kind)
        content[left] = np.where(usable[left], np.minimum(content[left], plain), plain)
    return rest + content


def _counted(indices: Tensor, bits: Tensor, dim: int, kind: NumberType) -> _Counts:
    """Count, given indices in any order and the bits of the values as signed integers."""
    tables = _may_have_tables(bits)
    short = dim < 1 << _SHORT_BITS
    ordered, order = indices.clamp(-1, dim).to(torch.int32 if short else torch.int64).sort(dim=-1)
    bits = bits.gather(-1, order)
    before, behind = ordered.new_full((len(bits), 1), -1), ordered.new_full((len(bits), 1), dim)
    gaps = ordered.diff(dim=-1, prepend=before, append=behind) - 1  # before each index, and behind the last
    magnitude = bits & torch.iinfo(bits.dtype).max
    smallest, largest = magnitude.aminmax(dim=-1, keepdim=True)
    # The fewest for which all high bits are below BUCKETS.
    low_bits = (largest - smallest >> torch.arange(kind.width, device=bits.device) >= BUCKETS).sum(-1, keepdim=True)

    lengths = (_SHORT_BITS if short else MAX_BITS) + 2
    widths = [BUCKETS, *[MAX_SYMBOLS + 1] * _JOINED * tables, (4 + tables) * lengths, 5]
    counts = torch.zeros(len(bits), sum(widths), dtype=torch.int32, device=bits.device)
    high_bits, *places, by_length, others = torch.split(counts, widths, dim=-1)
    one = counts.new_ones(())
    _count(magnitude - smallest >> low_bits, high_bits, one)
    masks, found = [bits < 0], torch.zeros_like(low_bits)
    if tables:
        above, found = _places(magnitude, places, one)
        masks.append(above)
    numbers = _numbers(gaps, torch.stack(masks, dim=1))
    bounds = (1 << torch.arange(lengths - 1, device=bits.device) >> 1).to(numbers.dtype)  # 0, 1, 2, 4, ...
    _count(torch.bucketize(numbers, bounds, right=True), by_length.view(len(bits), -1, lengths), one)
    valid = (gaps.amin(dim=-1, keepdim=True) >= 0) & (largest <= kind.largest)
    others.copy_(torch.cat([valid, smallest > 0, gaps[:, -1:] > 0, low_bits, found], dim=-1))
    return _on_host(counts, widths, lengths)


def _on_host(counts: Tensor, widths: list[int], bins: int) -> _Counts:
    high_bits, *places, by_length, others = np.split(counts.cpu().numpy(), np.cumsum(widths)[:-1], axis=1)
    lengths = by_length.reshape(len(by_length), -1, bins)[..., 1:].transpose(1, 0, 2).astype(np.int64)
    between, members = lengths[1:3]
    valid, nonzero, follows, low_bits, found = others.T
    return _Counts(
        valid=bool(valid.all()),
        nonzero=nonzero > 0,
        low_bits=low_bits.astype(np.int64),
        high_bits=high_bits.astype(np.int64),
        breaks=members.sum(axis=1) - follows,
        lengths=np.stack([lengths[0], between + members, *lengths[3:]]),
        levels=found.astype(np.int64),
        places=[joined[:, :MAX_SYMBOLS] for joined in places],
    )


def _may_have_tables(bits: Tensor) -> bool:
    """Whether a sample of the values of any message has no more magnitudes than a table."""
    sample = bits[:, :: bits.shape[-1] // SAMPLE + 1] & torch.iinfo(bits.dtype).max
    return bool(((sample.sort(dim=-1).values.diff(dim=-1) != 0).sum(dim=-1) < MAX_LEVELS).any())


def _places(magnitude: Tensor, histograms: list[Tensor], one: Tensor) -> tuple[Tensor, Tensor]:
    """Count joined places; return which places are above 0, and the numbers of levels [N, 1], 0 if too many."""
    count = magnitude.shape[-1]
    ordered, order = magnitude.sort(dim=-1)
    ranks = torch.nn.functional.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0)).cumsum(dim=-1)
    found = ranks[:, -1:] + 1
    most = 1 << _JOINED - 1
    symbols = ranks.new_zeros(len(ranks), -(-count // most) * most)
    symbols.scatter_(-1, order, ranks.clamp(max=MAX_SYMBOLS))
    above = symbols[:, :count] > 0
    radix = found.clamp(max=MAX_LEVELS + 1)
    for joined, histogram in enumerate(histograms):
        if joined:
            symbols = torch.addcmul(symbols[:, ::2], radix, symbols[:, 1::2]).clamp_(max=MAX_SYMBOLS)
            radix = radix * radix
        _count(symbols[:, : -(-count >> joined)], histogram, one)
    return above, torch.where(found <= MAX_LEVELS, found, 0)


def _numbers(gaps: Tensor, masks: Tensor) -> Tensor:
    """The numbers of each message whose bit lengths are coded [N, 3 + masks, k]; below 0 where there is none.

    They are the gaps before the indices; those minus one, as lengths of runs minus one; and the lengths minus one of
    the runs that end at each index, and at each place of the ``masks`` [N, masks, k], but for the last run.
    """
    begins = masks.new_zeros(len(masks), 1 + masks.shape[1], gaps.shape[-1])
    torch.gt(gaps, 0, out=begins[:, 0])
    torch.ne(masks[..., 1:], masks[..., :-1], out=begins[:, 1:, 1:-1])
    place = torch.arange(masks.shape[-1], dtype=gaps.dtype, device=gaps.device)
    length = place - torch.where(begins[..., :-1], place, 0).cummax(dim=-1).values
    before = gaps[:, None, :-1]
    return torch.cat([before, before - 1, torch.where(begins[..., 1:], length, -1)], dim=1)


def _count(symbols: Tensor, histogram: Tensor, one: Tensor) -> None:
    """Add ``one`` to the histogram for each symbol."""
    histogram.scatter_add_(-1, symbols, one.expand_as(symbols))
