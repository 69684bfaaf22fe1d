"""Code non-negative integers, mostly small: their bit lengths by a Huffman code, then the bits after the leading 1.

This codes the gaps between indices and the lengths of runs. For the gaps of a random set (geometric) it stays within
0.1 bit of their entropy. For clustered indices, as in the gradients of a layer with idle units, it needs far fewer bits
than a random set of the same size.
"""

import numpy as np
from numpy.typing import NDArray

from gradsift.wire import huffman
from gradsift.wire.bits import CodecError, Ints, Part, Reader, byte_count, pack_varied, read_varied

MAX_BITS = 48  # of a number or dimension: exact in float64, and sums stay far from 2**63


def plan(numbers: Ints) -> Part:
    """Prepare to write ``numbers``, at least one, each below 2**MAX_BITS."""
    lengths = _bit_lengths(numbers)
    counts = np.bincount(lengths)
    symbols = huffman.plan(lengths, counts)

    def write() -> bytes:
        widths = _widths(lengths)
        return symbols.write() + pack_varied(numbers & ((1 << widths) - 1), widths)

    return Part(symbols.size + int(rest_sizes(counts)), write)


def rest_sizes(counts: Ints) -> Ints:
    """Return how many bytes the bits after the leading 1 take of numbers whose bit lengths occur ``counts`` times.

    [] for ``counts`` [lengths], [N] for [N, lengths]. The Huffman code of the lengths is not counted.
    """
    return byte_count(counts @ np.maximum(np.arange(-1, counts.shape[-1] - 1), 0))


def read(reader: Reader, total: int, limit: int) -> Ints:
    """Read ``total`` numbers, at least one; a sum above ``limit`` is refused."""
    lengths = huffman.read(reader, total)
    if int(lengths.max()) > limit.bit_length():
        raise CodecError(f"a number has {int(lengths.max())} bits, but may be at most {limit}")
    widths = _widths(lengths)
    numbers = read_varied(reader, widths) | (1 << widths) & -(lengths > 0).astype(np.int64)
    # The sum in floating point comes first, because it cannot overflow.
    if numbers.sum(dtype=np.float64) > 2.0 * limit + 1 or int(numbers.sum()) > limit:
        raise CodecError(f"numbers sum to more than {limit}")
    return numbers


def _bit_lengths(numbers: Ints) -> NDArray[np.uint8]:
    # The exponent field of a float64 is 1022 + the bit length; that of zero is 0, and the difference is clipped to 0.
    exponents: Ints = numbers.astype(np.float64).view(np.int64) >> 52
    return np.maximum(exponents - 1022, 0).astype(np.uint8)


def _widths(lengths: NDArray[np.uint8]) -> Ints:
    return np.maximum(lengths, np.uint8(1)).astype(np.int64) - 1
