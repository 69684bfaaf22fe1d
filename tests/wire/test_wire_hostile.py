"""Strangers' bytes: only ``CodecError`` or a valid message, and memory that the limits bound."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gradsift import GradsiftError, Sparse
from gradsift.wire import VALUE_TYPES, CodecError, Limits, decode, encode
from gradsift.wire.bits import varint
from gradsift.wire.number_types import NAMES
from tests.wire import hostile
from tests.wire.messages import INDICES, any_bits, few, message, top


@pytest.mark.slow
def test_thousands_of_damaged_payloads() -> None:
    refusals = [hostile.attempt(data) for data in hostile.payloads(seed=3, count=12_000)]
    assert 500 < refusals.count(None) < 6_000
    # The damage gets behind the header, to every decoder.
    parts = ["low bits", "code table", "not in the table", "padding", "runs", "sum to more", "holds", "the scale"]
    parts += ["do not ascend", "of a table is infinite", "are joined", "magnitudes, more than 128"]
    for part in parts:
        assert any(part in refusal for refusal in refusals if refusal), part


def test_every_truncation_and_every_extension_is_refused() -> None:
    for data in hostile.corpus(0)[::3]:
        if len(data) > 400:
            continue
        for end in range(len(data) - 4):
            for shortened in (data[:end], hostile.checksummed(data[:end])):
                with pytest.raises(CodecError):
                    decode(shortened, hostile.LIMITS)
        for more in (b"\0", b"\0\0\0\0\0", data):
            for longer in (data + more, hostile.checksummed(data[:-4] + more)):
                with pytest.raises(CodecError):
                    decode(longer, hostile.LIMITS)


def test_every_flipped_bit_is_found_by_the_checksum() -> None:
    data = encode(message(0, 100, 20))
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << (place % 8)
        with pytest.raises(CodecError):
            decode(bytes(flipped), hostile.LIMITS)


def test_bytes_like_objects_are_taken() -> None:
    data = encode(message(0, 100, 20))
    for same in (bytearray(data), memoryview(data)):
        assert torch.equal(decode(same, hostile.LIMITS).indices, decode(data, hostile.LIMITS).indices)
    for empty in (b"", bytearray(), memoryview(b"")):
        with pytest.raises(CodecError, match="ends early"):
            decode(empty, hostile.LIMITS)


LIMITED: list[tuple[Limits, str]] = [
    (Limits(99, 99), r"dimension 100 is not in \[1, 99\]"),
    (Limits(100, 19), "20 elements are more than 19"),
    (Limits(200, 50, dim=101), "dimension 100 is not the expected 101"),
    (Limits(200, 50, types=("int8", "float16")), "'float32' is not accepted here, only int8, float16"),
    (Limits.of(101), "dimension 100 is not the expected 101"),
    (Limits.of(100, 19), "20 elements are more than 19"),
]


@pytest.mark.parametrize(("limits", "reason"), LIMITED)
def test_limits_are_kept_and_named(limits: Limits, reason: str) -> None:
    data = encode(message(0, 100, 20))
    with pytest.raises(CodecError, match=reason):
        decode(data, limits)
    decode(data, Limits(100, 20, dim=100, types=("float32",)))


@pytest.mark.parametrize(
    "options",
    [
        {"max_dim": 0, "max_elements": 1},
        {"max_dim": 5, "max_elements": -1},
        {"max_dim": 5, "max_elements": 5, "dim": 6},
        {"max_dim": 5, "max_elements": 2, "types": ("float8",)},
    ],
)
def test_limits_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(GradsiftError):
        Limits(**options)


def peak(action: Callable[[], object]) -> int:
    """Bytes of memory taken at most while it runs."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


WIDE = Limits(max_dim=2**40, max_elements=2**40)
CLAIMS = [2**20, 2**30, 2**40]


@pytest.mark.parametrize("count", [*CLAIMS, 300])
@pytest.mark.parametrize("dim", CLAIMS)
@pytest.mark.parametrize("code", NAMES)
def test_a_small_message_that_claims_to_be_huge_takes_no_memory(code: int, dim: int, count: int) -> None:
    """Every mode of the index set, with counts and run counts that the bytes cannot hold."""
    header = b"GSFT\x01" + bytes([code]) + varint(dim) + varint(min(dim, count))
    tails = [bytes([mode]) + varint(runs) + bytes(60) for mode in range(4) for runs in (1, 300, dim - 1, 2**62)]
    tails += [bytes([0]) + b"\xff" * 60, b"", bytes(3), np.random.default_rng(code).bytes(300)]
    # All gaps of one length, or one run over everything: a set of any size in a few bytes.
    tails += [bytes([1, 0, 1]) + bytes(200), bytes([3, 0]) + bytes(200), bytes([2, 1, 0, 1, 0]) + bytes(200)]
    for tail in tails:
        data = hostile.checksummed(header + tail)

        def refuse(data: bytes = data) -> None:
            with pytest.raises(CodecError):
                decode(data, WIDE)

        assert peak(refuse) < 150_000, tail[:8].hex()


def bound(elements: int, dim: int, length: int) -> int:
    """What docs/wire.md promises, and the little that does not grow."""
    return 200 * min(elements, 8 * length) + min(dim, 8 * length) + 4 * length + 100_000


@pytest.mark.parametrize("values", VALUE_TYPES)
@pytest.mark.parametrize("indices", INDICES)
@pytest.mark.parametrize("fraction", [0.003, 0.3, 0.97, 1.0])
def test_memory_of_honest_messages_is_within_the_bound(
    values: str, indices: Callable[[np.random.Generator, int, int], np.ndarray], fraction: float
) -> None:
    dim = 20_000
    k = round(dim * fraction)
    for kind in (top, any_bits, few):
        sparse = message(1, dim, k, indices, kind)
        data = encode(sparse._replace(values=sparse.values / 2), values=values)
        assert peak(lambda data=data: decode(data, Limits.of(dim))) < bound(k, dim, len(data))  # type: ignore[misc]


def test_a_bitmap_fuller_than_announced_is_refused_within_the_bound() -> None:
    dim = 2_000_000
    full = b"\xff" * (dim // 8)
    data = hostile.checksummed(b"GSFT\x01\x01" + varint(dim) + varint(1) + bytes([0]) + full + bytes(16))

    def refuse() -> None:
        with pytest.raises(CodecError, match="2000000"):
            decode(data, Limits.of(dim, 1))

    assert peak(refuse) < bound(1, dim, len(data))


def test_only_contiguous_bytes_are_read() -> None:
    data = encode(Sparse(torch.arange(5), torch.ones(5), 50))
    with pytest.raises(CodecError, match="contiguous bytes"):
        decode(memoryview(data * 2)[::2], Limits.of(50))


@pytest.mark.parametrize("index_mode", ["gaps", "runs"])
@pytest.mark.parametrize("code", [5, 7])
def test_the_smallest_messages_that_unfold_to_the_most(index_mode: str, code: int) -> None:
    """Every gap or run alike, every value zero, of one bit each or, by table, of none: valid, and within the bound."""
    dim, count = 2**30, 80_000
    one_kind = bytes([0, 1])  # a table with symbol 0 alone
    integers = {"gaps": bytes([1]), "runs": bytes([2]) + varint(2 * count)}[index_mode] + one_kind
    integers += bytes(count // 8 if index_mode == "gaps" else 2 * count // 8)
    zeros = {5: np.float32(1).tobytes() + bytes([0, 0]) + one_kind + bytes(count // 8), 7: bytes(9) + bytes([2, 0])}
    data = hostile.checksummed(b"GSFT\x01" + bytes([code]) + varint(dim) + varint(count) + integers + zeros[code])
    made = decode(data, WIDE)
    assert made.indices.tolist() == list(range(count) if index_mode == "gaps" else range(1, 2 * count, 2))
    assert not made.values.any()
    assert peak(lambda: decode(data, WIDE)) < bound(count, dim, len(data))


def test_a_single_run_needs_no_bytes_for_its_indices() -> None:
    count = 80_000
    sparse = Sparse(torch.arange(7, 7 + count), torch.zeros(count), 10**9)
    data = encode(sparse)
    assert len(data) < count // 8 + 50
    assert peak(lambda: decode(data, WIDE)) < bound(count, 10**9, len(data))


def test_many_runs_for_few_elements_are_refused_before_they_are_read() -> None:
    """Runs are bounded by the elements they can hold, not only by the bytes that are there."""
    runs = bytes([2]) + varint(400_000) + bytes([0, 1]) + bytes(60_000)
    data = hostile.checksummed(b"GSFT\x01\x05" + varint(10**6) + varint(1) + runs)

    def refuse() -> None:
        with pytest.raises(CodecError, match="400001 runs are more than the set can have"):
            decode(data, WIDE)

    assert peak(refuse) < 50_000
