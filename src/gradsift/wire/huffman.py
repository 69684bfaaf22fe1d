"""Symbols in 0..255 as a canonical Huffman code, its bits stored plane by plane.

Huffman (1952). An ordinary stream of codes can only be read one symbol at a time. Here all first bits come first, then
the second bits of the symbols whose codes have one, and so on: each plane is read and resolved for all symbols at once,
at most ``MAX_LENGTH`` steps in all.

Every symbol costs at least one bit, also when there is only one kind, so a message is never much smaller than what it
unfolds to.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsift.wire.bits import Bytes, Ints, Reader, byte_count, pack_bits
from gradsift.wire.errors import CodecError

MAX_LENGTH = 15  # of a code, in bits: a length fits four bits
MAX_SYMBOLS = 256


class Part(NamedTuple):
    """A piece of a message: its exact size, known before a byte of it is made."""

    size: int  # bytes
    write: Callable[[], bytes]


def code_lengths(counts: list[int]) -> list[int]:
    """Bits of each symbol's code, 0 for a symbol that does not occur; optimal, but for the limit on the length."""
    used = sorted((count, symbol) for symbol, count in enumerate(counts) if count)
    weights = [count for count, _ in used]
    depths = _depths(weights)
    while max(depths) > MAX_LENGTH:
        weights = [(weight + 1) // 2 for weight in weights]  # flatter, so the deepest leaf rises; the order stays
        depths = _depths(weights)
    lengths = [0] * len(counts)
    for (_, symbol), depth in zip(used, depths, strict=True):
        lengths[symbol] = depth
    return lengths


def _depths(weights: list[int]) -> list[int]:
    """Depths of the leaves of a Huffman tree over weights in ascending order, by two queues."""
    leaves = len(weights)
    if leaves == 1:
        return [1]
    nodes = weights + [0] * (leaves - 1)
    parent = [0] * len(nodes)
    leaf, inner = 0, leaves
    for new in range(leaves, len(nodes)):
        for _ in range(2):
            if leaf < leaves and (inner == new or nodes[leaf] <= nodes[inner]):
                child, leaf = leaf, leaf + 1
            else:
                child, inner = inner, inner + 1
            nodes[new] += nodes[child]
            parent[child] = new
    depth = [0] * len(nodes)
    for node in range(len(nodes) - 2, -1, -1):
        depth[node] = depth[parent[node]] + 1
    return depth[:leaves]


class _Code(NamedTuple):
    """Canonical: codes ascend with (length, symbol), so the lengths say everything."""

    symbols: list[int]  # in the order of their codes
    counts: list[int]  # codes of each length
    first: list[int]  # the first code of each length

    @classmethod
    def of(cls, lengths: list[int]) -> "_Code":
        symbols = [symbol for _, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths) if length)]
        counts = [0] * (MAX_LENGTH + 1)
        for symbol in symbols:
            counts[lengths[symbol]] += 1
        first = [0] * (MAX_LENGTH + 1)
        for length in range(1, MAX_LENGTH + 1):
            first[length] = (first[length - 1] + counts[length - 1]) * 2
        return cls(symbols, counts, first)


def plan(symbols: Bytes, counts: Ints) -> Part:
    """The part that holds ``symbols``, at least one, whose histogram is ``counts`` (at most 256 kinds)."""
    occurs = counts.tolist()
    lengths = code_lengths(occurs)
    ending = [0] * (max(lengths) + 1)
    for length, count in zip(lengths, occurs, strict=True):
        ending[length] += count
    planes = list(accumulate(ending[:0:-1]))  # bits in each plane, the last plane first
    return Part(1 + (len(lengths) + 1) // 2 + sum(map(byte_count, planes)), lambda: _write(symbols, lengths))


def _write(symbols: Bytes, lengths: list[int]) -> bytes:
    order, counts, first = _Code.of(lengths)
    longest = max(lengths)
    # Each code with its first bit highest, so that the bit of a plane is at the same place in all.
    codes = np.zeros(len(lengths), np.int64)
    codes[order] = [
        code << (longest - length)
        for length in range(1, longest + 1)
        for code in range(first[length], first[length] + counts[length])
    ]
    planes = np.arange(longest)[:, None]
    bit = (codes >> (longest - 1 - planes) & 1).astype(np.uint8)
    longer = np.array(lengths) > planes

    padded = [*lengths, 0]
    table = bytes(low | high << 4 for low, high in zip(padded[:-1:2], padded[1::2], strict=False))
    out = [bytes([len(lengths) - 1]), table]
    alive = symbols.astype(np.intp)  # take and nonzero are several times faster than masks
    for plane in range(longest):
        if counts[plane]:
            alive = alive.take(longer[plane].take(alive).nonzero()[0])
        out.append(pack_bits(bit[plane].take(alive)))
    return b"".join(out)


def read(reader: Reader, total: int) -> Bytes:
    """``total`` symbols, at least one."""
    order, counts, first = _Code.of(_read_lengths(reader))
    kinds = np.array(order, np.uint8)
    out = np.empty(total, np.uint8)
    alive: NDArray[np.intp] | None = None  # the symbols not yet resolved; None: all
    code = np.zeros(total, np.uint16)
    resolved = 0
    for length in range(1, MAX_LENGTH + 1):
        code <<= 1
        code |= reader.bits(len(code))
        if not counts[length]:
            continue
        ends = code < first[length] + counts[length]
        here, on = ends.nonzero()[0], (~ends).nonzero()[0]
        found = kinds[resolved : resolved + counts[length]].take(code.take(here) - np.uint16(first[length]))
        out[here if alive is None else alive.take(here)] = found
        alive = on if alive is None else alive.take(on)
        code = code.take(on)
        resolved += counts[length]
        if not len(code) or resolved == len(kinds):
            break
    if len(code):
        raise CodecError("a code is not in the table")
    return out


def _read_lengths(reader: Reader) -> list[int]:
    size = reader.byte() + 1
    packed = reader.take((size + 1) // 2).tolist()
    lengths = [length for pair in packed for length in (pair & 15, pair >> 4)]
    if (size % 2 and lengths.pop()) or not lengths[-1]:
        raise CodecError("a code table does not end with its last symbol")
    room = sum(1 << (MAX_LENGTH - length) for length in lengths if length) - (1 << MAX_LENGTH)
    # The one incomplete code: a single symbol, of one bit.
    if room and not (lengths[-1] == 1 and not any(lengths[:-1])):
        raise CodecError(f"a code table is {'overfull' if room > 0 else 'incomplete'}")
    return lengths
