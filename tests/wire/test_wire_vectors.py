"""docs/wire.md says it all: a decoder written from that page alone takes what ours takes, and refuses the rest."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsift import Sparse
from gradsift.wire import VALUE_TYPES, CodecError, Limits, decode, encode, sets
from gradsift.wire.number_types import TYPES
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
    assert slow.value_type == TYPES[vector["values as"]].code
    assert fast.values.dtype == (torch.float64 if vector["values as"] == "float64" else torch.float32)


def test_the_vectors_show_every_type_and_every_mode() -> None:
    assert {vector["values as"] for vector in VECTORS} == set(VALUE_TYPES)
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
@settings(max_examples=300)
def test_the_slow_decoder_reads_whatever_ours_writes(sparse: Sparse, values: str | None) -> None:
    if sparse.size and values is not None:
        sparse = sparse._replace(values=sparse.values / 2)
    data = encode(sparse, values=values)
    slow, fast = slow_decoder.decode(data), decode(data, Limits.of(sparse.dim))
    assert slow.indices == fast.indices.tolist()
    assert hexes(slow.values) == hexes(fast.values.tolist())


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
