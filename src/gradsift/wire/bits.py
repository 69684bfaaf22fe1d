"""Pack numbers into bytes and read them back, a numpy array at a time; the lowest bit of a byte comes first.

Every read is checked against the bytes that are left before memory is allocated for it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradsift.errors import GradsiftError

Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]
Unsigned = NDArray[np.unsignedinteger[Any]]
Number = TypeVar("Number", int, Ints)

_INTEGER_SIZES = (1, 2, 4)  # sizes in bytes of numpy's unsigned integers; 8 cannot occur here
_VARINT_BYTES = 9  # 63 bits


class CodecError(GradsiftError):
    """Bytes that are not a valid message within the limits, or a sparse vector that cannot be encoded."""


class Part(NamedTuple):
    """A piece of a message whose exact size is known before it is written."""

    size: int  # bytes
    write: Callable[[], bytes]


class Reader:
    """The unread part of a message."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        """The number of bytes not yet read."""
        return len(self._data) - self._position

    def take(self, count: int) -> Bytes:
        """Return the next ``count`` bytes."""
        if count > self.left:
            raise CodecError(f"the message ends early: {count} bytes needed, {self.left} left")
        start, self._position = self._position, self._position + count
        return self._data[start : self._position]

    def byte(self) -> int:
        """Return the next byte as a number."""
        return int(self.take(1)[0])

    def varint(self) -> int:
        """Return a number stored in 7-bit groups, lowest first, the high bit set on all but the last."""
        number = 0
        for group in range(_VARINT_BYTES):
            byte = self.byte()
            number |= (byte & 0x7F) << (7 * group)
            if byte < 0x80:
                if byte == 0 and group:
                    raise CodecError("a number is not in its shortest form")
                return number
        raise CodecError(f"a number is longer than {_VARINT_BYTES} bytes")

    def packed(self, count: int) -> Bytes:
        """Return the bytes that hold the next ``count`` bits; the padding bits of the last byte must be zero."""
        packed = self.take(byte_count(count))
        if count % 8 and packed[-1] >> (count % 8):
            raise CodecError("padding bits are not zero")
        return packed

    def bits(self, count: int) -> Bytes:
        """Return the next ``count`` bits, one in each byte of the result."""
        return np.unpackbits(self.packed(count), count=count, bitorder="little")


def byte_count(bits: Number) -> Number:
    """Return how many bytes hold ``bits`` bits: one number, or an array of them."""
    return (bits + 7) // 8


def varint(number: int) -> bytes:
    """Encode a number in the shortest form that ``Reader.varint`` reads."""
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def varint_sizes(numbers: Ints) -> Ints:
    """Return how many bytes ``varint`` gives for each number."""
    return 1 + np.searchsorted(1 << 7 * np.arange(1, _VARINT_BYTES), numbers, side="right")


def pack_bits(bits: NDArray[np.uint8] | Mask) -> bytes:
    """Pack an array of bits, one in each element, into bytes; the last byte is padded with zeros."""
    return np.packbits(bits, bitorder="little").tobytes()


def fixed_size(count: int, width: Number) -> Number:
    """Return how many bytes ``pack_fixed`` needs for ``count`` numbers; for each of an array of widths."""
    return count * (width // 8) + byte_count(count * (width % 8))


def pack_fixed(numbers: Unsigned, width: int) -> bytes:
    """Pack numbers below 2**width: the low ``width // 8`` bytes of each, then the remaining bits as one bit string."""
    whole, rest = divmod(width, 8)
    if whole in _INTEGER_SIZES:  # much faster than copying columns of bytes
        low = numbers.astype(f"<u{whole}").tobytes()
    else:
        low = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :whole].tobytes()
    if not rest:
        return low
    high = (numbers >> numbers.dtype.type(8 * whole)).astype(np.uint8)
    return low + pack_bits(np.unpackbits(high[:, None], axis=1, count=rest, bitorder="little"))


def read_fixed(reader: Reader, count: int, width: int, itemsize: int) -> Unsigned:
    """Read ``count`` numbers that ``pack_fixed`` wrote, as unsigned integers of ``itemsize`` bytes."""
    whole, rest = divmod(width, 8)
    low = reader.take(count * whole)
    if whole in _INTEGER_SIZES:
        numbers: Unsigned = low.view(f"<u{whole}").astype(f"u{itemsize}")
    else:
        columns = np.zeros((count, 8), np.uint8)
        columns[:, :whole] = low.reshape(count, whole)
        numbers = columns.view("<u8").reshape(count).astype(f"u{itemsize}")
    if rest:
        bits = np.zeros((count, 8), np.uint8)
        bits[:, :rest] = reader.bits(count * rest).reshape(count, rest)
        numbers |= np.packbits(bits, bitorder="little").astype(numbers.dtype) << numbers.dtype.type(8 * whole)
    return numbers


def pack_varied(numbers: Ints, widths: Ints) -> bytes:
    """Pack numbers[i], which is below 2**widths[i], into widths[i] bits (at most 62) of one bit string."""
    used = widths.nonzero()[0]
    if not len(used):
        return b""
    numbers, widths = numbers.take(used), widths.take(used)
    ends = np.cumsum(widths)
    starts = ends - widths
    word, shift = starts >> 6, starts & 63
    words = np.zeros((int(ends[-1]) >> 6) + 1, "<u8")
    first = np.append(0, (word[1:] != word[:-1]).nonzero()[0] + 1)
    words[word.take(first)] = np.bitwise_or.reduceat(numbers << shift, first).view(np.uint64)
    # At most one number crosses the end of a word, so no word is indexed twice here.
    across = (shift + widths > 64).nonzero()[0]
    words[word.take(across) + 1] |= (numbers.take(across) >> (64 - shift.take(across))).view(np.uint64)
    return words.view(np.uint8)[: byte_count(int(ends[-1]))].tobytes()


def read_varied(reader: Reader, widths: Ints) -> Ints:
    """Read the numbers that ``pack_varied`` wrote with these widths."""
    ends = np.cumsum(widths)
    total = int(ends[-1])
    packed = reader.packed(total)
    padded = np.zeros(len(packed) // 8 * 8 + 16, np.uint8)
    padded[: len(packed)] = packed
    words = padded.view("<u8").astype(np.uint64, copy=False)
    starts = ends - widths
    word, shift = starts >> 6, (starts & 63).view(np.uint64)
    # A shift by 64 is undefined, so the shift by 64 - shift is done in two steps.
    above = (words.take(word + 1) << (np.uint64(63) - shift)) << np.uint64(1)
    return ((words.take(word) >> shift) | above).view(np.int64) & ((1 << widths) - 1)
