"""Code symbols in 0..255 by a canonical Huffman code (Huffman 1952), whose bits are stored in planes.

An ordinary stream of codes can only be read one symbol at a time. Here the first bits of all codes come first, then the
second bits of the codes that have one, and so on. Each such plane is read for all symbols at once, in at most
``MAX_LENGTH`` steps.

Every symbol takes at least one bit, even if only one symbol occurs. A short message can thus not decode to a huge one.
"""

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from gradsift.wire.bits import Bytes, CodecError, Ints, Part, Reader, byte_count, pack_bits

MAX_LENGTH = 15  # of a code, in bits, so that a length fits in four bits
MAX_SYMBOLS = 256


def code_lengths(counts: list[int]) -> list[int]:
    """Return the code length of each symbol in bits, 0 if it does not occur; optimal unless MAX_LENGTH is exceeded."""
    used = sorted((count, symbol) for symbol, count in enumerate(counts) if count)
    weights = [count for count, _ in used]
    depths = _depths(weights)
    while max(depths) > MAX_LENGTH:
        weights = [(weight + 1) // 2 for weight in weights]  # more even, so the tree gets flatter; still ascending
        depths = _depths(weights)
    lengths = [0] * len(counts)
    for (_, symbol), depth in zip(used, depths, strict=True):
        lengths[symbol] = depth
    return lengths


def _depths(weights: list[int]) -> list[int]:
    """Return the depths of the leaves of a Huffman tree over ascending weights, by the two-queue method."""
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


def _canonical(lengths: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Return the symbols in the order of their codes, and for each length the number of codes and the first code.

    The codes of a canonical Huffman code ascend with (length, symbol), so they follow from the lengths alone.
    """
    symbols = sorted((symbol for symbol, length in enumerate(lengths) if length), key=lengths.__getitem__)
    counts, first = [0] * (MAX_LENGTH + 1), [0] * (MAX_LENGTH + 1)
    for symbol in symbols:
        counts[lengths[symbol]] += 1
    for length in range(1, MAX_LENGTH + 1):
        first[length] = (first[length - 1] + counts[length - 1]) * 2
    return symbols, counts, first


def plan(symbols: Bytes, counts: Ints) -> Part:
    """Prepare to write ``symbols``, at least one, which occur ``counts`` times (``np.bincount(symbols)``)."""
    occurrences = counts.tolist()
    lengths = code_lengths(occurrences)
    return Part(_size(occurrences, lengths), lambda: _write(symbols, lengths))


def size(counts: list[int]) -> int:
    """Return how many bytes symbols take that occur ``counts`` times; the last one does occur."""
    return _size(counts, code_lengths(counts))


def _size(counts: list[int], lengths: list[int]) -> int:
    ending = [0] * (max(lengths) + 1)  # the number of symbols in the message whose code has that length
    for length, count in zip(lengths, counts, strict=True):
        ending[length] += count
    planes = accumulate(ending[:0:-1])  # bits in each plane, the last plane first
    return 1 + (len(lengths) + 1) // 2 + sum(map(byte_count, planes))


def _write(symbols: Bytes, lengths: list[int]) -> bytes:
    order, counts, first = _canonical(lengths)
    longest = max(lengths)
    # All codes are shifted to the longest length, so that the bit of a plane has the same place in each.
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
    remaining = symbols.astype(np.intp)  # take and nonzero are several times faster than masks
    for plane in range(longest):
        if counts[plane]:
            remaining = remaining.take(longer[plane].take(remaining).nonzero()[0])
        out.append(pack_bits(bit[plane].take(remaining)))
    return b"".join(out)


def read(reader: Reader, total: int) -> Bytes:
    """Read ``total`` symbols, at least one."""
    order, counts, first = _canonical(_read_lengths(reader))
    table = np.array(order, np.uint8)
    symbols = np.empty(total, np.uint8)
    remaining: NDArray[np.intp] | None = None  # places of the symbols with longer codes; None: all
    code = np.zeros(total, np.uint16)
    resolved = 0
    for length in range(1, MAX_LENGTH + 1):
        code <<= 1
        code |= reader.bits(len(code))
        if not counts[length]:
            continue
        complete = code < first[length] + counts[length]
        done, longer = complete.nonzero()[0], (~complete).nonzero()[0]
        decoded = table[resolved : resolved + counts[length]].take(code.take(done) - np.uint16(first[length]))
        symbols[done if remaining is None else remaining.take(done)] = decoded
        remaining = longer if remaining is None else remaining.take(longer)
        code = code.take(longer)
        resolved += counts[length]
        if not len(code) or resolved == len(table):
            break
    if len(code):
        raise CodecError("a code is not in the table")
    return symbols


def _read_lengths(reader: Reader) -> list[int]:
    size = reader.byte() + 1
    packed = reader.take((size + 1) // 2).tolist()
    lengths = [length for pair in packed for length in (pair & 15, pair >> 4)]
    if (size % 2 and lengths.pop()) or not lengths[-1]:
        raise CodecError("a code table does not end with its last symbol")
    excess = sum(1 << (MAX_LENGTH - length) for length in lengths if length) - (1 << MAX_LENGTH)
    # Only the code of a single symbol, of one bit, may be incomplete.
    if excess and not (lengths[-1] == 1 and not any(lengths[:-1])):
        raise CodecError(f"a code table is {'overfull' if excess > 0 else 'incomplete'}")
    return lengths
