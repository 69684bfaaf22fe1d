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
BUCKETS = MAX_SYMBOLS - FIRST
_UNSURE = 1e-9  # bits for each value: far above rounding errors


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
    low_bits = _least_low_bits(int(above.max()))
    counts = np.bincount((above >> above.dtype.type(low_bits)).astype(np.uint8))
    return best_low_bits(counts, low_bits, width)[0]


def _least_low_bits(largest: int) -> int:
    """Return how many low bits must be raw for the others to be a symbol, of differences up to ``largest``."""
    low_bits = max(0, largest.bit_length() - 8)
    return low_bits + (largest >> low_bits >= BUCKETS)


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


def best_symbols(counts: Ints, low_bits: Ints, total: int, kind: NumberType) -> tuple[Ints, Ints]:
    """Return the best low bits of messages without zeros [N], and how often each symbol then occurs [N, symbols].

    ``counts`` [N, high bits] and ``low_bits`` [N] as for ``best_low_bits``; every message has ``total`` values.
    """
    lengths = counts.shape[1] - (counts[:, ::-1] > 0).argmax(axis=1)
    best, best_bits = low_bits.copy(), np.full(len(counts), np.inf)
    symbols = np.zeros((len(counts), FIRST + int(lengths.max())), np.int64)
    looking, unsure = low_bits < kind.width, np.zeros(len(counts), np.bool_)
    halved, raw, length = counts[:, : int(lengths.max())].astype(np.float64), low_bits, lengths
    tried = []
    while looking.any():
        tried.append(halved)
        used = np.maximum(halved, 1.0)
        entropy = total * np.log2(total) - np.einsum("ij,ij->i", used, np.log2(used))
        bits = np.maximum(entropy, total) + total * raw + 4 * length
        above = bits - best_bits
        unsure |= looking & (np.minimum(np.abs(above), np.abs(above - total)) < _UNSURE * total)
        better = looking & (above < 0)
        best[better], best_bits[better] = raw[better], bits[better]
        looking &= (length > 1) & (above <= total) & (raw + 1 < kind.width)
        odd, halved = halved[:, 1::2], halved[:, ::2].copy()
        halved[:, : odd.shape[1]] += odd
        length, raw = (length + 1) // 2, raw + 1
    for halvings, tried_counts in enumerate(tried):
        rows = (best - low_bits == halvings).nonzero()[0]
        symbols[rows, FIRST : FIRST + tried_counts.shape[1]] = tried_counts[rows]
    for row in unsure.nonzero()[0]:  # rounding errors might decide: let them do so in the same way
        best[row], chosen = best_low_bits(counts[row, : lengths[row]], int(low_bits[row]), kind.width)
        symbols[row] = 0
        symbols[row, FIRST : FIRST + len(chosen)] = chosen
    return best, symbols


def sizes(codes: Ints, low_bits: Ints, count: int, kind: NumberType) -> Ints:
    """Return how many bytes ``count`` values without zeros take, less their signs; ``codes`` for their symbols."""
    return kind.base_bytes + 1 + codes + fixed_size(count, low_bits)


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
