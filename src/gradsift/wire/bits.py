"""Bits in and out of bytes, whole arrays at a time. Within a byte the lowest bit comes first, everywhere.

Every read is checked against the bytes that are left before anything is allocated for it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsift.wire.errors import CodecError

Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]
Unsigned = NDArray[np.unsignedinteger[Any]]

_WORDS = (1, 2, 4, 8)  # bytes that are a type of integer
_VARINT_BYTES = 9  # 63 bits


class Reader:
    """The unread part of a message."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._place = 0

    @property
    def left(self) -> int:
        """Bytes not yet read."""
        return len(self._data) - self._place

    def take(self, count: int) -> Bytes:
        """The next ``count`` bytes."""
        if count > self.left:
            raise CodecError(f"the message ends early: {count} bytes needed, {self.left} left")
        start, self._place = self._place, self._place + count
        return self._data[start : self._place]

    def byte(self) -> int:
        """The next byte, as a number."""
        return int(self.take(1)[0])

    def varint(self) -> int:
        """A number in 7-bit groups, lowest first, the high bit set on all but the last."""
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
        """The next ``count`` bits, and the padding to a whole byte, which must be zero, as they are."""
        packed = self.take(byte_count(count))
        if count % 8 and packed[-1] >> (count % 8):
            raise CodecError("padding bits are not zero")
        return packed

    def bits(self, count: int) -> Bytes:
        """The next ``count`` bits, one a byte."""
        return np.unpackbits(self.packed(count), count=count, bitorder="little")


def byte_count(bits: int) -> int:
    """Bytes that hold so many bits."""
    return (bits + 7) // 8


def varint(number: int) -> bytes:
    """The shortest form that ``Reader.varint`` reads back."""
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def pack_bits(bits: NDArray[np.uint8] | Mask) -> bytes:
    """Bits, one an element, as bytes; the last is padded with zeros."""
    return np.packbits(bits, bitorder="little").tobytes()


def fixed_size(count: int, width: int) -> int:
    """Bytes that ``pack_fixed`` makes of ``count`` numbers."""
    return count * (width // 8) + byte_count(count * (width % 8))


def pack_fixed(numbers: Unsigned, width: int) -> bytes:
    """Numbers below 2**width: the lowest whole bytes of each, one after the other, then the bits above as a string."""
    whole, rest = divmod(width, 8)
    if whole in _WORDS:  # much faster than copying bytes here and there
        low = numbers.astype(f"<u{whole}").tobytes()
    else:
        low = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :whole].tobytes()
    if not rest:
        return low
    # Eight numbers of ``rest`` bits fill exactly ``rest`` bytes: one word each, and its unused bytes dropped.
    eights = np.zeros((byte_count(len(numbers)), 8), np.uint8)
    eights.reshape(-1)[: len(numbers)] = numbers >> numbers.dtype.type(8 * whole)
    words = np.zeros(len(eights), "<u8")
    for place in range(8):
        words |= eights[:, place].astype(np.uint64) << np.uint64(place * rest)
    high = words.view(np.uint8).reshape(-1, 8)[:, :rest].tobytes()
    return low + high[: byte_count(len(numbers) * rest)]


def read_fixed(reader: Reader, count: int, width: int, itemsize: int) -> Unsigned:
    """``count`` numbers that ``pack_fixed`` wrote, as unsigned integers of ``itemsize`` bytes."""
    whole, rest = divmod(width, 8)
    low = reader.take(count * whole)
    if whole in _WORDS:
        numbers: Unsigned = low.view(f"<u{whole}").astype(f"u{itemsize}")
    else:
        columns = np.zeros((count, 8), np.uint8)
        columns[:, :whole] = low.reshape(count, whole)
        numbers = columns.view("<u8").reshape(count).astype(f"u{itemsize}")
    if not rest:
        return numbers
    packed = reader.packed(count * rest)
    padded = np.zeros(byte_count(count) * rest, np.uint8)
    padded[: len(packed)] = packed
    columns = np.zeros((byte_count(count), 8), np.uint8)
    columns[:, :rest] = padded.reshape(-1, rest)
    words = columns.view("<u8").reshape(-1)
    eights = np.empty((len(words), 8), np.uint8)
    for place in range(8):
        eights[:, place] = (words >> np.uint64(place * rest)).astype(np.uint8) & np.uint8((1 << rest) - 1)
    high = eights.reshape(-1)[:count].astype(numbers.dtype)
    numbers |= high << numbers.dtype.type(8 * whole)
    return numbers


def pack_varied(numbers: Ints, widths: Ints) -> bytes:
    """Numbers of ``widths`` bits each (at most 62, the numbers below 2**width), as one bit string."""
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
    # A number that crosses into the next word: at most one a word, so plain indexing does not collide.
    across = (shift + widths > 64).nonzero()[0]
    words[word.take(across) + 1] |= (numbers.take(across) >> (64 - shift.take(across))).view(np.uint64)
    return words.view(np.uint8)[: byte_count(int(ends[-1]))].tobytes()


def read_varied(reader: Reader, widths: Ints) -> Ints:
    """The numbers that ``pack_varied`` wrote with these widths."""
    ends = np.cumsum(widths)
    total = int(ends[-1])
    packed = reader.packed(total)
    padded = np.zeros(len(packed) // 8 * 8 + 16, np.uint8)
    padded[: len(packed)] = packed
    words = padded.view("<u8").astype(np.uint64, copy=False)
    starts = ends - widths
    word, shift = starts >> 6, (starts & 63).view(np.uint64)
    # The second shift is by 64 - shift in two steps, because a shift by 64 is undefined.
    above = (words.take(word + 1) << (np.uint64(63) - shift)) << np.uint64(1)
    return ((words.take(word) >> shift) | above).view(np.int64) & ((1 << widths) - 1)
