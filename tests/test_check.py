"""The checks themselves: what passes, and that each error names the value."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsift import GradsiftError, Sparse, check, check_tensors


def refused(message: str) -> Any:
    return pytest.raises(GradsiftError, match=re.escape(message))


def test_our_error_is_a_value_error() -> None:
    assert issubclass(GradsiftError, ValueError)


@given(value=st.integers(), low=st.integers(-5, 5), width=st.integers(0, 5))
def test_an_integer_passes_in_its_interval_and_nowhere_else(value: int, low: int, width: int) -> None:
    high = low + width
    if low <= value <= high:
        check.integer("n", value, low, high)
        check.integer("n", value, low)
    else:
        with refused(f"n must be in [{low}, {high}], got {value}"):
            check.integer("n", value, low, high)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_integers_of_other_kinds_pass(value: object) -> None:
    check.integer("n", value, 3, 3)


@pytest.mark.parametrize("value", [3.0, np.float64(3), "3", None, True, np.True_, [3], torch.tensor(3.0)])
def test_what_is_no_integer_is_refused(value: object) -> None:
    with refused(f"n must be an integer, got {value!r}"):
        check.integer("n", value, 0, 9)
    with refused(f"n must be an integer, got {value!r}"):
        check.integer("n", value, 0)


@pytest.mark.parametrize("value", [0, 0.0, 1, 0.5, np.float64(0.25), 5e-324])
def test_finite_numbers_pass(value: float) -> None:
    check.real("x", value, 0, 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "1", True, torch.tensor(1.0), 1j])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    with refused(f"x must be a finite number, got {value!r}"):
        check.real("x", value)


@pytest.mark.parametrize("value", [-1e-9, 1.5])
def test_a_number_outside_its_interval_is_refused(value: float) -> None:
    with refused(f"x must be in [0, 1], got {value!r}"):
        check.real("x", value, 0, 1)


@given(dim=st.integers(1, 6), clients=st.integers(1, 4), data=st.data())
def test_the_first_bad_element_is_named_with_its_place(dim: int, clients: int, data: st.DataObject) -> None:
    values = torch.zeros(clients, dim)
    check_tensors.residual(values)
    i, j = data.draw(st.integers(0, clients - 1)), data.draw(st.integers(0, dim - 1))
    bad = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    values[i, j] = bad
    values[-1, -1] = values[-1, -1] if (i, j) == (clients - 1, dim - 1) else math.nan
    with refused(f"residual must be finite, got {bad} at [{i}, {j}]"):
        check_tensors.residual(values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_floating_dtype_passes(dtype: torch.dtype) -> None:
    check_tensors.residual(torch.ones(2, 3, dtype=dtype))
    check_tensors.sparse("u", Sparse(torch.tensor([0, 2]), torch.ones(2, dtype=dtype), 3), rows=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_no_other_dtype_passes(dtype: torch.dtype) -> None:
    with refused(f"residual must hold floating-point numbers, got {dtype}"):
        check_tensors.residual(torch.ones(3, dtype=dtype))


@given(data=st.data(), dim=st.integers(1, 8), clients=st.integers(1, 3))
def test_a_message_passes_if_its_indices_are_distinct_and_in_range(data: st.DataObject, dim: int, clients: int) -> None:
    size = data.draw(st.integers(0, dim))
    element = st.integers(-1, dim)
    drawn = data.draw(st.lists(st.lists(element, min_size=size, max_size=size), min_size=clients, max_size=clients))
    message = Sparse(torch.tensor(drawn, dtype=torch.int64).view(clients, size), torch.ones(clients, size), dim)
    outside = [j for row in drawn for j in row if not 0 <= j < dim]
    twice = [(i, j) for i, row in enumerate(drawn) for j in sorted(row) if row.count(j) > 1]
    if outside:
        with refused(f"u holds index {outside[0]}, outside [0, {dim})"):
            check_tensors.sparse("u", message, rows=True)
    elif twice:
        with refused(f"u holds index {twice[0][1]} twice in row {twice[0][0]}"):
            check_tensors.sparse("u", message, rows=True)
    else:
        check_tensors.sparse("u", message, rows=True)


def test_a_message_of_many_rows_is_refused_where_one_is_wanted() -> None:
    message = Sparse(torch.tensor([[0], [1]]), torch.ones(2, 1), 3)
    check_tensors.sparse("merged", message, rows=True)
    with refused("merged must be [k], got [2, 1]"):
        check_tensors.sparse("merged", message, rows=False)


def test_a_message_on_two_devices_is_refused() -> None:
    message = Sparse(torch.tensor([0]), torch.ones(1, device="meta"), 3)
    with refused("u: indices are on cpu, values on meta"):
        check_tensors.sparse("u", message, rows=True)


@given(parts=st.lists(st.integers(0, 1000), min_size=1, max_size=50).filter(any))
def test_shares_of_any_data_pass_in_both_precisions(parts: list[int]) -> None:
    for dtype in (torch.float32, torch.float64):
        share = torch.tensor(parts, dtype=dtype)
        check_tensors.share(share / share.sum(), len(parts))


@pytest.mark.parametrize("off", [2e-6, -2e-6, 1e-3])
def test_shares_that_miss_one_are_refused_with_their_sum(off: float) -> None:
    with pytest.raises(GradsiftError, match=r"shares must sum to 1, got (0\.99|1\.00)\d+"):
        check_tensors.share(torch.tensor([0.5, 0.5 + off], dtype=torch.float64), 2)


@pytest.mark.parametrize("value", [0, 1, "maybe", None, np.True_])
def test_what_is_not_true_or_false_is_refused(value: object) -> None:
    check.boolean("switch", False)
    with refused(f"switch must be True or False, got {value!r}"):
        check.boolean("switch", value)


def test_a_folder_is_one_or_can_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (tmp_path, tmp_path / "new", tmp_path / "new" / "in it"):
        check.folder("--out", place)
    for place in (file, file / "x", file / "x" / "y"):
        with refused(f"--out must be a folder, got '{place}': '{file}' is not one"):
            check.folder("--out", place)
