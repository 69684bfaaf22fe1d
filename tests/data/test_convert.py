"""Arrays of any kind and images of any layout, as model inputs."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stnp
from numpy.typing import NDArray

from gradsift import GradsiftError
from gradsift.data.convert import inputs, targets, tensor

NUMBERS = st.one_of(
    stnp.boolean_dtypes(),
    stnp.integer_dtypes(endianness="?"),
    stnp.unsigned_integer_dtypes(endianness="?"),
    stnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
)


@given(stnp.arrays(NUMBERS, stnp.array_shapes(max_dims=3, max_side=4)), st.booleans(), st.booleans())
def test_tensor_keeps_the_values_of_any_numeric_array(values: NDArray[np.generic], flip: bool, locked: bool) -> None:
    if values.dtype.kind == "u" and values.dtype.itemsize == 8:
        values = values >> np.array(1, dtype=values.dtype)  # below 2**63
    array = values[::-1] if flip else values
    array.setflags(write=not locked)
    made = tensor("x", array)
    assert list(made.shape) == list(array.shape)
    assert made.is_floating_point() == (array.dtype.kind == "f")
    np.testing.assert_array_equal(made.numpy(), array)


def test_tensor_of_wide_numbers() -> None:
    assert tensor("x", np.array([1.5], dtype=np.longdouble)).dtype == torch.float64
    with pytest.raises(GradsiftError, match=f"x holds {2**63}, too large for int64"):
        tensor("x", np.array([2**63], dtype=np.uint64))


@given(stnp.arrays(np.uint8, stnp.array_shapes(min_dims=1, max_dims=5, max_side=6)))
def test_bytes_become_fractions_of_255(values: NDArray[np.uint8]) -> None:
    made = inputs(torch.from_numpy(values), "channels-first")
    assert made.dtype == torch.float32
    expected = values[:, None] if values.ndim == 3 else values
    np.testing.assert_array_equal(made.numpy(), expected.astype(np.float32) / np.float32(255))
    assert made.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_go_first(dtype: torch.dtype, channels: int) -> None:
    images = torch.arange(2 * 5 * 6 * channels).view(2, 5, 6, channels).to(dtype)
    scale = 255 if dtype == torch.uint8 else 1
    expected = images.movedim(3, 1).float() / scale
    for layout in ("auto", "channels-last"):
        made = inputs(images, layout)
        assert made.dtype == torch.float32
        assert made.is_contiguous()
        assert torch.equal(made, expected)
    assert torch.equal(inputs(images, "channels-first"), images.float() / scale)
    assert inputs(images, "as-is") is images


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 5, 6), (2, 1, 5, 6)),
        ((2, 3, 32, 32), (2, 3, 32, 32)),
        ((2, 32, 32, 2), (2, 32, 32, 2)),
        ((2, 32, 32, 5), (2, 32, 32, 5)),
        ((2, 7), (2, 7)),
        ((2,), (2,)),
        ((2, 3, 4, 5, 3), (2, 3, 4, 5, 3)),
    ],
)
def test_shapes(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert tuple(inputs(torch.zeros(shape)).shape) == expected
    tokens = torch.zeros(shape, dtype=torch.int32)
    assert tuple(inputs(tokens).shape) == shape
    assert inputs(tokens).dtype == torch.int64


def test_the_input_is_left_as_it_was() -> None:
    images = torch.arange(12, dtype=torch.uint8).view(1, 3, 4, 1)
    inputs(images, "channels-last")
    assert images.flatten().tolist() == list(range(12))
    single = torch.full((2, 3), 9.0)
    inputs(single)
    assert single.tolist() == [[9.0] * 3] * 2


def test_targets() -> None:
    assert targets(torch.tensor([1, 2], dtype=torch.uint8)).dtype == torch.int64
    assert targets(torch.tensor([1.5], dtype=torch.float64)).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inputs(torch.zeros(2, 3, 8, 3)), "x of shape [2, 3, 8, 3] may have its channels first or last"),
        (lambda: inputs(torch.zeros(2, 3), "channels-last"), "'channels-last' is for [n, H, W, C], x is [2, 3]"),
        (lambda: inputs(torch.zeros(2, 3), "chanels-last"), "did you mean 'channels-last'?"),
        (lambda: tensor("x", [[1], [2, 3]]), "x is not one array of numbers"),
        (lambda: tensor("x", [1j]), "x must hold numbers, got dtype complex128"),
        (lambda: tensor("x", np.array(["a"])), "x must hold numbers, got dtype <U1"),
        (lambda: tensor("x", np.array([object()])), "x must hold numbers, got dtype object"),
        (lambda: tensor("x", np.array(["2020-01-01"], dtype="datetime64[D]")), "x must hold numbers, got dtype dat"),
    ],
)
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(message)):
        call()
