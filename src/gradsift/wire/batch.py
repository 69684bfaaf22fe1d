"""The sizes of many messages at once, on the device that holds them: only histograms are copied to the host.

Shapes: N messages of k elements; indices, values and what is derived from them [N, k], histograms [N, bins].
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradsift.sparse import Ragged, Sparse
from gradsift.wire import levels, sets, values
from gradsift.wire.bits import Ints, varint
from gradsift.wire.huffman import MAX_SYMBOLS
from gradsift.wire.integers import MAX_BITS
from gradsift.wire.levels import MAX_LEVELS, SAMPLE
from gradsift.wire.message import CHECKSUM_BYTES, MAGIC, has_room
from gradsift.wire.number_types import NumberType

_LENGTHS = MAX_BITS + 1  # bins for the bit lengths of integers
_MOST_JOINED = 8  # places of a table of two levels that fit in one symbol
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


class _Counts(NamedTuple):
    """What the size of one message follows from; the lists are histograms, up to the last number that occurs."""

    gaps: list[int]
    runs: list[int]  # of indices
    sign_runs: list[int]
    breaks: int
    smallest: int  # magnitude
    low_bits: int  # the fewest that may be raw
    high_bits: list[int]
    levels: int  # distinct magnitudes; 0 if there are too many for a table
    places: list[list[int]]  # in the table, then two of them joined to one symbol, then four, then eight
    place_runs: list[int]  # of places above 0


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
    indices, order = sparse.indices.sort(dim=-1)
    gaps = indices.diff(dim=-1, prepend=indices.new_full((len(indices), 1), -1)) - 1
    if not bool((gaps >= 0).all() & (indices[:, -1] < dim).all() & sparse.values.isfinite().all()):
        return None
    bits = sparse.values.detach().gather(-1, order).view(own)
    header = len(MAGIC) + 2 + len(varint(dim)) + len(varint(count)) + CHECKSUM_BYTES
    messages = _counted(indices, gaps, bits, dim)
    return np.array([header + _content(m, count, dim, kind) if m.smallest else 0 for m in messages], np.int64)


def _content(message: _Counts, count: int, dim: int, kind: NumberType) -> int:
    """The size of the indices and values of a message."""
    rest = sets.indices_size(message.gaps, message.runs, message.breaks, dim) + sets.mask_size(message.sign_runs, count)
    table = None
    if message.levels:
        table = levels.size(message.places, message.place_runs, count, message.levels, kind)
        if not has_room(count, rest + table + CHECKSUM_BYTES):
            table = None
    if table is not None and 8 * table <= count * message.low_bits:  # the raw bits of the values alone take as much
        return rest + table
    plain = values.size(np.array(message.high_bits), message.low_bits, kind)
    return rest + (plain if table is None else min(plain, table))


def _counted(indices: Tensor, gaps: Tensor, bits: Tensor, dim: int) -> list[_Counts]:
    """Count, given ascending indices, the gaps before them, and the bits of the values as signed integers."""
    begins = gaps > 0
    runs = _histogram(_bit_lengths(gaps - 1), _LENGTHS, begins)
    runs += _run_lengths(begins, last=indices[:, -1] < dim - 1)
    magnitude = bits & torch.iinfo(bits.dtype).max
    smallest = magnitude.amin(-1, keepdim=True)
    spread: list[int] = (magnitude.amax(-1, keepdim=True) - smallest)[:, 0].tolist()
    low_bits = [values.least_low_bits(largest) for largest in spread]
    high_bits = _histogram((magnitude - smallest) >> bits.new_tensor(low_bits)[:, None], MAX_SYMBOLS)
    found, places, place_runs = _places(magnitude)
    return [
        _Counts(*row)
        for row in zip(
            _rows(_histogram(_bit_lengths(gaps), _LENGTHS)),
            _rows(runs),
            _rows(_mask_runs(bits < 0)),
            begins[:, 1:].sum(-1).tolist(),
            smallest[:, 0].tolist(),
            low_bits,
            _rows(high_bits),
            found,
            zip(*map(_rows, places), strict=True),
            _rows(place_runs),
            strict=True,
        )
    ]


def _places(magnitude: Tensor) -> tuple[list[int], list[Tensor], Tensor]:
    """The number of levels of each message, 0 if too many, the histograms of joined places, and of runs of places."""
    none = magnitude.new_zeros(len(magnitude), 1)
    sample = _ranks(magnitude[:, :: magnitude.shape[-1] // SAMPLE + 1].sort(dim=-1).values)
    if bool((sample[:, -1] >= MAX_LEVELS).all()):
        return [0] * len(magnitude), [none], none
    ordered, order = magnitude.sort(dim=-1)
    ranks = _ranks(ordered)
    found = ranks[:, -1:] + 1
    symbols, radix = torch.empty_like(ranks).scatter_(-1, order, ranks), found
    runs = _mask_runs(symbols > 0)
    joined = [_histogram(symbols, MAX_SYMBOLS, symbols < MAX_SYMBOLS)]
    while len(joined) < _MOST_JOINED.bit_length():
        padded = torch.nn.functional.pad(symbols, (0, symbols.shape[-1] % 2))
        symbols, radix = (padded[:, ::2] + radix * padded[:, 1::2]).clamp(max=MAX_SYMBOLS), radix * radix
        joined.append(_histogram(symbols, MAX_SYMBOLS, symbols < MAX_SYMBOLS))
    return torch.where(found <= MAX_LEVELS, found, 0)[:, 0].tolist(), joined, runs


def _ranks(ordered: Tensor) -> Tensor:
    """How many distinct numbers lie below each, in ascending rows."""
    return (ordered.diff(dim=-1, prepend=ordered[:, :1]) != 0).cumsum(dim=-1)


def _mask_runs(mask: Tensor) -> Tensor:
    """The histogram of the lengths of the runs of a mask, without the last run."""
    changes = torch.nn.functional.pad(mask[:, 1:] != mask[:, :-1], (1, 0))
    return _run_lengths(changes, last=torch.zeros_like(mask[:, 0]))


def _run_lengths(begins: Tensor, last: Tensor) -> Tensor:
    """The histogram of the bit lengths of run lengths minus one; ``last`` [N] says whether the last run counts."""
    place = torch.arange(begins.shape[-1], device=begins.device)
    lengths = place - torch.where(begins, place, 0).cummax(dim=-1).values
    return _histogram(_bit_lengths(lengths), _LENGTHS, torch.cat([begins[:, 1:], last[:, None]], dim=-1))


def _bit_lengths(numbers: Tensor) -> Tensor:
    """The bit lengths of integers below 2**MAX_BITS, which float64 holds exactly."""
    return torch.frexp(numbers.double()).exponent


def _histogram(symbols: Tensor, bins: int, counted: Tensor | None = None) -> Tensor:
    """How often each of 0..bins-1 occurs in each row, where it is ``counted``."""
    if counted is not None:
        symbols = torch.where(counted, symbols, bins)
    rows = torch.arange(len(symbols), device=symbols.device)[:, None] * (bins + 1)
    counts = torch.bincount((symbols + rows).view(-1), minlength=len(symbols) * (bins + 1))
    return counts.view(len(symbols), bins + 1)[:, :bins]


def _rows(histogram: Tensor) -> list[list[int]]:
    """The rows up to their last number that is not zero."""
    counts = histogram.cpu().numpy()
    ends = np.where(counts > 0, np.arange(1, counts.shape[-1] + 1), 0).max(axis=-1)
    return [row[:end] for row, end in zip(counts.tolist(), ends.tolist(), strict=True)]
