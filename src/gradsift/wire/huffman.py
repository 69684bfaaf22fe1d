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
_NONE = np.int64(1 << 60)  # in place of a weight; two of them can be added


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


def _size(counts: list[int], lengths: list[int]) -> int:
    ending = [0] * (max(lengths) + 1)  # the number of symbols in the message whose code has that length
    for length, count in zip(lengths, counts, strict=True):
        ending[length] += count
    planes = accumulate(ending[:0:-1])  # bits in each plane, the last plane first
    return 1 + (len(lengths) + 1) // 2 + sum(map(byte_count, planes))


def sizes(counts: Ints) -> Ints:
    """Return how many bytes symbols take that occur as often as each row says, of an array [rows, symbols].

    The code of a row has the symbols up to the last that occurs; 0 if none does. All codes are made at once: the time
    is that of the steps, as many as the most symbols that occur in a row.
    """
    used = counts > 0
    leaves = used.sum(axis=1)
    order = np.argsort(-leaves)
    most = int(leaves.max(initial=0))
    weights = np.sort(np.where(used, counts, _NONE), axis=1)[order, :most].T
    deeper = _deeper(weights, leaves[order])
    before = np.zeros((most + 1, len(counts)), np.int64)  # the weights of the first leaves together
    np.cumsum(weights, axis=0, out=before[1:])
    planes = byte_count(before[deeper, np.arange(len(counts))]).sum(axis=0)  # but for the first plane
    planes[order] = planes.copy()
    symbols = (used * np.arange(1, counts.shape[1] + 1)).max(axis=1, initial=0)
    return np.where(leaves > 0, 1 + (symbols + 1) // 2 + byte_count(counts.sum(axis=1)) + planes, 0)


def _deeper(weights: Ints, leaves: Ints) -> Ints:
    """Return how many leaves of each tree have codes longer than 1, 2, ... bits: [lengths, trees].

    ``weights`` [most leaves, trees] ascend in each column up to its number of leaves, which descend from column to
    column. It is the tree of ``code_lengths``: those leaves are the first ones.
    """
    taken = _merged(weights, leaves)
    trees = np.arange(len(leaves))
    # The two-queue method takes nodes in an order in which they get ever less deep. So the nodes of one depth are
    # neighbours in it, and their children, which they took two by two, are those of the next.
    merge = np.maximum(leaves - 2, 0)  # the first that made a node of this depth
    deeper: list[Ints] = []
    while True:
        first = taken[merge, trees]
        if not first.any():
            return np.stack(deeper) if deeper else np.zeros((0, len(leaves)), np.int64)
        if len(deeper) == MAX_LENGTH - 1:
            break
        deeper.append(first)
        merge = 2 * merge - first
    too_deep = first.nonzero()[0]
    result = np.stack(deeper)
    again = _deeper((weights[:, too_deep] + 1) // 2, leaves[too_deep])
    result[:, too_deep] = 0
    result[: len(again), too_deep] = again
    return result


def _merged(weights: Ints, leaves: Ints) -> Ints:
    """Return how many leaves were taken before each merge of the two-queue method: [merges, trees]; see ``_deeper``."""
    most, trees = weights.shape
    nodes = np.full((3, most + 2, trees), _NONE)  # nothing, then leaves, then inner nodes in the order they are made
    nodes[1, :most] = weights
    flat, inner_nodes = nodes.reshape(-1), nodes[2]
    # Where the next two leaves and inner nodes are, less as many rows as there were merges: each merge takes one leaf
    # and one inner node, or one more of either.
    places = np.arange(trees) + trees * np.array([most + 2, most + 3, 2 * most + 4, 2 * most + 5])[:, None]
    one_more = trees * np.array([1, 1, -1, -1])[:, None]
    taken = np.zeros((max(most, 1), trees), np.int64)
    unfinished = (leaves[:, None] > np.arange(1, most)).sum(axis=0)  # trees, at each merge: the first ones
    for merge, left in enumerate(unfinished.tolist()):
        at, more = places[:, :left], taken[merge + 1, :left]
        leaf, second_leaf, inner, second_inner = flat[merge * trees :].take(at)
        # A leaf comes before an inner node of the same weight.
        np.subtract(second_leaf <= inner, second_inner < leaf, out=more, dtype=np.int64)
        np.minimum(leaf + np.minimum(second_leaf, inner), inner + second_inner, out=inner_nodes[merge, :left])
        at += more * one_more
    return taken.cumsum(axis=0) + np.arange(len(taken))[:, None]


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
