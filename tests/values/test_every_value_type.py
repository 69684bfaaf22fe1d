"""What every value type must do. A new one is tested by adding a line to the table in table.py.

Shapes: a message [k], or N of them [N, k].
"""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from gradsift import Exact, GradsiftError, Sparse, ValueType
from gradsift.sparse import Ragged, Ranked, Whole, everything, nothing, stack, top_k
from gradsift.wire import Limits, decode
from tests.examples import examples
from tests.sparsify.cases import assert_same_set, unchanged
from tests.values.table import TABLE
from tests.wire.messages import messages

every = pytest.mark.parametrize("name", TABLE)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def make(name: str) -> ValueType:
    return gradsift.value_type(name, **TABLE[name].options)


def bounded(message: Sparse) -> Sparse:
    """Without the largest numbers, which would round up to infinity and are refused."""
    return message._replace(values=message.values.clamp(-3e38, 3e38))


@st.composite
def together(draw: st.DrawFn, dtype: torch.dtype) -> tuple[list[Sparse], int]:
    """Messages of one dimension: of every kind of value, as long as each other or not."""
    each = [bounded(draw(messages(dtype, most=60))) for _ in range(draw(st.integers(1, 4)))]
    dim = max(message.dim for message in each)
    return [message._replace(dim=dim) for message in each], dim


def subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_no_value_type_is_missing() -> None:
    found = [cls for cls in subclasses(ValueType) if cls.__module__.startswith("gradsift.")]
    named = {cls.name for cls in found if not inspect.isabstract(cls)} - {""}  # what they have in common has no name
    assert named == set(TABLE)
    assert set(TABLE) <= set(gradsift.value_types())


@every
def test_it_carries_its_name_and_equals_another_of_its_kind(name: str) -> None:
    assert make(name).name == name
    assert make(name) == make(name)


@every
@dtypes
@given(data=st.data())
@examples(80)
def test_decoding_gives_what_rounding_says_bit_for_bit(name: str, dtype: torch.dtype, data: st.DataObject) -> None:
    values, message = make(name), bounded(data.draw(messages(dtype)))
    with unchanged(message):
        rounded, encoded = values.rounded(message), values.encode(message)
    assert_same_set(decode(encoded, Limits.of(message.dim)), rounded)
    assert torch.equal(rounded.indices, message.indices)
    assert rounded.values.dtype == (TABLE[name].arrives or dtype)


@every
@dtypes
@given(data=st.data())
@examples(80)
def test_the_size_of_what_was_rounded_is_that_of_its_bytes(name: str, dtype: torch.dtype, data: st.DataObject) -> None:
    """Except of an empty message, which is not sent at all: it has a header when it is encoded, and no size."""
    values, message = make(name), bounded(data.draw(messages(dtype)))
    size = values.encoded_size(values.rounded(message))
    assert size.shape == ()
    assert size.dtype == np.int64
    assert int(size) == (len(values.encode(message)) if message.size else 0)


@every
@dtypes
@given(data=st.data())
@examples(60)
def test_several_messages_are_rounded_and_counted_row_by_row(
    name: str, dtype: torch.dtype, data: st.DataObject
) -> None:
    values, (each, dim) = make(name), data.draw(together(dtype))
    stacked = stack(each)
    with unchanged(stacked):
        rounded = values.rounded(stacked)
    assert isinstance(rounded, Ragged) == isinstance(stacked, Ragged)
    assert torch.equal(rounded.indices, stacked.indices)
    sizes = values.encoded_size(rounded)
    assert sizes.shape == (len(each),)
    for row, message in enumerate(each):
        used = rounded.indices[row] < dim
        mine = Sparse(rounded.indices[row][used], rounded.values[row][used], dim)
        assert_same_set(mine, values.rounded(message))
        assert not rounded.values[row][~used].any()
        if message.size:
            assert sizes[row] == len(values.encode(message))


@every
@dtypes
@given(data=st.data())
@examples(40)
def test_whole_vectors_stay_whole(name: str, dtype: torch.dtype, data: st.DataObject) -> None:
    values, dim = make(name), data.draw(st.integers(1, 40))
    source = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dense = torch.from_numpy(source.standard_normal((3, dim))).to(dtype)
    with unchanged(dense):
        rounded = values.rounded(everything(dense))
    assert isinstance(rounded, Whole)
    sizes = values.encoded_size(rounded)
    for row in range(3):
        one = everything(dense[row])
        assert_same_set(decode(values.encode(one), Limits.of(dim)), values.rounded(one))
        assert torch.equal(rounded.values[row], values.rounded(one).values)
        assert sizes[row] == len(values.encode(one))


@every
@dtypes
def test_what_is_in_order_may_be_in_order_no_more(name: str, dtype: torch.dtype) -> None:
    """Rounding makes ties: whoever counts on the order of the sizes must be told."""
    message = top_k(torch.tensor([[1.0, 1.0 + 2**-20, -1.0 - 2**-19, 0.5]], dtype=dtype), 3)
    assert isinstance(message, Ranked)
    rounded = make(name).rounded(message)
    assert rounded is message or not isinstance(rounded, Ranked)


@every
@dtypes
@given(data=st.data())
@examples(60)
def test_it_is_as_near_as_it_says(name: str, dtype: torch.dtype, data: st.DataObject) -> None:
    dim = data.draw(st.integers(1, 50))
    source = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    message = everything(torch.from_numpy(source.standard_normal(dim)).to(dtype))
    rounded = make(name).rounded(message)
    error = (rounded.values.double() - message.values.double()).abs().max()
    assert error <= TABLE[name].largest_error * message.values.double().abs().max()


@every
@dtypes
def test_zeros_stay_zeros_and_signs_stay_signs(name: str, dtype: torch.dtype) -> None:
    """A place of a row that is not used holds a zero, and must go on holding one."""
    dense = torch.tensor([0.0, -0.0, 2.0, -1.0], dtype=dtype)
    rounded = make(name).rounded(everything(dense)).values
    assert rounded.tolist() == [0.0, 0.0, 2.0, pytest.approx(-1.0, rel=0.01)]
    assert torch.equal(torch.signbit(rounded), torch.signbit(dense))


@every
@dtypes
def test_nothing_is_rounded_to_nothing(name: str, dtype: torch.dtype) -> None:
    values, dense = make(name), torch.ones(3, 5, dtype=dtype)
    assert values.rounded(nothing(dense)).indices.shape == (3, 0)
    assert values.rounded(nothing(dense[0])).indices.shape == (0,)
    assert values.encoded_size(values.rounded(nothing(dense))).tolist() == [0, 0, 0]
    assert int(values.encoded_size(values.rounded(nothing(dense[0])))) == 0


@every
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_when_it_is_sent(name: str, bad: float) -> None:
    message = Sparse(torch.tensor([1, 3]), torch.tensor([1.0, bad]), 5)
    with unchanged(message), pytest.raises(GradsiftError, match="finite"):
        make(name).encode(message)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int8"])
def test_what_is_too_large_for_its_type_is_refused_by_value(name: str) -> None:
    message = Sparse(torch.tensor([0]), torch.tensor([1e300], dtype=torch.float64), 5)
    for call in (make(name).rounded, make(name).encode):
        with pytest.raises(GradsiftError, match=r"1e\+300 is too large for"):
            call(message)


def test_exact_is_the_message_itself() -> None:
    message = top_k(torch.arange(6.0), 2)
    assert Exact().rounded(message) is message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_exact_takes_half_precision_as_it_is(dtype: torch.dtype) -> None:
    """What arrives has the same values in a type that every receiver has: float32."""
    message = Sparse(torch.tensor([4, 1]), torch.tensor([1.5, -65504.0]).to(dtype), 6)
    arrived = decode(Exact().encode(message), Limits.of(6))
    assert arrived.values.dtype == torch.float32
    assert torch.equal(arrived.values, message.values.float().flip(0))
    assert int(Exact().encoded_size(message)) == len(Exact().encode(message))


def test_names_are_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(GradsiftError, match="unknown value type 'int-8'; did you mean 'int8'"):
        gradsift.value_type("int-8")
    with pytest.raises(GradsiftError, match="must be a subclass of ValueType"):
        gradsift.register_value_type("no values")(dict)


class Signs(ValueType):
    """The sign of each value, times the mean size of its message: a value type that defines ``rounded`` alone."""

    def rounded(self, message: Sparse) -> Sparse:
        used = message.indices < message.dim
        size = message.values.abs().sum(-1, keepdim=True) / used.sum(-1, keepdim=True).clamp(min=1)
        return message.with_values(message.values.sign() * size)


@dtypes
@given(data=st.data())
@examples(60)
def test_one_that_only_rounds_is_sent_without_a_further_loss(dtype: torch.dtype, data: st.DataObject) -> None:
    values, (each, dim) = Signs(), data.draw(together(dtype))
    each = [message._replace(values=message.values.clamp(-1e30, 1e30)) for message in each]
    rounded = values.rounded(stack(each))
    for row, message in enumerate(each):
        assert_same_set(decode(values.encode(message), Limits.of(dim)), values.rounded(message))
        if message.size:
            assert values.encoded_size(rounded)[row] == len(values.encode(message))
