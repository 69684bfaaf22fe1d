"""What is decoded is what was encoded: exactly, or exactly what ``transmitted`` says."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsift import GradsiftError, LinkTime, Sparse, Traffic
from gradsift.wire import VALUE_TYPES, CodecError, Limits, decode, encode, encoded_size, transmitted
from tests.examples import examples
from tests.wire.messages import (
    VALUES,
    Indices,
    Source,
    any_bits,
    bits_of,
    block,
    clustered,
    message,
    messages,
    normal,
    ordered,
    scattered,
    top,
)


def same(left: Sparse, right: Sparse) -> bool:
    return (
        left.dim == right.dim
        and torch.equal(left.indices, right.indices)
        and left.values.dtype == right.values.dtype
        and bits_of(left.values) == bits_of(right.values)
    )


@given(sparse=st.one_of(messages(), messages(torch.float64)))
@examples(500)
def test_lossless_is_bit_for_bit_and_ordered_by_index(sparse: Sparse) -> None:
    data = encode(sparse)
    assert same(decode(data, Limits.of(sparse.dim, sparse.size)), ordered(sparse))
    assert data == encode(ordered(sparse))
    assert len(data) == encoded_size(sparse)
    assert same(transmitted(sparse), sparse)


@given(sparse=messages(), values=st.sampled_from(VALUE_TYPES))
@examples(300)
def test_transmitted_is_what_arrives(sparse: Sparse, values: str) -> None:
    if sparse.size and sparse.values.abs().max() > 3.39e38 and values in ("float16", "bfloat16"):
        sparse = sparse._replace(values=sparse.values / 2)  # it would be refused
    data = encode(sparse, values=values)
    arrived = decode(data, Limits.of(sparse.dim))
    sent = transmitted(sparse, values=values)
    assert torch.equal(sent.indices, sparse.indices)
    assert same(arrived, ordered(sent))
    assert len(data) == encoded_size(sparse, values=values)


@pytest.mark.parametrize("spread", [1, 2, 127, 128, 252, 253, 254, 255, 256, 507, 508, 511, 512, 2**20, 2**31 - 2**24])
def test_two_magnitudes_at_any_distance(spread: int) -> None:
    """The most symbols there may be is the tightest code here, up to the last one that fits."""
    bits = np.random.default_rng(spread).choice([1, 1 + spread // 3, 1 + spread], 4000).astype(np.uint32)
    sparse = Sparse(torch.arange(4000), torch.from_numpy(bits.view(np.float32)), 4000)
    data = encode(sparse)
    assert same(decode(data, Limits.of(4000)), sparse)
    if spread < 254:
        assert 8 * len(data) < 1.75 * 4000 + 4 * 256 + 400  # no low bits: the entropy of three alike is 1.58 bits


@pytest.mark.parametrize("values", VALUE_TYPES)
@pytest.mark.parametrize("make", VALUES)
def test_rows_are_as_many_messages(values: str, make: Callable[[Source, int], np.ndarray]) -> None:
    rows = [message(seed, 200, 50, values=make) for seed in range(4)]
    rows = [row._replace(values=row.values * 0.25 ** (1 + i)) for i, row in enumerate(rows)]  # a scale each
    stacked = Sparse(torch.stack([r.indices for r in rows]), torch.stack([r.values for r in rows]), 200)
    sizes = encoded_size(stacked, values=values)
    assert sizes.shape == (4,)
    assert sizes.tolist() == [len(encode(row, values=values)) for row in rows]
    sent = transmitted(stacked, values=values)
    for i, row in enumerate(rows):
        assert same(Sparse(sent.indices[i], sent.values[i], 200), transmitted(row, values=values))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_tensors_travel_as_they_are(dtype: torch.dtype) -> None:
    bits = torch.arange(2**15, dtype=torch.int16).view(dtype)
    positive = bits[torch.isfinite(bits)]
    every = torch.cat([positive, -positive])  # every finite number of the type, subnormal ones and both zeros too
    sparse = Sparse(torch.arange(len(every)), every, len(every))
    arrived = decode(encode(sparse), Limits.of(sparse.dim))
    assert bits_of(arrived.values) == bits_of(every.float())


def test_bfloat16_rounds_as_torch_does() -> None:
    bits = np.random.default_rng(0).integers(0, 0x7F7F0000, 20_000).astype(np.uint32)
    bits[::2] = bits[::2] & 0xFFFF0000 | 0x8000  # halfway between two
    numbers = torch.from_numpy(bits.view(np.float32))
    sparse = Sparse(torch.arange(len(numbers)), numbers, len(numbers))
    assert bits_of(transmitted(sparse, values="bfloat16").values) == bits_of(numbers.bfloat16().float())


ERRORS = {  # |error| <= relative * |value| + absolute * largest, in exact arithmetic; a little more for rounding here
    "float16": (2.0**-11, 2.0**-40),
    "bfloat16": (2.0**-8, 0.0),
    "int8": (0.0, 0.5 / 127),
}


@pytest.mark.parametrize("values", ERRORS)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6, 1e38])
def test_rounding_stays_within_half_a_step(values: str, scale: float) -> None:
    sparse = message(3, 4000, 1000, values=lambda s, k: np.clip(top(s, k) * 1e3, -3, 3) * scale)
    error = (transmitted(sparse, values=values).values.double() - sparse.values.double()).abs()
    relative, absolute = ERRORS[values]
    size = sparse.values.double().abs()
    bound = relative * size + absolute * size.max()
    assert bool((error <= bound * (1 + 1e-6)).all())
    assert float(error.max()) > float(bound.max()) / 8  # it is indeed rounded


@pytest.mark.parametrize("values", ["float16", "int8"])
def test_a_scale_makes_room_for_the_largest(values: str) -> None:
    for largest in [1e-45, 1e-40, 2.0**-126, 1e-6, 65504.0, 65519.0, 65520.0, 65536.0, 1e30, 3.3e38]:
        sparse = Sparse(torch.arange(3), torch.tensor([largest, -largest, largest / 2]), 3)
        arrived = decode(encode(sparse, values=values), Limits.of(3)).values
        assert bool(torch.isfinite(arrived).all())
        if largest > 2.0**-110:
            assert (arrived[:2].double() / sparse.values[:2].double()).tolist() == pytest.approx([1, 1], rel=2.0**-11)
            assert abs(float(arrived[2]) / largest - 0.5) <= 0.51 / 127


def test_int8_carries_the_largest_float32_there_is() -> None:
    huge = torch.finfo(torch.float32).max
    for step in range(200):
        value = float(np.float32(huge) * (1 - step * 2.0**-24))
        sparse = Sparse(torch.arange(2), torch.tensor([value, -value]), 2)
        assert bool(torch.isfinite(decode(encode(sparse, values="int8"), Limits.of(2)).values).all())


@pytest.mark.parametrize(
    ("values", "number"),
    [("float32", 1e39), ("float16", 3.402e38), ("bfloat16", 3.4e38), ("float16", 1e300), ("int8", -1e39)],
)
def test_an_overflow_is_refused_with_the_value(values: str, number: float) -> None:
    sparse = Sparse(torch.tensor([4, 5]), torch.tensor([1.0, number], dtype=torch.float64), 9)
    for function in (encode, encoded_size, transmitted):
        with pytest.raises(CodecError, match=r"(3\.40?2?\d*e\+38|-?[19][.9\d]*e\+3[89]|1e\+300) is too large for"):
            function(sparse, values=values)


BAD = [
    (Sparse(torch.tensor([1, 1]), torch.ones(2), 4), "index 1 twice"),
    (Sparse(torch.tensor([7, 1, 7]), torch.ones(3), 10_000), "index 7 twice"),
    (Sparse(torch.tensor([4]), torch.ones(1), 4), r"index 4, outside \[0, 4\)"),
    (Sparse(torch.tensor([2, -1]), torch.ones(2), 4), r"index -1, outside"),
    (Sparse(torch.tensor([1, 2]), torch.tensor([1.0, float("nan")]), 4), r"must be finite, got nan at \[1\]"),
    (Sparse(torch.tensor([1, 2]), torch.tensor([1.0, -float("inf")]), 4), "must be finite, got -inf"),
    (Sparse(torch.tensor([1, 2]), torch.tensor([1.0, float("nan")]).double(), 4), "must be finite, got nan"),
    (Sparse(torch.tensor([1, 2]), torch.tensor([1.0, float("inf")]).bfloat16(), 4), "must be finite, got inf"),
    (Sparse(torch.tensor([1, 2]), torch.ones(3), 4), "differ in shape"),
    (Sparse(torch.tensor([1, 2], dtype=torch.int32), torch.ones(2), 4), "int64"),
    (Sparse(torch.tensor([1, 2]), torch.ones(2, dtype=torch.int64), 4), "floating-point"),
    (Sparse(torch.tensor([], dtype=torch.int64), torch.ones(0), 0), "dim"),
    (Sparse(torch.tensor([], dtype=torch.int64), torch.ones(0), 2**48), "dim"),
    (Sparse(torch.zeros(1, 1, 1, dtype=torch.int64), torch.ones(1, 1, 1), 4), r"\[k\]"),
]


@pytest.mark.parametrize(("sparse", "reason"), BAD)
def test_what_is_not_a_set_of_finite_values_is_refused(sparse: Sparse, reason: str) -> None:
    for function in (encode, encoded_size):
        with pytest.raises(GradsiftError, match=reason):
            function(sparse)


def test_every_row_is_a_set_by_itself() -> None:
    rows = Sparse(torch.tensor([[1, 2, 3], [3, 1, 2], [2, 1, 3]]), torch.ones(3, 3), 4)
    assert len(set(encoded_size(rows).tolist())) == 1
    rows.indices[2, 2] = 1
    with pytest.raises(GradsiftError, match="index 1 twice in row 2"):
        encoded_size(rows)


def test_encode_takes_one_message() -> None:
    with pytest.raises(CodecError, match=r"must have shape \[k\], got \[2, 3\]"):
        encode(Sparse(torch.arange(3).expand(2, 3), torch.ones(2, 3), 4))


def test_an_unknown_value_type_is_refused_by_name() -> None:
    with pytest.raises(CodecError, match="'float8'; valid: float32"):
        encode(message(0, 9, 3), values="float8")


DIM = 444_062
FRACTIONS = [1e-4, 2e-4, 5e-4, 1e-3, 3e-3, 1e-2, 0.0225, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.99, 0.9999, 1.0]


def entropy_bits(dim: int, k: int) -> float:
    """log2 C(dim, k) + 32 k."""
    lgamma = torch.lgamma(torch.tensor([dim, k, dim - k], dtype=torch.float64) + 1)
    return float(lgamma[0] - lgamma[1] - lgamma[2]) / float(np.log(2)) + 32 * k


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("values", [normal, any_bits])
def test_random_messages_are_near_their_entropy(fraction: float, values: Callable[[Source, int], np.ndarray]) -> None:
    k = round(fraction * DIM)
    size = int(encoded_size(message(7, DIM, k, values=values)))
    assert 8 * size <= 1.03 * entropy_bits(DIM, k) + 64 * 8
    if values is normal and k > 1000:
        assert 8 * size < 0.91 * entropy_bits(DIM, k)  # the exponents are not random


def test_a_top_k_message_is_far_below() -> None:
    k = 10_000
    size = int(encoded_size(message(7, DIM, k, clustered, top)))
    assert 8 * size < 0.75 * entropy_bits(DIM, k)


@pytest.mark.parametrize(
    ("indices", "k", "mode"), [(scattered, 40, 1), (scattered, 960, 1), (scattered, 500, 0), (block, 500, 2)]
)
def test_each_way_to_code_indices_is_used_where_it_is_smallest(
    indices: Callable[[Source, int, int], Indices], k: int, mode: int
) -> None:
    data = encode(message(1, 1000, k, indices))
    after_header = 4 + 1 + 1 + 2 + (1 if k < 128 else 2)
    assert data[after_header] == mode


def test_link_time_prices_what_is_really_sent() -> None:
    rows = [message(seed, 5000, 300, clustered, top) for seed in range(3)]
    uploads = Sparse(torch.stack([r.indices for r in rows]), torch.stack([r.values for r in rows]), 5000)
    down = encode(rows[0], values="float16")
    traffic = Traffic.of(5000, up=300, down=300, clients=3, up_bytes=encoded_size(uploads), down_bytes=len(down))
    slowest = max(len(encode(row)) for row in rows)
    assert LinkTime(up_bandwidth=1000.0, down_bandwidth=4000.0).round_cost(traffic) == pytest.approx(
        slowest / 1000 + len(down) / 4000
    )
    assert slowest < 0.6 * 8 * 300
