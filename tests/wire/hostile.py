"""Hostile payloads: valid messages damaged in every way we can think of, and random bytes, thrown at ``decode``.

Half of the damage is blind, half knows the layout: it changes counts, modes, code lengths, tables or bit strings and
leaves the rest of the message as it was.

    python -m tests.wire.hostile 1000000 --seed 1

Whatever comes, ``decode`` must raise ``CodecError`` or return a valid message within its limits. Nine payloads in ten
carry a checksum that matches, so that the damage reaches the decoders behind it.
"""

import argparse
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from gradsift import Sparse, check_tensors
from gradsift.wire import VALUE_TYPES, CodecError, Limits, decode, encode
from tests.wire import slow_decoder
from tests.wire.messages import INDICES, VALUES, message

MAX_DIM, MAX_ELEMENTS = 5000, 1500
T = TypeVar("T")
LIMITS = Limits(max_dim=MAX_DIM, max_elements=MAX_ELEMENTS)


def checksummed(content: bytes) -> bytes:
    return content + zlib.crc32(content).to_bytes(4, "little")


def corpus(seed: int) -> list[bytes]:
    """Valid messages of every value type, index set and kind of value, small ones and some at the limits."""
    source = np.random.default_rng(seed)
    made = []
    for values in VALUE_TYPES:
        for indices in INDICES:
            for kind in VALUES:
                dim = int(source.choice([1, 2, 9, 60, 300, 1000]))
                k = int(source.choice([0, 1, dim // 20, dim // 3, dim - dim // 20, dim]))
                sparse = message(int(source.integers(2**32)), dim, k, indices, kind)
                # Halved, because float16 and bfloat16 rightly refuse to round the largest float32 up.
                made.append(encode(sparse._replace(values=sparse.values / 2), values=values))
    return made


def _varint(number: int) -> bytes:
    groups = []
    while number >= 128:
        groups.append(number % 128 + 128)
        number //= 128
    return bytes([*groups, number])


def _number(source: np.random.Generator) -> int:
    """Small, near the limits, or huge."""
    bits = int(source.integers(0, 64))
    near = int(source.choice([MAX_DIM, MAX_ELEMENTS, 2**31, 2**32, 2**48, 2**63])) + int(source.integers(-2, 3))
    return near if source.random() < 0.3 else int(source.integers(0, 2**62)) >> (62 - min(bits, 62))


def damage(source: np.random.Generator, content: bytearray, others: list[bytes]) -> bytearray:
    """One act of damage to a message without its checksum."""
    way = source.integers(0, 11)
    place = int(source.integers(0, len(content) + 1)) if source.random() < 0.5 else int(source.integers(0, 40))
    place = min(place if source.random() < 0.1 else max(place, 7), len(content))  # magic, version and type seldom
    if way <= 2 and content:
        content[place - 1] ^= 1 << int(source.integers(8))
    elif way == 3 and content:
        content[place - 1] = int(source.choice([0, 1, 2, 3, 127, 128, 254, 255, int(source.integers(256))]))
    elif way == 4:
        del content[place:]
    elif way == 5:
        content += source.bytes(int(source.integers(1, 40)))
    elif way == 6:
        content[place:place] = source.bytes(int(source.integers(1, 9)))
    elif way == 7:
        del content[place : place + int(source.integers(1, 9))]
    elif way == 8:
        other = others[int(source.integers(len(others)))][:-4]
        content[place:] = other[int(source.integers(0, len(other) + 1)) if source.random() < 0.5 else place :]
    elif way == 9:  # another dim and count
        tail = content[place:]
        content[6:] = _varint(_number(source)) + _varint(_number(source)) + tail
    else:
        length = int(source.integers(1, 30))
        content[place : place + length] = source.bytes(1) * length
    return content


class Field(NamedTuple):
    """A piece of a message that is read at once: a byte, a varint, bits, or other bytes."""

    kind: str
    content: bytes


class _Recorder(slow_decoder.Cursor):
    """Keeps the fields that were read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.fields: list[Field] = []

    def take(self, count: int) -> bytes:
        piece = super().take(count)
        self.fields.append(Field("bytes", piece))
        return piece

    def byte(self) -> int:
        return self._one("byte", super().byte)

    def varint(self) -> int:
        return self._one("varint", super().varint)

    def bit_string(self, count: int) -> list[int]:
        return self._one("bits", lambda: super(_Recorder, self).bit_string(count))

    def _one(self, kind: str, read: Callable[[], T]) -> T:
        """What is read as several pieces is one field."""
        before = len(self.fields)
        result = read()
        self.fields[before:] = [Field(kind, b"".join(field.content for field in self.fields[before:]))]
        return result


def fields(data: bytes) -> list[Field]:
    """The fields of a valid message, without its checksum."""
    recorders: list[_Recorder] = []

    def reader(content: bytes) -> _Recorder:
        recorders.append(_Recorder(content))
        return recorders[-1]

    slow_decoder.decode(data, reader=reader)
    return [field for field in recorders[0].fields if field.content]


def _other_number(source: np.random.Generator, field: Field) -> bytes:
    """A byte or varint near the old one, at a limit, or any."""
    if field.kind == "byte":
        near = (field.content[0] + int(source.integers(-2, 3))) % 256
        return bytes([int(source.choice([near, near, near, 0, 1, 2, 3, 127, 128, 255, int(source.integers(256))]))])
    old = sum((byte & 127) << 7 * group for group, byte in enumerate(field.content))
    near = max(0, old + int(source.integers(-2, 3)))
    return _varint(near if source.random() < 0.5 else _number(source))


def _other_bytes(source: np.random.Generator, content: bytes) -> bytes:
    """A table or bit string with a bit, a half byte, a byte or a word changed, or of another length."""
    changed = bytearray(content)
    way, place = source.integers(0, 7), int(source.integers(len(changed)))
    if way <= 1:
        changed[place] ^= 1 << int(source.integers(8))
    elif way == 2:
        changed[place] = changed[place] & 15 << 4 * int(source.integers(2))  # one of two code lengths is zero
    elif way == 3:
        changed[place] = int(source.choice([0, 1, 16, 127, 128, 255]))
    elif way == 4:  # equal or swapped neighbours in a table
        word = 4 * int(source.integers(1, 3))
        place -= place % word
        changed[place : place + word] = changed[place + word : place + 2 * word] or changed[:word]
    elif way == 5:
        changed += source.bytes(int(source.integers(1, 9)))
    else:
        del changed[place:]
    return bytes(changed)


def _resized(source: np.random.Generator, size: Field, table: Field) -> list[Field]:
    """A table one entry shorter or longer, of magnitudes or of code lengths, and the byte before it that says so."""
    entry, step = [(4, 1), (8, 1), (1, 2)][int(source.integers(3))]
    if source.random() < 0.5:
        return [Field("byte", bytes([max(0, size.content[0] - step)])), Field("bytes", table.content[:-entry])]
    return [
        Field("byte", bytes([min(255, size.content[0] + step)])),
        Field("bytes", table.content + source.bytes(entry)),
    ]


def refielded(source: np.random.Generator, message_fields: list[Field], others: list[Field]) -> bytes:
    """A message of which one to three fields are changed, replaced, repeated or left out; some may be empty then."""
    changed = list(message_fields)
    for _ in range(int(source.integers(1, 4))):
        first = int(source.choice([0, 2, 3, 5, 5, 5, 5, 5]))  # magic, version, type, dim and count seldom
        place = int(source.integers(first, len(changed))) if len(changed) > first else 0
        field = changed[place]
        way = source.integers(0, 10)
        if way == 0:
            changed[place] = others[int(source.integers(len(others)))]
        elif way == 1:
            changed.insert(place, field)
        elif way == 2 and len(changed) > 1:
            del changed[place]
        elif way <= 5 and field.kind == "bytes" and field.content and changed[place - 1].kind == "byte":
            changed[place - 1 : place + 1] = _resized(source, changed[place - 1], field)
        elif field.kind in ("byte", "varint") and field.content:
            changed[place] = Field(field.kind, _other_number(source, field))
        elif field.content:
            changed[place] = Field(field.kind, _other_bytes(source, field.content))
    return b"".join(field.content for field in changed)


def payloads(seed: int, count: int) -> Iterator[bytes]:
    """``count`` payloads, the same for the same seed."""
    source = np.random.default_rng(seed)
    valid = corpus(seed)
    known = [fields(data) for data in valid]
    every = [field for message_fields in known for field in message_fields]
    for _ in range(count):
        kind = source.random()
        if kind < 0.1:
            content = bytearray(source.bytes(int(source.integers(0, 200))))
            if source.random() < 0.7:  # a plausible header before it
                dim = int(source.integers(1, MAX_DIM + 1))
                header = b"GSFT\x01" + bytes([int(source.integers(1, 8))])
                content[:0] = header + _varint(dim) + _varint(int(source.integers(0, min(dim, 64) + 1)))
        elif kind < 0.55:
            content = bytearray(refielded(source, known[int(source.integers(len(known)))], every))
        else:
            content = bytearray(valid[int(source.integers(len(valid)))][:-4])
            for _ in range(int(source.integers(1, 4))):
                content = damage(source, content, valid)
        yield checksummed(bytes(content)) if source.random() < 0.9 else bytes(content)


def valid(sparse: Sparse, limits: Limits) -> None:
    """Raises unless this is a message that ``decode`` may return under these limits."""
    check_tensors.sparse("decoded", sparse, rows=False)
    if not (1 <= sparse.dim <= limits.max_dim and sparse.size <= limits.max_elements):
        raise AssertionError(f"beyond the limits: {sparse.dim}, {sparse.size}")
    if not bool((sparse.indices.diff() > 0).all()):
        raise AssertionError("not ascending")
    if sparse.values.dtype not in (torch.float32, torch.float64):
        raise AssertionError(f"values are {sparse.values.dtype}")


def attempt(data: bytes) -> str | None:
    """Why ``decode`` refused it, or None if it returned a valid message; anything else raises."""
    try:
        sparse = decode(data, LIMITS)
    except CodecError as refused:
        return str(refused)
    valid(sparse, LIMITS)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    reasons: Counter[str] = Counter()
    slowest = 0.0
    started = time.perf_counter()
    for data in payloads(options.seed, options.count):
        before = time.thread_time()
        try:
            reason = attempt(data)
        except BaseException:
            print(f"the payload: {data.hex()}")
            raise
        slowest = max(slowest, time.thread_time() - before)
        reasons["".join("#" if c.isdigit() else c for c in reason or "accepted")[:40]] += 1
    for name, count in reasons.most_common(40):
        print(f"{count:9d}  {name}")
    print(f"{options.count} payloads in {time.perf_counter() - started:.0f} s, the slowest {1e3 * slowest:.1f} ms")


if __name__ == "__main__":
    main()
