"""Code values of few magnitudes: a table of these, the place of each value in it by a Huffman code, the signs as a set.

Values rounded to b bits have at most 2**(b - 1) magnitudes in a message, which may be any numbers. A Huffman code
takes at least one bit for a symbol, however often it occurs, so several places are joined to one symbol where this
makes the message smaller. If one of two levels is rare, the places are coded as a set instead, like the signs.
"""

import numpy as np
from numpy.typing import NDArray

from gradsift.wire import huffman, sets
from gradsift.wire.bits import Bytes, CodecError, Part, Reader, Unsigned
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


def size(counts: list[list[int]], runs: list[int], total: int, levels: int, kind: NumberType) -> int:
    """Return how many bytes ``total`` values take, less their signs.

    counts[i] are those of the symbols of 2**i joined places; ``runs``, as for ``sets.mask_size``, of places above 0.
    """
    table = 1 + kind.base_bytes * levels
    if levels == 1:
        return table
    best, joined = huffman.size(counts[0]), 1
    while levels ** (2 * joined) <= MAX_SYMBOLS:
        wider = huffman.size(counts[joined.bit_length()])
        if wider >= best:
            break
        best, joined = wider, 2 * joined
    return table + 1 + (min(best, sets.mask_size(runs, total)) if levels == 2 else best)


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
