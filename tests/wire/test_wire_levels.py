"""Values of few magnitudes: sent by a table, near their entropy, and read from strangers as safely as the others."""

import itertools
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.low_bits import bound, rounded
from gradsift import Sparse, top_k
from gradsift.wire import CodecError, Limits, decode, encode, encoded_size, levels, transmitted
from gradsift.wire.bits import varint
from gradsift.wire.number_types import TYPES
from tests.examples import examples
from tests.wire import hostile, slow_decoder
from tests.wire.messages import INDICES, Values, bits_of, few, message, ordered

DIM = 444_062
BITS = [1, 2, 3, 4, 8]
TAILS = {
    "exponential": torch.distributions.Laplace(0.0, 1.0),
    "normal": torch.distributions.Normal(0.0, 1.0),
    "heavy": torch.distributions.StudentT(3.0),
}


def value_type(data: bytes) -> int:
    return data[5]


@given(
    seed=st.integers(0, 2**32),
    k=st.integers(1, 400),
    more=st.integers(0, 400),
    indices=st.sampled_from(INDICES),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@examples(400)
def test_few_magnitudes_arrive_bit_for_bit(seed: int, k: int, more: int, indices: object, dtype: torch.dtype) -> None:
    sparse = message(seed, k + more, k, indices, few, dtype)  # type: ignore[arg-type]
    data = encode(sparse)
    arrived = decode(data, Limits.of(sparse.dim, k))
    assert torch.equal(arrived.indices, ordered(sparse).indices)
    assert bits_of(arrived.values) == bits_of(ordered(sparse).values)
    assert bits_of(transmitted(sparse).values) == bits_of(sparse.values)
    assert len(data) == encoded_size(sparse)
    slow = slow_decoder.decode(data)
    assert [value.hex() for value in slow.values] == [value.hex() for value in arrived.values.tolist()]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("k", [1_000, 3_000, 10_000, 44_406, 111_016, 150_000, 222_031])
def test_rounded_top_k_messages_are_within_five_percent_of_the_bound(tail: str, bits: int, k: int) -> None:
    """log2 C(D, k), the entropy of the levels and of the signs, and the table."""
    torch.manual_seed(0)
    sparse = rounded(top_k(TAILS[tail].sample(torch.Size([DIM])), k), bits)
    data = encode(sparse)
    assert value_type(data) == 6
    assert 8 * len(data) <= 1.05 * bound(sparse)


@pytest.mark.parametrize(("dtype", "code"), [(torch.float32, 6), (torch.float64, 7)])
def test_a_table_is_used_for_values_sent_exactly_and_for_no_others(dtype: torch.dtype, code: int) -> None:
    sparse = rounded(message(1, 5000, 800, dtype=dtype), 3)
    for values, type_code in (
        (None, code),
        ("float32", 6),
        ("float64", 7),
        ("float16", 3),
        ("bfloat16", 4),
        ("int8", 5),
    ):
        assert value_type(encode(sparse, values=values)) == type_code
    name = str(dtype).removeprefix("torch.")
    decode(encode(sparse), Limits(5000, 800, types=(name,)))
    with pytest.raises(CodecError, match=f"'{name}' is not accepted here"):
        decode(encode(sparse), Limits(5000, 800, types=("int8",)))


@pytest.mark.parametrize(("distinct", "code"), [(127, 6), (128, 6), (129, 1)])
def test_a_table_has_at_most_128_levels(distinct: int, code: int) -> None:
    values = torch.from_numpy(np.random.default_rng(0).standard_normal(distinct).astype(np.float32)).repeat(200)
    sparse = Sparse(torch.arange(len(values)), values, 10**6)
    assert value_type(encode(sparse)) == code


def test_ordinary_values_are_told_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    real = np.unique

    def watched(array: np.ndarray) -> np.ndarray:
        looked_at.append(len(array))
        return real(array)

    monkeypatch.setattr(np, "unique", watched)
    encoded_size(message(0, 300_000, 100_000))
    assert looked_at == [pytest.approx(levels.SAMPLE, rel=0.01)]


def joined(data: bytes, dim: int, count: int) -> int:
    """How many places are joined in a message with all elements, which has no indices."""
    start = 6 + len(varint(dim)) + len(varint(count))
    return data[start + 1 + 4 * (data[start] + 1)]


@pytest.mark.parametrize(("odds", "places"), [(0.5, 0), (0.85, 4), (0.93, 8), (0.995, 0)])
def test_places_are_joined_or_a_set_where_one_is_frequent(odds: float, places: int) -> None:
    source = np.random.default_rng(0)
    values = np.where(source.random(20_000) < odds, 0.3, 0.7) * source.choice([-1.0, 1.0], 20_000)
    data = encode(Sparse(torch.arange(20_000), torch.from_numpy(values).float(), 20_000))
    assert joined(data, 20_000, 20_000) == places
    entropy = 1 - odds * np.log2(odds) - (1 - odds) * np.log2(1 - odds)
    assert 8 * len(data) < 1.03 * entropy * 20_000 + 1100


@pytest.mark.parametrize("other", [1.5, -1.5, 2.5])
def test_a_message_of_less_than_a_bit_an_element_is_not_written(other: float) -> None:
    """All elements, nearly all alike: with a table they would need no bits, and a decoder would refuse them."""
    values = torch.full([30_000], 1.5)
    values[7] = other
    sparse = Sparse(torch.arange(30_000), values, 30_000)
    data = encode(sparse)
    assert value_type(data) == 1
    assert bits_of(decode(data, Limits.of(30_000)).values) == bits_of(values)


def content(code: int, dim: int, count: int, *parts: bytes) -> bytes:
    return hostile.checksummed(b"GSFT\x01" + bytes([code]) + varint(dim) + varint(count) + b"".join(parts))


def test_a_few_bytes_do_not_unfold_to_many_elements() -> None:
    signs, table = b"\x02\x00", b"\x00" + struct.pack("<f", 1.5)
    for count in (88, 89):  # 11 bytes are left: table, signs and checksum
        data = content(6, count, count, table, signs)
        if count <= 88:
            assert decode(data, Limits.of(count)).values.tolist() == [1.5] * count
        else:
            with pytest.raises(CodecError, match="89 elements cannot be in 11 bytes"):
                decode(data, Limits.of(count))


def agree(data: bytes) -> bool:
    """Whether both decoders take it; they must agree, also on the values."""
    try:
        slow = slow_decoder.decode(data)
    except ValueError:
        with pytest.raises(CodecError):
            decode(data, hostile.LIMITS)
        return False
    fast = decode(data, hostile.LIMITS)
    assert [value.hex() for value in fast.values.tolist()] == [value.hex() for value in slow.values]
    return True


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_the_two_decoders_agree_on_every_corner_of_a_table(name: str) -> None:
    """Numbers of levels, magnitudes and joined places at their limits and beyond."""
    kind = TYPES[name]
    assert kind.table_code is not None
    numbers = [0, 1, 2, kind.largest - 1, kind.largest, kind.largest + 1, 2 ** (8 * kind.base_bytes) - 1]
    seen = set()
    for table in itertools.chain(itertools.product(numbers, repeat=1), itertools.product(numbers, repeat=2)):
        words = b"".join(number.to_bytes(kind.base_bytes, "little") for number in table)
        for places in (0, 1, 2, 8, 9, 255) if len(table) > 1 else (1,):
            # Two symbols, 0 and 1, of one bit each; the values are 1 + 2 * places, so that there is a rest.
            symbols = bytes([places]) + bytes([1, 0x11, 0b01]) if len(table) > 1 else b""
            for size in {len(table), len(table) - 1, len(table) + 1, 129, 256} - {0}:
                data = content(kind.table_code, 9, 9, bytes([size - 1]), words, symbols, b"\x00\x55\x01")
                seen.add(agree(data))
    assert seen == {True, False}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_two_decoders_agree_on_every_symbol(count: int) -> None:
    """Symbols that joined places do not have, and places after the last value."""
    table = struct.pack("<fff", 0.5, 1.0, 2.0)
    taken = set()
    for places, symbol in itertools.product(range(1, 6), range(256)):
        lengths = bytearray((symbol + 2) // 2)
        lengths[symbol // 2] = 16 if symbol % 2 else 1
        symbols = bytes([places, symbol]) + lengths + bytes(1)
        if agree(content(6, count, count, b"\x02", table, symbols, b"\x00", bytes(1))):
            taken.add((places, symbol))
    # All places of every symbol are of values, or those that are not are zero.
    assert taken == {
        (places, symbol)
        for places, symbol in itertools.product(range(1, 6), range(256))
        if symbol < 3 ** min(places, count if -(-count // places) == 1 else count % places or places)
    }


def levels_of(count: int) -> Values:
    return np.geomspace(1e-3, 1.0, count)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 15, 16, 17, 128])
def test_every_number_of_levels(count: int) -> None:
    source = np.random.default_rng(count)
    values = source.choice(levels_of(count), 3001) * source.choice([-1.0, 1.0], 3001)
    sparse = Sparse(torch.arange(0, 9003, 3), torch.from_numpy(values), 10_000)
    data = encode(sparse)
    assert value_type(data) == 7
    assert bits_of(decode(data, Limits.of(10_000)).values) == bits_of(sparse.values)
