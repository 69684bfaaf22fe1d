"""A decoder written from docs/wire.md alone: plain Python, one bit at a time, nothing of gradsift.

It raises ``ValueError`` on what the page calls an error.
"""

import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

# value type: (width, largest magnitude, bytes of base, has a scale)
TYPES = {
    1: (31, 0x7F7FFFFF, 4, False),
    2: (63, 0x7FEFFFFFFFFFFFFF, 8, False),
    3: (15, 0x7BFF, 2, True),
    4: (15, 0x7F7F, 2, False),
    5: (7, 127, 1, True),
}
TABLES = {6: 1, 7: 2}  # value type with a table: the type of its magnitudes


class Message(NamedTuple):
    value_type: int
    dim: int
    indices: list[int]
    values: list[float]


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def take(self, count: int) -> bytes:
        if self.place + count > len(self.data):
            raise ValueError("ends early")
        piece = self.data[self.place : self.place + count]
        self.place += count
        return piece

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        number = 0
        for group in range(9):
            byte = self.byte()
            number |= (byte & 127) << (7 * group)
            if not byte & 128:
                if byte == 0 and group > 0:
                    raise ValueError("varint is not the shortest")
                return number
        raise ValueError("varint is too long")

    def bit_string(self, count: int) -> list[int]:
        packed = self.take((count + 7) // 8)
        bits = [packed[i // 8] >> (i % 8) & 1 for i in range(8 * len(packed))]
        if any(bits[count:]):
            raise ValueError("padding is not zero")
        return bits[:count]


def number(bits: list[int]) -> int:
    return sum(bit << place for place, bit in enumerate(bits))


def read_symbols(cursor: Cursor, count: int) -> list[int]:
    size = cursor.byte() + 1
    table = cursor.take((size + 1) // 2)
    lengths = [table[s // 2] >> 4 if s % 2 else table[s // 2] & 15 for s in range(size)]
    if size % 2 and table[-1] >> 4:
        raise ValueError("unused half is not zero")
    if lengths[-1] == 0:
        raise ValueError("the last symbol has no code")
    used = [length for length in lengths if length]
    complete = sum(2 ** (15 - length) for length in used) == 2**15
    if not complete and used != [1]:
        raise ValueError("the code is not complete")
    codes: dict[tuple[int, int], int] = {}
    code, length = 0, 0
    for want, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths) if length):
        code <<= want - length
        length = want
        codes[length, code] = symbol
        code += 1

    found: list[int | None] = [None] * count
    so_far = [0] * count
    for plane in range(1, 16):
        waiting = [i for i in range(count) if found[i] is None]
        if not waiting or plane > max(used):
            break
        for i, bit in zip(waiting, cursor.bit_string(len(waiting)), strict=True):
            so_far[i] = so_far[i] << 1 | bit
            found[i] = codes.get((plane, so_far[i]))
    symbols = [symbol for symbol in found if symbol is not None]
    if len(symbols) < count:
        raise ValueError("not a code")
    return symbols


def read_integers(cursor: Cursor, count: int) -> list[int]:
    lengths = read_symbols(cursor, count)
    bits = iter(cursor.bit_string(sum(max(length - 1, 0) for length in lengths)))
    integers = []
    for length in lengths:
        low = number([next(bits) for _ in range(length - 1)])
        integers.append(low + (1 << (length - 1)) if length else 0)
    return integers


def read_runs(cursor: Cursor, first: bool, total: int, most: int) -> list[int]:
    coded = cursor.varint()
    if coded > most:
        raise ValueError("more runs than the set can have")
    lengths = [integer + 1 for integer in read_integers(cursor, coded)] if coded else []
    lengths.append(total - sum(lengths))
    if lengths[-1] < 1:
        raise ValueError("runs are too long")
    members: list[int] = []
    place, present = 0, first
    for length in lengths:
        if present:
            members += range(place, place + length)
        place, present = place + length, not present
    return members


def read_index_set(cursor: Cursor, count: int, dim: int) -> list[int]:
    mode = cursor.byte()
    if mode == 0:
        members = [place for place, bit in enumerate(cursor.bit_string(dim)) if bit]
    elif mode == 1:
        gaps = read_integers(cursor, count if 2 * count <= dim else dim - count)
        listed, place = [], -1
        for gap in gaps:
            place += gap + 1
            listed.append(place)
        if listed[-1] >= dim:
            raise ValueError("out of range")
        members = listed if 2 * count <= dim else sorted(set(range(dim)) - set(listed))
    elif mode in (2, 3):
        # A set of ``count`` members has at most that many runs of members, and one more of others.
        members = read_runs(cursor, mode == 3, dim, 2 * count)
    else:
        raise ValueError("unknown mode")
    if len(members) != count:
        raise ValueError("wrong number of members")
    return members


def read_mask(cursor: Cursor, total: int) -> list[int]:
    mode = cursor.byte()
    if mode == 0:
        return cursor.bit_string(total)
    if mode in (2, 3):
        members = set(read_runs(cursor, mode == 3, total, total))
        return [int(place in members) for place in range(total)]
    raise ValueError("unknown mode")


def as_float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        raise ValueError("overflow") from None


def value_of(value_type: int, negative: int, magnitude: int, scale: float) -> float:
    if value_type == 1:
        return float(struct.unpack("<f", struct.pack("<I", negative << 31 | magnitude))[0])
    if value_type == 2:
        return float(struct.unpack("<d", struct.pack("<Q", negative << 63 | magnitude))[0])
    if value_type == 3:
        half = struct.unpack("<e", struct.pack("<H", negative << 15 | magnitude))[0]
        return as_float32(half * scale)
    if value_type == 4:
        return float(struct.unpack("<f", struct.pack("<I", negative << 31 | magnitude << 16))[0])
    return as_float32((-float(magnitude) if negative else float(magnitude)) * scale)


def read_values(cursor: Cursor, count: int, value_type: int) -> list[float]:
    width, largest, base_bytes, scaled = TYPES[value_type]
    scale = 1.0
    if scaled:
        scale = struct.unpack("<f", cursor.take(4))[0]
        if not 0 < scale < float("inf"):
            raise ValueError("bad scale")
    base = int.from_bytes(cursor.take(base_bytes), "little")
    w = cursor.byte()
    if w >= width:
        raise ValueError("too many low bits")
    symbols = read_symbols(cursor, count)
    filled = sum(symbol >= 2 for symbol in symbols)
    if filled == 0 and (base or w):
        raise ValueError("base or low bits without a magnitude")
    if filled and base == 0:
        raise ValueError("base is zero")
    low = [int.from_bytes(cursor.take(w // 8), "little") for _ in range(filled)]
    bits = iter(cursor.bit_string(filled * (w % 8)))
    low = [part + (number([next(bits) for _ in range(w % 8)]) << (8 * (w // 8))) for part in low]
    signs = iter(read_mask(cursor, filled) if filled else [])
    lows = iter(low)
    values = []
    for symbol in symbols:
        if symbol < 2:
            values.append(value_of(value_type, symbol, 0, scale))
            continue
        magnitude = base + ((symbol - 2) << w) + next(lows)
        if magnitude > largest:
            raise ValueError("not finite")
        values.append(value_of(value_type, next(signs), magnitude, scale))
    return values


def read_by_table(cursor: Cursor, count: int, value_type: int) -> list[float]:
    _, largest, size, _ = TYPES[value_type]
    levels = cursor.byte() + 1
    if levels > 128:
        raise ValueError("too many levels")
    table = cursor.take(levels * size)
    magnitudes = [int.from_bytes(table[i * size : (i + 1) * size], "little") for i in range(levels)]
    if magnitudes != sorted(set(magnitudes)) or magnitudes[-1] > largest:
        raise ValueError("bad table")
    places = [0] * count
    if levels > 1:
        joined = cursor.byte()
        if joined == 0 and levels == 2:
            places = read_mask(cursor, count)
        elif joined == 0 or levels**joined > 256:
            raise ValueError("bad number of joined places")
        else:
            places = []
        for symbol in read_symbols(cursor, (count + joined - 1) // joined) if joined else []:
            for _ in range(joined):
                places.append(symbol % levels)
                symbol //= levels
            if symbol:
                raise ValueError("not a symbol of joined places")
        if any(places[count:]):
            raise ValueError("places are left")
    signs = read_mask(cursor, count)
    return [value_of(value_type, sign, magnitudes[place], 1.0) for sign, place in zip(signs, places, strict=False)]


def decode(
    data: bytes, max_dim: int = 2**48 - 1, max_elements: int = 2**48 - 1, reader: Callable[[bytes], Cursor] = Cursor
) -> Message:
    content = data[:-4]
    if len(data) < 4 or zlib.crc32(content) != int.from_bytes(data[-4:], "little"):
        raise ValueError("checksum")
    cursor = reader(content)
    if cursor.take(4) != b"GSFT" or cursor.byte() != 1:
        raise ValueError("magic or version")
    value_type = cursor.byte()
    if value_type not in TYPES and value_type not in TABLES:
        raise ValueError("value type")
    dim, count = cursor.varint(), cursor.varint()
    if not 1 <= dim <= max_dim or count > min(dim, max_elements) or count > 8 * (len(data) - cursor.place):
        raise ValueError("dim or count")
    indices = read_index_set(cursor, count, dim) if 0 < count < dim else list(range(count))
    values: list[float] = []
    if count and value_type in TABLES:
        values = read_by_table(cursor, count, TABLES[value_type])
    elif count:
        values = read_values(cursor, count, value_type)
    if cursor.place != len(content):
        raise ValueError("bytes are left")
    return Message(value_type, dim, indices, values)
