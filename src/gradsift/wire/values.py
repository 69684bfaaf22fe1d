"""The values of a message: a Huffman symbol for the coarse magnitude, its low bits raw, and the signs as a set.

What a top-k set sends lies between its threshold and a few times that: measured from the smallest magnitude sent, the
exponent and the first bits of the mantissa take a bit or two instead of eight and more. How many low bits stay raw is
chosen by the size that results. Zeros are symbols of their own, without low bits or sign. Signs come in runs where the
inputs of a layer are not negative (after ReLU), and then cost a fraction of a bit.
"""

import numpy as np

from gradsift.wire import huffman, sets
from gradsift.wire.bits import Reader, Unsigned, fixed_size, pack_fixed, read_fixed
from gradsift.wire.errors import CodecError
from gradsift.wire.huffman import MAX_SYMBOLS, Part
from gradsift.wire.number_types import NumberType, Signed

ZERO, NEGATIVE_ZERO, FIRST = 0, 1, 2  # symbols; from FIRST on: (magnitude - base) >> low_bits
_BUCKETS = MAX_SYMBOLS - FIRST


def plan(signed: Signed, kind: NumberType) -> Part:
    """The part that holds values in the order of their indices, at least one."""
    negative, magnitude, scale = signed
    word = magnitude.dtype.type
    nonzero, signs = magnitude, negative
    filled = None if magnitude.all() else magnitude.nonzero()[0]
    if filled is not None:
        nonzero, signs = magnitude.take(filled), negative.take(filled)
    base = nonzero.min() if len(nonzero) else word(0)
    above = nonzero - base
    low_bits = _low_bits(above, kind)

    symbols = (above >> word(low_bits)).astype(np.uint8) + np.uint8(FIRST)
    if filled is not None:
        everywhere = negative.astype(np.uint8)  # ZERO or NEGATIVE_ZERO
        everywhere[filled] = symbols
        symbols = everywhere
    coarse = huffman.plan(symbols, np.bincount(symbols))
    sign = sets.plan_mask(signs)
    header = scale.astype("<f4").tobytes() if kind.scaled else b""
    header += int(base).to_bytes(kind.base_bytes, "little") + bytes([low_bits])

    def write() -> bytes:
        low = pack_fixed(above & word((1 << low_bits) - 1), low_bits)
        return header + coarse.write() + low + sign.write()

    return Part(len(header) + coarse.size + fixed_size(len(nonzero), low_bits) + sign.size, write)


def _low_bits(above: Unsigned, kind: NumberType) -> int:
    """How many low bits to leave raw: by the entropy of the symbols, from the most symbols there may be to fewer."""
    total = len(above)
    if not total:
        return 0
    largest = int(above.max())
    low_bits = max(0, largest.bit_length() - 8)
    low_bits += largest >> low_bits >= _BUCKETS
    counts = np.bincount((above >> above.dtype.type(low_bits)).astype(np.uint8))
    best, best_bits = low_bits, float("inf")
    while low_bits < kind.width:
        used = counts[counts > 0].astype(np.float64)
        entropy = total * np.log2(total) - float(used @ np.log2(used))
        bits = max(entropy, total) + total * low_bits + 4 * len(counts)
        if bits < best_bits:
            best, best_bits = low_bits, bits
        if len(counts) == 1 or bits > best_bits + total:
            break
        counts = np.append(counts, 0) if len(counts) % 2 else counts
        counts = counts.reshape(-1, 2).sum(axis=1)
        low_bits += 1
    return best


def read(reader: Reader, total: int, kind: NumberType) -> Signed:
    """``total`` values, at least one; their magnitudes are those of finite numbers."""
    scale = np.ones((), np.float32)
    if kind.scaled:
        scale = reader.take(4).view("<f4").astype(np.float32)[0]
        if not (np.isfinite(scale) and scale > 0):
            raise CodecError(f"the scale is {scale}")
    base = int.from_bytes(reader.take(kind.base_bytes).tobytes(), "little")
    low_bits = reader.byte()
    if low_bits >= kind.width:
        raise CodecError(f"{low_bits} low bits in a magnitude of {kind.width}")
    symbols = huffman.read(reader, total)
    filled = (symbols >= FIRST).nonzero()[0]
    coarse = symbols if len(filled) == total else symbols.take(filled)
    if len(coarse):
        # The low bits only add to this, and with it in range the sum below stays within its word.
        if base == 0 or base + (int(coarse.max() - FIRST) << low_bits) > kind.largest:
            raise CodecError("a magnitude is zero, infinite or not a number")
    elif base or low_bits:
        raise CodecError("a base without a magnitude")
    low = read_fixed(reader, len(coarse), low_bits, max(kind.base_bytes, 2))
    word = low.dtype.type
    nonzero = ((coarse - np.uint8(FIRST)).astype(low.dtype) << word(low_bits)) + low + word(base)
    if len(nonzero) and int(nonzero.max()) > kind.largest:
        raise CodecError("a magnitude is infinite or not a number")
    signs = sets.read_mask(reader, len(coarse))
    if len(filled) == total:
        return Signed(signs, nonzero, scale)
    negative, magnitude = symbols == NEGATIVE_ZERO, np.zeros(total, low.dtype)
    negative[filled], magnitude[filled] = signs, nonzero
    return Signed(negative, magnitude, scale)
