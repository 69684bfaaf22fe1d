"""Write and read one message: header, indices, values and checksum, as docs/wire.md describes."""

import zlib
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch

from gradsift import check
from gradsift.sparse import Sparse
from gradsift.wire import levels, sets, values
from gradsift.wire.bits import CodecError, Ints, Mask, Part, Reader, varint
from gradsift.wire.integers import MAX_BITS
from gradsift.wire.number_types import NAMES, TYPES, NumberType, Signed, number_type

MAGIC = b"GSFT"
VERSION = 1
CHECKSUM_BYTES = 4


@dataclass(frozen=True)
class Limits:
    """What a receiver accepts; a larger message is refused before memory is allocated for it."""

    max_dim: int
    max_elements: int
    dim: int | None = None  # if given, the only dimension accepted
    types: tuple[str, ...] = tuple(TYPES)  # value types accepted

    def __post_init__(self) -> None:
        """Refuse limits that no message could meet."""
        check.integer("max_dim", self.max_dim, 1)
        check.integer("max_elements", self.max_elements, 0)
        if self.dim is not None:
            check.integer("dim", self.dim, 1, self.max_dim)
        for name in self.types:
            number_type(name)

    @classmethod
    def of(cls, dim: int, max_elements: int | None = None) -> "Limits":
        """Accept vectors of exactly ``dim`` elements, of which at most ``max_elements`` (default: all) are sent."""
        return cls(dim, dim if max_elements is None else max_elements, dim=dim)


def plan(indices: Ints, signed: Signed, dim: int, kind: NumberType) -> Part:
    """Prepare a message of ascending ``indices`` and their values, which are not checked."""
    code, parts = kind.code, []
    if len(indices):
        places = sets.plan_indices(indices, dim)
        code, content = _plan_values(signed, kind, places.size)
        parts = [places, content]
    header = MAGIC + bytes([VERSION, code]) + varint(dim) + varint(len(indices))

    def write() -> bytes:
        content = header + b"".join(part.write() for part in parts)
        return content + zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little")

    return Part(len(header) + sum(part.size for part in parts) + CHECKSUM_BYTES, write)


def _plan_values(signed: Signed, kind: NumberType, before: int) -> tuple[int, Part]:
    """Return the code of the value type and the smaller part: with a table of the magnitudes, or without one.

    ``before`` is the size of the indices: no message has less than a bit for each element, on which a decoder relies.
    """
    table = None if kind.table_code is None else levels.plan(signed, kind)
    if table is not None and not has_room(len(signed.magnitude), before + table.size + CHECKSUM_BYTES):
        table = None
    plain = values.plan(signed, kind)
    if kind.table_code is None or table is None or table.size >= plain.size:
        return kind.code, plain
    return kind.table_code, table


@overload
def has_room(count: int, size: int) -> bool: ...
@overload
def has_room(count: int, size: Ints) -> Mask: ...
def has_room(count: int, size: int | Ints) -> bool | Mask:
    """Whether ``size`` bytes, from the indices to the checksum, may hold ``count`` elements: at least a bit each."""
    return count <= 8 * size


def decode(data: bytes | bytearray | memoryview, limits: Limits) -> Sparse:
    """Decode one message; its pairs ascend by index, its values are float64 if they were sent as float64, else float32.

    Whatever the bytes are, this returns a valid ``Sparse`` within ``limits`` or raises ``CodecError``. It allocates
    under 200 bytes for each of min(max_elements, 8 * len(data)) elements, and min(max_dim, 8 * len(data)) bytes.
    """
    try:
        view = memoryview(data).cast("B")
    except TypeError as problem:
        raise CodecError(f"a message must be contiguous bytes, got {type(data).__name__}: {problem}") from problem
    reader = Reader(np.frombuffer(view, np.uint8))
    code, dim, count = _read_header(reader, limits)
    kind = TYPES[NAMES[code]]
    if zlib.crc32(view[:-CHECKSUM_BYTES]) != int.from_bytes(view[-CHECKSUM_BYTES:], "little"):
        raise CodecError("the checksum does not match: the message was damaged")
    indices = sets.read_indices(reader, count, dim)
    dtype = np.float64 if kind.base_bytes == 8 else np.float32
    read = levels.read if code == kind.table_code else values.read
    numbers = kind.join(read(reader, count, kind)) if count else np.zeros(0, dtype)
    if not np.isfinite(numbers).all():
        raise CodecError("a value is not finite")
    if reader.left != CHECKSUM_BYTES:
        raise CodecError(f"{reader.left} bytes are left for the checksum, which has {CHECKSUM_BYTES}")
    return Sparse(torch.from_numpy(indices), torch.from_numpy(numbers), dim)


def _read_header(reader: Reader, limits: Limits) -> tuple[int, int, int]:
    """Return the code of the value type, the dimension and the number of elements."""
    magic = reader.take(len(MAGIC)).tobytes()
    if magic != MAGIC:
        raise CodecError(f"not a gradsift message: it begins with {magic!r}, not {MAGIC!r}")
    version = reader.byte()
    if version != VERSION:
        raise CodecError(f"version {version} is unknown; this decoder reads version {VERSION}")
    code = reader.byte()
    name = NAMES.get(code)
    if name is None:
        raise CodecError(f"value type {code} is unknown")
    if name not in limits.types:
        raise CodecError(f"value type {name!r} is not accepted here, only {', '.join(limits.types)}")
    dim, count = reader.varint(), reader.varint()
    if not 1 <= dim <= min(limits.max_dim, 2**MAX_BITS - 1):
        raise CodecError(f"dimension {dim} is not in [1, {limits.max_dim}]")
    if limits.dim is not None and dim != limits.dim:
        raise CodecError(f"dimension {dim} is not the expected {limits.dim}")
    if count > min(limits.max_elements, dim):
        raise CodecError(f"{count} elements are more than {min(limits.max_elements, dim)}")
    if not has_room(count, reader.left):
        raise CodecError(f"{count} elements cannot be in {reader.left} bytes")
    return code, dim, count
