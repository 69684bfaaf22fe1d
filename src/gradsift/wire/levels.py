"""Code values of few magnitudes: a table of these, the place of each value in it by a Huffman code, the signs as a set.

Values rounded to b bits have at most 2**(b - 1) magnitudes in a message, which may be any numbers. A Huffman code
takes at least one bit for a symbol, however often it occurs, so several places are joined to one symbol where this
makes the message smaller. If one of two levels is rare, the places are coded as a set instead, like the signs.
"""

import numpy as np
from numpy.typing import NDArray

from gradsift.wire import huffman, sets
from gradsift.wire.bits import Bytes, CodecError, Ints, Part, Reader, Unsigned
from gradsift.wire.huffman import MAX_SYMBOLS
from gradsift.wire.number_types import NumberType, Signed

MAX_LEVELS = 128
AS_SET = 0  # in place of the number of joined places
SAMPLE = 300  # values looked at first: ordinary values have more magnitudes than a table among them


def plan(signed: Signed, kind: NumberType) -> Part | None:
    """Prepare to write values, at least one, in the order of their indices; None if there are too many magnitudes."""
    magnitude = signed.magnitude
    if len(np.unique(magnitude[:: len(magnitude) // SAMPLE + 1])) > MAX_LEVELS:
        return None
    levels = np.unique(magnitude)
    if len(levels) > MAX_LEVELS:
        return None
    header = bytes([len(levels) - 1]) + levels.astype(f"<u{kind.base_bytes}").tobytes()
    places = _plan_places(np.searchsorted(levels, magnitude), len(levels))
    signs = sets.plan_mask(signed.negative)
    return Part(
        len(header) + places.size + signs.size,
        lambda: header + places.write() + signs.write(),
    )


def _plan_places(places: NDArray[np.intp], levels: int) -> Part:
    """Prepare to write places in a table; twice as many are joined for as long as this makes the message smaller."""
    if levels == 1:
        return Part(0, bytes)
    symbols, joined = places.astype(np.uint8), 1
    best = huffman.plan(symbols, np.bincount(symbols))
    while levels ** (2 * joined) <= MAX_SYMBOLS:
        pairs = np.append(symbols, np.zeros(len(symbols) % 2, np.uint8)).reshape(-1, 2)
        symbols = pairs[:, 0] + pairs[:, 1] * np.uint8(levels**joined)
        wider = huffman.plan(symbols, np.bincount(symbols))
        if wider.size >= best.size:
            break
        best, joined = wider, 2 * joined
    rare = sets.plan_mask(places > 0) if levels == 2 else best
    if rare.size < best.size:
        best, joined = rare, AS_SET
    return Part(1 + best.size, lambda: bytes([joined]) + best.write())


def sizes(places: list[Ints], runs: Ints, coded: Ints, total: int, levels: Ints, kind: NumberType) -> Ints:
    """Return how many bytes ``total`` values of each of N messages take, less their signs.

    ``places`` [N, symbols] says how often each symbol occurs if 1 place is joined to a symbol, 2, 4, ...; ``runs`` and
    ``coded``, as for ``sets.mask_sizes``, are those of places above 0.
    """
    best = np.full(len(levels), np.iinfo(np.int64).max)
    left = (levels > 1).nonzero()[0]
    for joined, counts in enumerate(places):
        left = left[levels[left] ** (1 << joined) <= MAX_SYMBOLS]
        if not len(left):
            break
        wider = huffman.sizes(counts[left, : int(levels[left].max()) ** (1 << joined)])
        left, wider = left[wider < best[left]], wider[wider < best[left]]
        best[left] = wider
    best = np.where(levels == 2, np.minimum(best, sets.mask_sizes(runs, coded, total)), best)
    return 1 + kind.base_bytes * levels + np.where(levels > 1, 1 + best, 0)


def read(reader: Reader, total: int, kind: NumberType) -> Signed:
    """Read ``total`` values, at least one; a magnitude that is not of a finite number is refused."""
    count = reader.byte() + 1
    if count > MAX_LEVELS:
        raise CodecError(f"a table has {count} magnitudes, more than {MAX_LEVELS}")
    levels: Unsigned = reader.take(count * kind.base_bytes).view(f"<u{kind.base_bytes}").astype(f"u{kind.base_bytes}")
    if not (levels[1:] > levels[:-1]).all():
        raise CodecError("the magnitudes of a table do not ascend")
    if int(levels[-1]) > kind.largest:
        raise CodecError("a magnitude of a table is infinite or not a number")
    magnitude = np.repeat(levels, total) if count == 1 else levels.take(_read_places(reader, total, count))
    return Signed(sets.read_mask(reader, total), magnitude, np.ones((), np.float32))


def _read_places(reader: Reader, total: int, levels: int) -> Bytes:
    joined = reader.byte()
    if joined == AS_SET and levels == 2:
        return sets.read_mask(reader, total).view(np.uint8)
    if joined == AS_SET or levels**joined > MAX_SYMBOLS:
        raise CodecError(f"{joined} places of {levels} levels are joined to one symbol")
    symbols = huffman.read(reader, -(-total // joined))
    if int(symbols.max()) >= levels**joined:
        raise CodecError(f"symbol {int(symbols.max())} is not in the table of levels")
    digits = np.arange(levels**joined)[:, None] // levels ** np.arange(joined) % levels
    places = digits.astype(np.uint8).take(symbols, axis=0).reshape(-1)
    if places[total:].any():
        raise CodecError("places after the last value are not zero")
    return places[:total]
