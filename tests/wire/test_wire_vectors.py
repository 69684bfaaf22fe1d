"""docs/wire.md says it all: a decoder written from that page alone takes what ours takes, and refuses the rest."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsift import Sparse
from gradsift.wire import VALUE_TYPES, CodecError, Limits, decode, encode, sets
from gradsift.wire.bits import varint
from gradsift.wire.number_types import NAMES, TYPES
from tests.examples import examples
from tests.wire import hostile, slow_decoder
from tests.wire.messages import messages

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).with_name("vectors") / "version1.json").read_text("utf-8"))


def hexes(values: list[float]) -> list[str]:
    return [value.hex() for value in values]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_both_decoders_read_the_vectors(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["message"])
    slow = slow_decoder.decode(data)
    fast = decode(data, Limits.of(vector["dim"]))
    assert slow.dim == fast.dim == vector["dim"]
    assert slow.indices == fast.indices.tolist() == vector["indices"]
    assert hexes(slow.values) == hexes(fast.values.tolist()) == vector["values"]
    kind = TYPES[vector["values as"]]
    assert slow.value_type == (kind.table_code if "table" in vector["name"] else kind.code)
    assert fast.values.dtype == (torch.float64 if vector["values as"] == "float64" else torch.float32)


def test_the_vectors_show_every_type_and_every_mode() -> None:
    assert {bytes.fromhex(vector["message"])[5] for vector in VECTORS} == set(NAMES)
    modes = set()
    for vector in VECTORS:
        data = bytes.fromhex(vector["message"])
        cursor = slow_decoder.Cursor(data[6:])
        dim, count = cursor.varint(), cursor.varint()
        if 0 < count < dim:
            modes.add(cursor.byte())
    assert modes == {sets.BITMAP, sets.GAPS, sets.RUNS, sets.RUNS + 1}


@given(
    sparse=st.one_of(messages(most=200), messages(torch.float64, most=200)),
    values=st.sampled_from([None, *VALUE_TYPES]),
)
@examples(300)
def test_the_slow_decoder_reads_whatever_ours_writes(sparse: Sparse, values: str | None) -> None:
    if sparse.size and values is not None:
        sparse = sparse._replace(values=sparse.values / 2)
    data = encode(sparse, values=values)
    slow, fast = slow_decoder.decode(data), decode(data, Limits.of(sparse.dim))
    assert slow.indices == fast.indices.tolist()
    assert hexes(slow.values) == hexes(fast.values.tolist())


@pytest.mark.slow
def test_the_two_agree_on_hostile_payloads() -> None:
    """A difference would be a rule that the page does not state, or one that we do not keep."""
    accepted = 0
    for data in hostile.payloads(seed=11, count=4000):
        try:
            slow = slow_decoder.decode(data, hostile.MAX_DIM, hostile.MAX_ELEMENTS)
        except ValueError:
            with pytest.raises(CodecError):
                decode(data, hostile.LIMITS)
            continue
        accepted += 1
        fast = decode(data, hostile.LIMITS)
        assert slow.dim == fast.dim
        assert slow.indices == fast.indices.tolist()
        assert hexes(slow.values) == hexes(fast.values.tolist())
    assert accepted > 100


def one_symbol(symbol: int, count: int) -> bytes:
    """``count`` times the same symbol."""
    table = bytearray((symbol + 2) // 2)
    table[symbol // 2] = 16 if symbol % 2 else 1
    return bytes([symbol]) + bytes(table) + bytes((count + 7) // 8)


def fast_or_none(data: bytes) -> Sparse | None:
    try:
        return decode(data, hostile.LIMITS)
    except CodecError:
        return None


@pytest.mark.parametrize("name", VALUE_TYPES)
def test_the_two_agree_on_every_corner_of_a_value(name: str) -> None:
    """Bases, symbols and low bits whose sum wraps around, is infinite, is zero, or just fits."""
    kind = TYPES[name]
    bases = {0, 1, kind.largest // 2, kind.largest, kind.largest + 1, 2 ** (8 * kind.base_bytes) - 1}
    scales = [1.0, 1e38, 2.0**-149, 0.0, -1.0, float("inf"), float("nan")] if kind.scaled else [1.0]
    accepted = 0
    for base in sorted(base for base in bases if base < 2 ** (8 * kind.base_bytes)):
        for w in sorted(
            {0, 1, 8, max(kind.width - 8, 0), kind.width - 2, kind.width - 1, kind.width, kind.width + 1, 255}
        ):
            for symbol in (0, 1, 2, 3, 4, 5, 6, 129, 130, 131, 254, 255):
                for fill, scale in [(0, scales[0]), *((255, scale) for scale in scales)]:
                    low = bytes([fill]) * (w // 8) + (bytes([fill & ((1 << w % 8) - 1)]) if w % 8 else b"")
                    content = b"GSFT\x01" + bytes([kind.code, 1, 1])
                    content += struct.pack("<f", scale) if kind.scaled else b""
                    content += base.to_bytes(kind.base_bytes, "little") + bytes([w]) + one_symbol(symbol, 1)
                    data = hostile.checksummed(content + ((low + bytes([0, 1])) if symbol >= 2 else b""))
                    fast = fast_or_none(data)
                    try:
                        slow = slow_decoder.decode(data)
                    except ValueError:
                        assert fast is None, data.hex()
                        continue
                    accepted += 1
                    assert fast is not None, data.hex()
                    assert hexes(fast.values.tolist()) == hexes(slow.values)
    assert accepted > 10


@pytest.mark.parametrize("length", [0, 1, 2, 6, 7, 8, 47, 48, 49, 62, 63, 64, 65, 66, 128, 255])
def test_the_two_agree_on_numbers_of_any_length(length: int) -> None:
    """Gaps and runs whose bit length no dimension has."""
    values = struct.pack("<I", 1) + bytes([0]) + one_symbol(2, 1) + bytes([0, 0])
    seen = set()
    for mode, coded in ((b"\x01", b""), (b"\x02", b"\x01"), (b"\x03", b"\x01"), (b"\x02", b"\x02")):
        for fill in (0, 255):
            ones = max(length - 1, 0) * (coded[0] if coded else 1)
            extra = ((1 << ones) - 1 if fill else 0).to_bytes((ones + 7) // 8, "little")
            for dim in (2, 64, 65, 127, 128, 129, 5000):
                integers = mode + coded + one_symbol(length, 1) + extra
                data = hostile.checksummed(b"GSFT\x01\x01" + varint(dim) + b"\x01" + integers + values)
                fast = fast_or_none(data)
                try:
                    slow = slow_decoder.decode(data)
                except ValueError:
                    assert fast is None, data.hex()
                    seen.add(False)
                    continue
                assert fast is not None, data.hex()
                assert fast.indices.tolist() == slow.indices
                seen.add(True)
    assert seen == ({True, False} if length < 13 else {False})
