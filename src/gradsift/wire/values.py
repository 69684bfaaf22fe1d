"""Code the values of a message: the high bits of a magnitude by a Huffman code, its low bits raw, the signs as a set.

The values of a top-k set lie between its threshold and a few times that. Relative to the smallest magnitude sent, the
exponent and the first bits of the mantissa thus take one or two bits instead of eight and more. The number of raw low
bits is the one that makes the message smallest. Zeros have their own symbols, without low bits or sign. Signs come in
runs if the inputs of a layer are not negative (after ReLU), and then take a fraction of a bit.
"""

import numpy as np

from gradsift.wire import huffman, sets
from gradsift.wire.bits import CodecError, Ints, Part, Reader, Unsigned, fixed_size, pack_fixed, read_fixed
from gradsift.wire.huffman import MAX_SYMBOLS
from gradsift.wire.number_types import NumberType, Signed

ZERO, NEGATIVE_ZERO, FIRST = 0, 1, 2  # symbols; from FIRST on: (magnitude - base) >> low_bits
_BUCKETS = MAX_SYMBOLS - FIRST


def plan(signed: Signed, kind: NumberType) -> Part:
    """Prepare to write values, at least one, in the order of their indices."""
    negative, magnitude, scale = signed
    word = magnitude.dtype.type
    nonzero, signs = magnitude, negative
    places = None if magnitude.all() else magnitude.nonzero()[0]  # of the values that are not zero
    if places is not None:
        nonzero, signs = magnitude.take(places), negative.take(places)
    base = nonzero.min() if len(nonzero) else word(0)
    above = nonzero - base
    low_bits = _low_bits(above, kind.width)

    symbols = (above >> word(low_bits)).astype(np.uint8) + np.uint8(FIRST)
    if places is not None:
        with_zeros = negative.astype(np.uint8)  # ZERO or NEGATIVE_ZERO
        with_zeros[places] = symbols
        symbols = with_zeros
    coarse = huffman.plan(symbols, np.bincount(symbols))
    sign = sets.plan_mask(signs)
    header = scale.astype("<f4").tobytes() if kind.scaled else b""
    header += int(base).to_bytes(kind.base_bytes, "little") + bytes([low_bits])

    def write() -> bytes:
        low = pack_fixed(above & word((1 << low_bits) - 1), low_bits)
        return header + coarse.write() + low + sign.write()

    return Part(len(header) + coarse.size + fixed_size(len(nonzero), low_bits) + sign.size, write)


def _low_bits(above: Unsigned, width: int) -> int:
    if not len(above):
        return 0
    low_bits = least_low_bits(int(above.max()))
    counts = np.bincount((above >> above.dtype.type(low_bits)).astype(np.uint8))
    return best_low_bits(counts, low_bits, width)[0]


def least_low_bits(largest: int) -> int:
    """Return how many low bits must be raw for the others to be a symbol, of differences up to ``largest``."""
    low_bits = max(0, largest.bit_length() - 8)
    return low_bits + (largest >> low_bits >= _BUCKETS)


def best_low_bits(counts: Ints, low_bits: int, width: int) -> tuple[int, Ints]:
    """Choose how many low bits to leave raw: the number for which entropy, raw bits and code table are smallest.

    ``counts`` says how often each number of high bits occurs if ``low_bits`` are raw, and is returned for the choice.
    """
    total = int(counts.sum())
    best, best_bits = (low_bits, counts), float("inf")
    while low_bits < width:
        used = counts[counts > 0].astype(np.float64)
        entropy = total * np.log2(total) - float(used @ np.log2(used))
        bits = max(entropy, total) + total * low_bits + 4 * len(counts)
        if bits < best_bits:
            best, best_bits = (low_bits, counts), bits
        if len(counts) == 1 or bits > best_bits + total:
            break
        counts = np.append(counts, np.zeros(len(counts) % 2, counts.dtype)).reshape(-1, 2).sum(axis=1)
        low_bits += 1
    return best


def size(counts: Ints, low_bits: int, kind: NumberType) -> int:
    """Return how many bytes values without zeros take, less their signs; ``counts`` as for ``best_low_bits``."""
    low_bits, counts = best_low_bits(counts, low_bits, kind.width)
    coarse = huffman.size([0] * FIRST + counts.tolist())
    return kind.base_bytes + 1 + coarse + fixed_size(int(counts.sum()), low_bits)


def read(reader: Reader, total: int, kind: NumberType) -> Signed:
    """Read ``total`` values, at least one; a magnitude that is not of a finite number is refused."""
    scale = np.ones((), np.float32)
    if kind.scaled:
        scale = reader.take(4).view("<f4").astype(np.float32)[0]
        if not (np.isfinite(scale) and scale > 0):
            raise CodecError(f"the scale is {scale}, not finite and above 0")
    base = int.from_bytes(reader.take(kind.base_bytes).tobytes(), "little")
    low_bits = reader.byte()
    if low_bits >= kind.width:
        raise CodecError(f"{low_bits} low bits in a magnitude of {kind.width} bits")
    symbols = huffman.read(reader, total)
    places = (symbols >= FIRST).nonzero()[0]  # of the values that are not zero
    coarse = symbols if len(places) == total else symbols.take(places)
    if len(coarse):
        # The low bits are not yet added, but with this in range the sum below cannot overflow its integer type.
        if base == 0 or base + (int(coarse.max() - FIRST) << low_bits) > kind.largest:
            raise CodecError("a magnitude is zero, infinite or not a number")
    elif base or low_bits:
        raise CodecError(f"base {base} and {low_bits} low bits, but every value is zero")
    low = read_fixed(reader, len(coarse), low_bits, max(kind.base_bytes, 2))
    word = low.dtype.type
    nonzero = ((coarse - np.uint8(FIRST)).astype(low.dtype) << word(low_bits)) + low + word(base)
    if len(nonzero) and int(nonzero.max()) > kind.largest:
        raise CodecError("a magnitude is infinite or not a number")
    signs = sets.read_mask(reader, len(coarse))
    if len(places) == total:
        return Signed(signs, nonzero, scale)
    negative, magnitude = symbols == NEGATIVE_ZERO, np.zeros(total, low.dtype)
    negative[places], magnitude[places] = signs, nonzero
    return Signed(negative, magnitude, scale)
