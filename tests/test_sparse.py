"""Sparse vectors against their definitions, in plain Python.

Shapes: dense [N, D], sparse [N, k], share [N].
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradsift import GradsiftError, sparse
from gradsift.sparse import (
    Sparse,
    densify,
    difference,
    everything,
    nothing,
    rank,
    stack,
    top_k,
    weighted_sum,
)
from tests.examples import examples
from tests.sparsify.cases import Instance, as_dict, as_dicts, assert_same, assert_same_set, instances, shuffled

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def ranked(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda j: (-abs(row[j]), j))


class Pair(NamedTuple):
    left: Sparse
    right: Sparse


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Two vectors [k] of one dim, empty ones too, that often agree in an index and now and then in a value."""
    dim = draw(st.integers(1, 8))
    both = []
    for _ in range(2):
        chosen = draw(st.dictionaries(st.integers(0, dim - 1), st.integers(-2, 2)))
        indices = torch.tensor(list(chosen), dtype=torch.int64)
        both.append(Sparse(indices, torch.tensor(list(chosen.values()), dtype=torch.float64), dim))
    return Pair(*both)


@dtypes
@given(case=instances())
@examples(150)
def test_top_k_takes_the_largest_and_of_equal_ones_the_lowest_indices(dtype: torch.dtype, case: Instance) -> None:
    # Values beyond float32 become infinite, which still has an order; most of "ties" and "zeros" is at the threshold.
    dense = case.residual.to(dtype)
    chosen = top_k(dense, case.rnd.k)
    assert chosen.dim == dense.shape[1]
    assert chosen.values.dtype == dtype
    assert as_dicts(chosen) == [{j: row[j] for j in ranked(row)[: case.rnd.k]} for row in dense.tolist()]
    for row, indices, values in zip(dense, *chosen[:2], strict=True):
        assert_same_set(top_k(row, case.rnd.k), Sparse(indices, values, chosen.dim))


@dtypes
@given(case=instances(max_dim=20))
@examples(150)
def test_top_k_comes_in_the_order_of_rank(dtype: torch.dtype, case: Instance) -> None:
    dense, k = case.residual.to(dtype), min(case.rnd.k, case.residual.shape[1] - 1)
    if k:
        assert top_k(dense, k).indices.tolist() == [ranked(row)[:k] for row in dense.tolist()]
        assert top_k(dense[0], k).indices.tolist() == ranked(dense[0].tolist())[:k]


def test_top_k_breaks_ties_in_long_rows() -> None:
    # Long enough for torch's own selection to take another path, with rows with and without a tie at the threshold.
    source = np.random.default_rng(0)
    dense = torch.from_numpy(source.integers(-50, 51, (6, 5000)).astype(np.float32))
    dense[2] = torch.from_numpy(source.permutation(5000).astype(np.float32))
    for k in (1, 7, 100, 4999):
        expected = [{j: row[j] for j in ranked(row)[:k]} for row in dense.tolist()]
        assert as_dicts(top_k(dense, k)) == expected


@pytest.mark.parametrize("run", [2, 3, 5, 40])
@pytest.mark.parametrize("rows", [None, 4])
def test_top_k_puts_runs_of_equal_elements_in_order(run: int, rows: int | None) -> None:
    """Short ones by exchanging neighbours, long ones by a sort; the threshold is between two of them."""
    source = torch.Generator().manual_seed(run)
    shape = (3000,) if rows is None else (rows, 3000)
    sizes = torch.arange(3000, 0, -1).float()
    sizes[600 : 600 + run] = sizes[600]
    sizes[700 : 700 + run] = sizes[700]
    order = torch.rand(shape, generator=source).argsort(dim=-1)
    signs = torch.randint(0, 2, shape, generator=source) * 2 - 1
    dense = sizes[order] * signs
    got = top_k(dense, 1000)
    assert torch.equal(got.indices, dense.abs().argsort(dim=-1, descending=True, stable=True)[..., :1000])
    assert torch.equal(got.values, dense.gather(-1, got.indices))


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize("k", [1, 2, 100, 8192])
@pytest.mark.parametrize("kind", ["normal", "few sizes", "mostly zero", "one far above", "infinite"])
def test_top_k_of_many_elements_finds_the_blocks_that_it_lies_in(kind: str, k: int, dtype: torch.dtype) -> None:
    """Also of rows that do not divide into blocks, of views, and where too many blocks are equal to choose among."""
    source = torch.Generator().manual_seed(k)
    dense = torch.randn(5, 2**18 + 77, generator=source, dtype=dtype)[1:, 3:]
    if kind == "few sizes":
        dense = (dense * 50).round()
    elif kind == "mostly zero":
        dense = dense * (torch.rand(dense.shape, generator=source) < 1e-3)
    elif kind == "one far above":
        dense[:, -1] = -1e6  # in what is left over from the blocks
    elif kind == "infinite":
        dense[0, :200] = torch.inf
        dense[1, 7] = -torch.inf
    assert dense.numel() >= sparse._BLOCK_ELEMENTS
    assert dense.shape[1] >= sparse._BLOCK_RATIO * k
    got = top_k(dense, k)
    assert torch.equal(got.indices, dense.abs().argsort(dim=-1, descending=True, stable=True)[:, :k])
    assert torch.equal(got.values, dense.gather(-1, got.indices))
    assert got.dim == dense.shape[1]


def test_top_k_of_one_long_row_is_found_in_blocks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = torch.randn(sparse._BLOCK_ELEMENTS, generator=torch.Generator().manual_seed(0))
    found = top_k(dense, 1000)
    assert sparse._top_k_by_blocks(dense, 1000) is not None
    monkeypatch.setattr(sparse, "_BLOCK_ELEMENTS", len(dense) + 1)
    assert torch.equal(found.indices, top_k(dense, 1000).indices)


def test_top_k_works_on_any_leading_dimensions() -> None:
    dense = torch.tensor([[[3.0, 1, 1, 1], [0, 0, 0, 0]], [[1, -2, 2, 0], [4, 3, 2, 1]]])
    assert top_k(dense, 2).indices.tolist() == [[[0, 1], [0, 1]], [[1, 2], [0, 1]]]


@pytest.mark.parametrize("k", [0, -1, 6])
def test_top_k_refuses_a_k_that_no_row_has(k: int) -> None:
    for dense in (torch.ones(5), torch.ones(2, 5)):
        with pytest.raises(GradsiftError, match=rf"k must be in \[1, 5\], got {k}"):
            top_k(dense, k)


@dtypes
@given(case=instances(), seed=st.integers(0, 100))
@examples(100)
def test_rank_orders_by_size_then_by_index(dtype: torch.dtype, case: Instance, seed: int) -> None:
    dense = case.residual.to(dtype)
    chosen = top_k(dense, case.rnd.k)
    ordered = rank(shuffled(chosen, seed))
    assert ordered.indices.tolist() == [ranked(row)[: case.rnd.k] for row in dense.tolist()]
    assert_same(ordered.values, dense.gather(1, ordered.indices))
    for i in range(len(dense)):
        row = rank(Sparse(chosen.indices[i], chosen.values[i], chosen.dim))
        assert torch.equal(row.indices, ordered.indices[i])


@dtypes
@given(case=instances())
@examples(100)
def test_densify_puts_each_value_in_its_place_and_zero_elsewhere(dtype: torch.dtype, case: Instance) -> None:
    chosen = top_k(case.residual.to(dtype), case.rnd.k)
    full = densify(chosen)
    assert full.dtype == dtype
    assert full.tolist() == [[message.get(j, 0.0) for j in range(chosen.dim)] for message in as_dicts(chosen)]
    for i, row in enumerate(full):
        assert_same(densify(Sparse(chosen.indices[i], chosen.values[i], chosen.dim)), row)


@given(case=instances())
def test_everything_and_nothing(case: Instance) -> None:
    whole, empty = everything(case.residual), nothing(case.residual)
    assert_same(densify(whole), case.residual)
    assert whole.size == whole.dim == empty.dim == case.residual.shape[1]
    assert empty.size == 0
    assert not densify(empty).any()
    assert_same(densify(empty), torch.zeros_like(case.residual))


@given(case=instances(), seed=st.integers(0, 100))
@examples(120)
def test_weighted_sum_adds_in_the_order_of_the_clients(case: Instance, seed: int) -> None:
    rows = shuffled(top_k(case.residual, case.rnd.k), seed)
    expected: dict[int, float] = {}
    for share, row in zip(case.share.tolist(), as_dicts(rows), strict=True):
        for j, value in row.items():
            expected[j] = expected.get(j, 0.0) + share * value
    total = weighted_sum(rows, case.share)
    assert as_dict(total) == expected
    assert total.indices.tolist() == sorted(expected)


@given(case=instances(), seed=st.integers(0, 100))
def test_weighted_sum_in_single_precision_rounds_as_numpy_does(case: Instance, seed: int) -> None:
    rows = shuffled(top_k(case.residual.clamp(-1e30, 1e30).float(), case.rnd.k), seed)
    expected: dict[int, np.float32] = {}
    for share, indices, values in zip(case.share.numpy().astype(np.float32), *rows[:2], strict=True):
        for j, value in zip(indices.tolist(), values.numpy(), strict=True):
            expected[j] = expected.get(j, np.float32(0)) + share * value
    total = weighted_sum(rows, case.share)
    assert total.values.dtype == torch.float32
    assert as_dict(total) == expected


def test_weighted_sum_keeps_an_index_whose_values_cancel() -> None:
    rows = Sparse(torch.tensor([[2], [2]]), torch.tensor([[1.0], [-1.0]]), 4)
    assert as_dict(weighted_sum(rows, torch.tensor([0.5, 0.5]))) == {2: 0.0}


def test_weighted_sum_of_empty_rows_is_empty() -> None:
    total = weighted_sum(nothing(torch.ones(3, 4, dtype=torch.float16)), torch.full((3,), 1 / 3))
    assert total.indices.shape == total.values.shape == (0,)
    assert (total.indices.dtype, total.values.dtype, total.dim) == (torch.int64, torch.float32, 4)


def test_weighted_sum_does_not_spread_one_share_over_all() -> None:
    with pytest.raises(GradsiftError, match=r"share must have shape \[3\], got \[1\]"):
        weighted_sum(top_k(torch.ones(3, 4), 2), torch.ones(1))


@given(pair=pairs())
@examples(150)
def test_difference_turns_one_vector_into_the_other(pair: Pair) -> None:
    change = difference(pair.left, pair.right)
    left, right = as_dict(pair.left), as_dict(pair.right)
    expected = {j: left.get(j, 0.0) - right.get(j, 0.0) for j in left.keys() | right.keys()}
    assert as_dict(change) == {j: value for j, value in expected.items() if value != 0}
    assert torch.equal(densify(pair.right) + densify(change), densify(pair.left))


@dtypes
def test_difference_keeps_the_precision(dtype: torch.dtype) -> None:
    left, right = (Sparse(torch.tensor([j]), torch.ones(1, dtype=dtype), 3) for j in (0, 2))
    assert difference(left, right).values.dtype == dtype


def test_difference_refuses_vectors_of_different_dimensions() -> None:
    # One of dim 1 would otherwise be spread over the other.
    one, three = (Sparse(torch.tensor([0]), torch.ones(1), dim) for dim in (1, 3))
    with pytest.raises(GradsiftError, match="dimensions differ: 1 and 3"):
        difference(one, three)


@dtypes
@given(case=instances())
def test_stack_puts_one_upload_in_each_row(dtype: torch.dtype, case: Instance) -> None:
    together = top_k(case.residual.to(dtype), case.rnd.k)
    uploads = [Sparse(indices, values, together.dim) for indices, values in zip(*together[:2], strict=True)]
    stacked = stack(uploads)
    assert stacked.dim == together.dim
    assert_same(stacked.indices, together.indices)
    assert_same(stacked.values, together.values)


def test_stack_refuses_no_uploads_and_those_of_other_vectors() -> None:
    def upload(size: int, dim: int) -> Sparse:
        return top_k(torch.ones(dim), size)

    with pytest.raises(GradsiftError, match="stack needs at least one upload"):
        stack([])
    with pytest.raises(GradsiftError, match=r"\(9, \[2\], \[2\]\), \(8, \[2\], \[2\]\)"):
        stack([upload(2, 9), upload(2, 8)])
    with pytest.raises(GradsiftError, match=r"\(9, \[2, 3\], \[2, 3\]\)"):
        stack([top_k(torch.ones(2, 9), 3)])
    with pytest.raises(GradsiftError, match=r"\(9, \[3\], \[2\]\)"):
        stack([upload(3, 9), Sparse(torch.arange(3), torch.ones(2), 9)])


def test_size_counts_the_elements_of_a_row() -> None:
    indices: Tensor = torch.zeros(3, 2, dtype=torch.int64)
    assert Sparse(indices, indices.float(), 5).size == 2
    assert Sparse(indices[0, :0], indices[0, :0].float(), 5).size == 0
