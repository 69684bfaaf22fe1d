"""Values of few bits: levels, bins and errors, rows and single messages, and what is right on average.

Shapes: a message [k], or N of them [N, k].
"""

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradsift
from gradsift import FewBits, GradsiftError, Sparse, values
from gradsift.sparse import Ragged, everything, first_places, stack
from tests.examples import examples
from tests.reference.few_bits import (
    LiteralFewBits,
    bin_of,
    draw,
    edges,
    few_bits,
    level_count,
    nodes,
    power_of_two,
)
from tests.reference.literal import as_message
from tests.sparsify.cases import assert_same_set, unchanged
from tests.wire.messages import bits_of, messages

BITS = range(1, 9)
every = pytest.mark.parametrize("bits", BITS)
either = pytest.mark.parametrize("stochastic", [False, True], ids=["means", "stochastic"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def whole(*numbers: float, dtype: torch.dtype = torch.float64) -> Sparse:
    return everything(torch.tensor(numbers, dtype=dtype))


def rounded(kind: FewBits, *numbers: float) -> list[float]:
    found: list[float] = kind.rounded(whole(*numbers)).values.tolist()
    return found


def magnitudes(message: Tensor) -> set[float]:
    return set(message.abs().tolist()) - {0.0}


# Levels.


@every
@either
@dtypes
@given(data=st.data())
@examples(60)
def test_there_are_few_levels_and_zeros_and_signs_stay(
    bits: int, stochastic: bool, dtype: torch.dtype, data: st.DataObject
) -> None:
    message = data.draw(messages(dtype))
    with unchanged(message):
        found = FewBits(bits, stochastic).rounded(message)
    assert torch.equal(found.indices, message.indices)
    assert found.values.dtype == dtype
    assert found.values.isfinite().all()
    assert len(magnitudes(found.values)) <= min(2 ** (bits - 1), 127)
    assert not found.values[message.values == 0].any()
    assert torch.equal(found.values.signbit(), message.values.signbit())


@every
def test_many_values_take_all_levels(bits: int) -> None:
    message = everything(torch.from_numpy(np.geomspace(1.0, 50.0, 4000)))
    for stochastic in (False, True):
        found = FewBits(bits, stochastic).rounded(message)
        assert len(magnitudes(found.values)) == (1, 2, 4, 8, 16, 32, 64, 127)[bits - 1]


def test_levels_by_hand() -> None:
    """Of sizes from 1 to 4 the border of two bins is 2, the root of 1 * 4, which belongs to the upper one."""
    assert rounded(FewBits(1), 1.0, -2.0, 0.0, 9.0) == pytest.approx([4.0, -4.0, 0.0, 4.0])
    assert rounded(FewBits(2), 1.0, -1.5, 0.0, 2.0, -4.0) == pytest.approx([1.25, -1.25, 0.0, 3.0, -3.0])
    assert rounded(FewBits(3), 1.0, 1.4, -1.5, 2.0, 4.0) == pytest.approx([1.2, 1.2, -1.5, 2.0, 4.0])
    assert rounded(FewBits(3), 1.0, 3.0, -4.0, 1.0) == pytest.approx([1.0, 3.5, -3.5, 1.0])


def test_very_small_values_share_the_first_bin() -> None:
    """Bins begin at a quarter of the mean: else the smallest would take all of them but one."""
    found = rounded(FewBits(2), 1e-30, 1e-20, -0.1, 1.0, 3.0)
    assert found == pytest.approx([0.1 / 3, 0.1 / 3, -0.1 / 3, 2.0, 2.0])


@dtypes
@every
@pytest.mark.parametrize("size", [1.0, 0.1, 3e-39, 1.5e-45, 3.4e38])
def test_equal_values_and_a_single_one_stay_as_they_are(bits: int, size: float, dtype: torch.dtype) -> None:
    for kind in (FewBits(bits), FewBits(bits, stochastic=True)):
        for numbers in ([size], [-size], [size, -size, size], [0.0, size, 0.0]):
            message = whole(*numbers, dtype=dtype)
            assert bits_of(kind.rounded(message).values) == bits_of(message.values)


@either
@pytest.mark.parametrize("size", [5e-324, 2e-308, 1e-300, 1.0, 1e300, np.finfo(np.float64).max])
def test_no_number_is_too_small_or_too_large(size: float, stochastic: bool) -> None:
    found = FewBits(3, stochastic).rounded(whole(size, -size / 2, size / 4, size / 8, 0.0)).values
    assert found.isfinite().all()
    assert float(found.abs().max()) == pytest.approx(size, rel=1e-12)
    assert found[-1] == 0


def test_zeros_alone_are_zeros() -> None:
    for kind in (FewBits(2), FewBits(2, stochastic=True)):
        assert bits_of(kind.rounded(whole(0.0, -0.0)).values) == bits_of(torch.tensor([0.0, -0.0]).double())


# Errors.


@every
@dtypes
@given(data=st.data())
@examples(60)
def test_a_value_stays_in_its_bin(bits: int, dtype: torch.dtype, data: st.DataObject) -> None:
    """So it is off by less than the width of the bin; those too small for bins of their own have the first."""
    message = data.draw(messages(dtype))
    found = FewBits(bits).rounded(message)
    sizes = message.values.double().abs()
    if not sizes.any():
        return
    scale = power_of_two(float(sizes.max()))
    scaled = [size for size in (sizes / scale).tolist() if size]
    borders = [min(scaled), *edges(scaled, level_count(bits)), max(scaled)]
    slack = 2.0**-40 + (1e-7 if dtype == torch.float32 else 0.0)
    for size, level in zip(sizes.tolist(), found.values.double().abs().tolist(), strict=True):
        if size:
            place = bin_of(size / scale, borders[1:-1])
            assert borders[place] - 2 * slack <= level / scale <= max(borders[place + 1], borders[0]) + 2 * slack


@every
@dtypes
@given(data=st.data())
@examples(60)
def test_a_value_at_random_goes_to_a_neighbour(bits: int, dtype: torch.dtype, data: st.DataObject) -> None:
    source = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    message = everything(torch.from_numpy(source.standard_normal(data.draw(st.integers(1, 200)))).to(dtype))
    size, level = (
        tensor.double().abs().numpy()
        for tensor in (message.values, FewBits(bits, stochastic=True).rounded(message).values)
    )
    levels = np.array(nodes(size.tolist(), level_count(bits)))
    place = np.clip(np.searchsorted(levels, size, side="right"), 1, len(levels) - 1)
    near = np.minimum(np.abs(level - levels[place - 1]), np.abs(level - levels[place]))
    assert near.max() < 1e-6


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_a_level_of_the_same_values_is_the_same_in_another_message(bits: int) -> None:
    """So that a probe changes only what it changes, and not the last bit of what is in both messages."""
    source = np.random.default_rng(0)
    for _ in range(50):
        shared = source.uniform(1.0, 1.01, 5)
        one, other = (FewBits(bits).rounded(whole(*shared, largest)).values[:5] for largest in (2.9, 3.7))
        assert torch.equal(one, other)


# The twin.


@every
@either
@given(data=st.data())
@examples(60)
def test_it_is_its_slow_twin(bits: int, stochastic: bool, data: st.DataObject) -> None:
    """Means to the bit; levels that are powers of the smallest, to a few."""
    message = data.draw(messages(torch.float64, most=200))
    found, want = (kind(bits, stochastic).rounded(message).values for kind in (FewBits, LiteralFewBits))
    torch.testing.assert_close(found, want, rtol=1e-13 if stochastic else 0.0, atol=0.0)


@given(value=st.floats(allow_nan=False, allow_infinity=False), index=st.integers(0, 2**62))
@examples(300)
def test_draws_are_those_of_the_twin(value: float, index: int) -> None:
    message = Sparse(torch.tensor([index]), torch.tensor([value], dtype=torch.float64), index + 1)
    assert values._uniform(message).tolist() == [draw(value, index)]
    assert 0 <= draw(value, index) < 1


# Rows.


@every
@either
@dtypes
@given(data=st.data())
@examples(40)
def test_rows_are_rounded_as_single_messages(
    bits: int, stochastic: bool, dtype: torch.dtype, data: st.DataObject
) -> None:
    kind, clients, dim = FewBits(bits, stochastic), data.draw(st.integers(1, 20)), data.draw(st.integers(1, 70))
    source = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dense = source.standard_normal((clients, dim))
    if data.draw(st.booleans()):  # values on the borders of bins
        dense = np.ldexp(np.sign(dense), source.integers(-9, 9, dense.shape))
    rows = torch.from_numpy(dense).to(dtype)
    together = kind.rounded(everything(rows)).values
    lengths = source.integers(1, dim + 1, clients).tolist()
    ragged = first_places(everything(rows), lengths)
    padded = kind.rounded(ragged)
    assert isinstance(padded, Ragged)
    for row, length in enumerate(lengths):
        assert torch.equal(kind.rounded(everything(rows[row])).values, together[row])
        alone = Sparse(torch.arange(length), rows[row, :length], dim)
        assert torch.equal(kind.rounded(alone).values, padded.values[row, :length])
        assert not padded.values[row, length:].any()


@pytest.mark.slow
@either
def test_padding_of_millions_changes_no_bit(stochastic: bool) -> None:
    """Sums must not overflow in long rows, and their units must not depend on how long other rows are."""
    source = torch.Generator().manual_seed(0)
    short = torch.randn(1000, generator=source, dtype=torch.float64)
    dim = 2**23
    long = torch.randn(dim, generator=source, dtype=torch.float64)
    each = [Sparse(torch.arange(1000), short, dim), Sparse(torch.arange(dim), long, dim)]
    kind = FewBits(3, stochastic)
    together = kind.rounded(stack(each))
    assert torch.equal(together.values[0, :1000], kind.rounded(each[0]).values)


@every
@given(data=st.data(), power=st.integers(-60, 60))
@examples(40)
def test_twice_the_values_are_twice_the_levels(bits: int, power: int, data: st.DataObject) -> None:
    """To the bit for powers of two, while nothing becomes too small: there is no unit of values."""
    source = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dense = torch.from_numpy(source.standard_normal(data.draw(st.integers(1, 80))))
    one, other = (FewBits(bits).rounded(everything(dense * factor)).values for factor in (1.0, 2.0**power))
    assert torch.equal(one * 2.0**power, other)


@every
@given(data=st.data())
@examples(40)
def test_the_order_of_elements_changes_nothing(bits: int, data: st.DataObject) -> None:
    message = data.draw(messages(torch.float64))
    order = torch.from_numpy(np.random.default_rng(data.draw(st.integers(0, 2**32))).permutation(message.size))
    moved = Sparse(message.indices[order], message.values[order], message.dim)
    for kind in (FewBits(bits), FewBits(bits, stochastic=True)):
        assert_same_set(kind.rounded(moved), kind.rounded(message))


# On average.


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("value", [0.03, -0.1, 0.26, 0.5, -0.77, 0.999])
def test_rounding_at_random_is_right_on_average(bits: int, value: float) -> None:
    """Over many places of the same value; the standard error is at most half the distance of two levels over root n."""
    count = 20_000
    kind, message = FewBits(bits, stochastic=True), whole(1.0, *([value] * count))
    found = kind.rounded(message).values[1:]
    assert 1 <= len(magnitudes(found)) <= 2
    spread = float(found.max() - found.min())
    assert abs(float(found.mean()) - value) <= 4 * spread / 2 / count**0.5 + 1e-12
    nearest = FewBits(bits).rounded(whole(1.0, 0.02, value)).values[2]
    assert float(found.mean()) == pytest.approx(value, abs=abs(float(nearest)) * 0.05 + 0.02)


def test_a_draw_repeats_and_depends_on_value_and_index() -> None:
    kind = FewBits(2, stochastic=True)
    dense = torch.linspace(0.1, 1.0, 500, dtype=torch.float64)
    first = kind.rounded(everything(dense)).values
    assert torch.equal(kind.rounded(everything(dense)).values, first)
    moved = kind.rounded(Sparse(torch.arange(500) + 7, dense, 600)).values
    assert 50 < int((moved != first).sum()) < 450
    other = kind.rounded(everything(-dense)).values
    assert 50 < int((other.abs() != first).sum()) < 450


def test_the_largest_and_the_smallest_stay_where_they_are() -> None:
    """They are levels themselves; so all levels are there."""
    dense = torch.linspace(0.5, 1.0, 300, dtype=torch.float64)
    for bits in (2, 3, 4):
        found = FewBits(bits, stochastic=True).rounded(everything(dense)).values
        assert found[[0, -1]].tolist() == [0.5, 1.0]
        assert len(magnitudes(found)) == 2 ** (bits - 1)


# Options.


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"bits": 0}, "bits must be in [1, 8], got 0"),
        ({"bits": 9}, "bits must be in [1, 8], got 9"),
        ({"bits": -1}, "got -1"),
        ({"bits": 2.0}, "bits must be an integer, got 2.0"),
        ({"bits": True}, "bits must be an integer, got True"),
        ({"bits": "2"}, "bits must be an integer, got '2'"),
        ({"bits": None}, "bits must be an integer, got None"),
        ({"stochastic": 1}, "stochastic must be True or False, got 1"),
        ({"stochastic": None}, "stochastic must be True or False, got None"),
        ({"bit": 3}, "'few-bits' has no option 'bit'; did you mean 'bits'"),
    ],
)
def test_bad_options_are_refused_by_their_value(options: dict[str, Any], named: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(named)):
        gradsift.value_type("few-bits", **options)


def test_two_bits_and_means_are_the_default() -> None:
    assert gradsift.value_type("few-bits") == FewBits(bits=2, stochastic=False)


@either
def test_what_is_not_finite_breaks_nothing_else(stochastic: bool) -> None:
    """A driver finds it later: rounding must not fail first, least of all on a GPU, nor hide it."""
    rows = torch.tensor([[1.0, torch.nan, 2.0], [1.0, torch.inf, -2.0], [1.0, 2.0, 3.0]])
    found = FewBits(2, stochastic).rounded(everything(rows)).values
    assert torch.equal(found[2], FewBits(2, stochastic).rounded(everything(rows[2])).values)
    assert not found[0].isfinite().all()
    assert not found[1].isfinite().all()


def test_the_twin_is_no_copy_of_a_message() -> None:
    """Else it would prove nothing."""
    message = as_message(whole(1.0, 2.0, 3.0, 8.0))
    assert few_bits(message, 1) == {j: pytest.approx(3.5) for j in range(4)}
