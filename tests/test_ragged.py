"""Rows of different lengths against their definitions, in plain Python, as they go on the CPU and as queued on CUDA.

Shapes: N messages [k_i], stacked [N, max k_i]; dense [N, D], share [N].
"""

import re
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradsift
from gradsift import GradsiftError, check_tensors, sparse, wire
from gradsift.sparse import (
    Ragged,
    Ranked,
    Sparse,
    Whole,
    concatenate,
    dense_sum,
    densify,
    everything,
    first_places,
    kept,
    largest,
    members,
    nothing,
    rank,
    stack,
    top_k,
    weighted_sum,
)
from tests.examples import examples
from tests.sparsify.cases import WAYS, Instance, as_dict, as_dicts, assert_same, going, instances, shares, shuffled

ways = pytest.mark.parametrize("way", WAYS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
Message = dict[int, float]


class Rows(NamedTuple):
    messages: list[Message]
    dim: int
    share: Tensor  # dyadic, as the values are: every sum is exact

    @property
    def uploads(self) -> list[Sparse]:
        return [as_sparse(message, self.dim) for message in self.messages]


def as_sparse(message: Message, dim: int) -> Sparse:
    values = torch.tensor(list(message.values()), dtype=torch.float64)
    return Sparse(torch.tensor(list(message), dtype=torch.int64), values, dim)


def by_rank(message: Message) -> list[int]:
    return sorted(message, key=lambda j: (-abs(message[j]), j))


@st.composite
def rows(draw: st.DrawFn, min_size: int = 1) -> Rows:
    """Of one dim, each with a length of its own, in any order inside; zeros among the values, and ties."""
    dim, clients = draw(st.integers(2, 9)), draw(st.integers(2, 5))
    message = st.dictionaries(st.integers(0, dim - 1), st.integers(-3, 3).map(float), min_size=min_size, max_size=dim)
    messages = draw(st.lists(message, min_size=clients, max_size=clients))
    source = np.random.default_rng(draw(st.integers(0, 2**32)))
    return Rows(messages, dim, shares("dyadic", clients, source))


def weighted(messages: list[Message], share: Tensor) -> Message:
    total: Message = {}
    for part, message in zip(share.tolist(), messages, strict=True):
        for j, value in message.items():
            total[j] = total.get(j, 0.0) + part * value
    return total


@given(case=rows(min_size=0))
@examples(150)
def test_stacking_keeps_every_row_and_pads_only_where_it_must(case: Rows) -> None:
    stacked = stack(case.uploads)
    lengths = [len(message) for message in case.messages]
    assert as_dicts(stacked) == case.messages
    assert stacked.lengths == lengths
    assert stacked.size == max(lengths)
    assert isinstance(stacked, Ragged) == (len(set(lengths)) > 1)
    assert stacked.span == case.dim + isinstance(stacked, Ragged)
    check_tensors.sparse("stacked", stacked, rows=True)
    assert as_dicts(gradsift.stack(case.uploads)) == case.messages


@given(case=rows(min_size=0), cut=st.integers(1, 4), seed=st.integers(0, 99))
@examples(150)
def test_concatenating_parts_is_stacking_all_rows(case: Rows, cut: int, seed: int) -> None:
    parts = [stack(part) for part in (case.uploads[:cut], case.uploads[cut:]) if part]
    together = concatenate([shuffled(part, seed) for part in parts])
    assert as_dicts(together) == case.messages
    assert together.size == stack(case.uploads).size
    assert isinstance(together, Ragged) == isinstance(stack(case.uploads), Ragged)
    check_tensors.sparse("together", together, rows=True)


def test_concatenating_keeps_what_is_known_of_equal_parts() -> None:
    dense = torch.arange(12.0).view(3, 4)
    assert isinstance(concatenate([everything(dense[:2]), everything(dense[2:])]), Whole)
    assert isinstance(concatenate([top_k(dense[:2], 2), top_k(dense[2:], 2)]), Ranked)
    assert isinstance(concatenate([top_k(dense[:2], 2), top_k(dense[2:], 1)]), Ragged)
    assert isinstance(concatenate([top_k(dense[:2], (2, 1)), top_k(dense[2:], 2)]), Ragged)
    assert concatenate([nothing(dense[:2]), nothing(dense[2:])]).indices.shape == (3, 0)


@given(case=rows(min_size=0), seed=st.integers(0, 99))
@examples(100)
def test_densify_leaves_out_what_is_not_used(case: Rows, seed: int) -> None:
    full = densify(shuffled(stack(case.uploads), seed))
    assert full.tolist() == [[message.get(j, 0.0) for j in range(case.dim)] for message in case.messages]


@given(case=rows(), data=st.data())
@examples(100)
def test_kept_is_never_true_of_a_place_that_is_not_used(case: Rows, data: st.DataObject) -> None:
    stacked = stack(case.uploads)
    merged = sorted(data.draw(st.sets(st.integers(0, case.dim - 1))))
    mask = kept(stacked, Sparse(torch.tensor(merged, dtype=torch.int64), torch.ones(len(merged)), case.dim))
    for indices, row, message in zip(stacked.indices.tolist(), mask.tolist(), case.messages, strict=True):
        assert row == [j in merged and j in message for j in indices]
    there = members(stacked.indices, stacked.span)[: case.dim].nonzero().squeeze(-1).tolist()
    assert there == sorted({j for message in case.messages for j in message})


@ways
@given(case=rows(min_size=0), seed=st.integers(0, 99))
@examples(100)
def test_sums_are_over_what_each_row_has(way: str, case: Rows, seed: int) -> None:
    stacked, expected = shuffled(stack(case.uploads), seed), weighted(case.messages, case.share)
    with going(way):
        total, full = weighted_sum(stacked, case.share), dense_sum(stacked, case.share)
    assert as_dict(total) == expected
    assert total.indices.tolist() == sorted(expected)
    assert full.tolist() == [expected.get(j, 0.0) for j in range(case.dim)]


def test_sums_of_rows_of_no_length_have_the_dimension() -> None:
    empty = Ragged(torch.empty(2, 0, dtype=torch.int64), torch.empty(2, 0), 5)
    assert dense_sum(empty, torch.tensor([0.5, 0.5])).shape == (5,)
    assert weighted_sum(empty, torch.tensor([0.5, 0.5])).dim == 5


@ways
@given(case=rows(min_size=0), seed=st.integers(0, 99), data=st.data())
@examples(100)
def test_the_largest_of_each_row(way: str, case: Rows, seed: int, data: st.DataObject) -> None:
    stacked = shuffled(stack(case.uploads), seed)
    counts = data.draw(st.lists(st.integers(1, case.dim), min_size=len(case.messages), max_size=len(case.messages)))
    with going(way):
        alike, each = largest(stacked, counts[0]), largest(stacked, counts)
    one = [{j: message[j] for j in by_rank(message)[: counts[0]]} for message in case.messages]
    assert as_dicts(alike) == one
    check_tensors.sparse("alike", alike, rows=True)
    own = [{j: m[j] for j in by_rank(m)[:count]} for m, count in zip(case.messages, counts, strict=True)]
    assert isinstance(each, Ragged)
    assert as_dicts(each) == own
    assert each.lengths == [len(message) for message in own]
    check_tensors.sparse("each", each, rows=True)


@ways
@given(case=rows(min_size=0), seed=st.integers(0, 99))
@examples(100)
def test_rank_puts_what_is_not_used_last(way: str, case: Rows, seed: int) -> None:
    with going(way):
        ordered = rank(shuffled(stack(case.uploads), seed))
    longest = ordered.size
    for indices, message in zip(ordered.indices.tolist(), case.messages, strict=True):
        assert indices == [*by_rank(message), *[case.dim] * (longest - len(message))]


@ways
@dtypes
@given(case=instances(client_k=True, max_dim=20))
@examples(100)
def test_top_k_takes_as_many_of_each_row_as_it_is_told(way: str, dtype: torch.dtype, case: Instance) -> None:
    dense, counts = case.residual.to(dtype), case.rnd.client_k
    assert counts is not None
    with going(way):
        chosen = top_k(dense, counts)
        alone = [top_k(row, count) for row, count in zip(dense, counts, strict=True)]
    assert isinstance(chosen, Ragged)
    assert chosen.values.dtype == dtype
    assert as_dicts(chosen) == [as_dict(message) for message in alone]
    assert chosen.lengths == list(counts)
    assert chosen.size == max(counts)
    assert as_dicts(gradsift.top_k(dense.clamp(-1e30, 1e30), list(counts))) == as_dicts(
        top_k(dense.clamp(-1e30, 1e30), counts)
    )


@ways
@given(case=instances())
@examples(60)
def test_as_many_of_every_row_is_the_same_as_one_number(way: str, case: Instance) -> None:
    clients, k = len(case.residual), case.rnd.k
    with going(way):
        same, one = top_k(case.residual, (k,) * clients), top_k(case.residual, k)
        assert as_dicts(same) == as_dicts(one)
        assert_same(densify(same), densify(one))
        assert_same(dense_sum(same, case.share), dense_sum(one, case.share))
        assert as_dict(weighted_sum(same, case.share)) == as_dict(weighted_sum(one, case.share))
        assert as_dicts(largest(same, (1,) * clients)) == as_dicts(largest(one, 1)) == as_dicts(largest(same, 1))


def test_numbers_of_numpy_are_numbers() -> None:
    dense = torch.tensor([[3.0, -1, 2], [0, 5, 4]])
    two, one = (cast(int, np.int64(number)) for number in (2, 1))
    assert as_dicts(top_k(dense, two)) == as_dicts(top_k(dense, 2))
    assert as_dicts(largest(top_k(dense, 3), two)) == as_dicts(top_k(dense, 2))
    assert as_dicts(top_k(dense, [two, one])) == [{0: 3.0, 2: 2.0}, {1: 5.0}]
    assert gradsift.Round(1, 3).at(two).sizes == 2


@given(case=rows())
@examples(60)
def test_first_places_cuts_rows_where_they_stand(case: Rows) -> None:
    full = stack([top_k(densify(upload), case.dim) for upload in case.uploads])
    counts = [len(message) for message in case.messages]
    cut = first_places(full, counts)
    assert cut.lengths == counts
    for before, after, count in zip(full.indices.tolist(), cut.indices.tolist(), counts, strict=True):
        assert after == before[:count] + [case.dim] * (full.size - count)


@given(case=rows(min_size=0))
@examples(60)
def test_rows_values_and_devices_keep_the_lengths(case: Rows) -> None:
    stacked = stack(case.uploads)
    order = torch.arange(len(case.messages)).flip(0)
    assert as_dicts(stacked.rows(order)) == case.messages[::-1]
    assert as_dicts(stacked.rows(slice(1, None))) == case.messages[1:]
    doubled = stacked.with_values(stacked.values * 2)
    assert as_dicts(doubled) == [{j: 2 * value for j, value in message.items()} for message in case.messages]
    assert type(doubled) is type(stacked)
    assert stacked.to(torch.device("cpu")) is stacked
    moved = stacked.to(torch.device("meta"))
    assert type(moved) is type(stacked)
    if isinstance(stacked, Ragged):
        assert type(stacked._replace(dim=case.dim + 1)) is Sparse  # what was known of it is known no more


@given(case=rows())
@examples(60)
def test_each_row_takes_the_bytes_of_its_own_message(case: Rows) -> None:
    stacked = stack(case.uploads)
    for values in (None, *wire.VALUE_TYPES):
        sizes = wire.encoded_size(stacked, values=values)
        assert sizes.tolist() == [len(wire.encode(upload, values=values)) for upload in case.uploads]
        arrived = wire.transmitted(stacked, values=values)
        assert type(arrived) is type(stacked)
        assert as_dicts(arrived) == [as_dict(wire.transmitted(upload, values=values)) for upload in case.uploads]


PADDED = Ragged(torch.tensor([[0, 3], [2, 4]]), torch.tensor([[1.0, 2.0], [3.0, 0.0]]), 4)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (Ragged(PADDED.indices, torch.tensor([[1.0, 2.0], [3.0, 5.0]]), 4), "with a value other than 0"),
        (Ragged(torch.tensor([[0, 3], [2, 5]]), PADDED.values, 4), "index 5, outside [0, 4), at [1, 1]"),
        (Ragged(torch.tensor([[3, 3], [2, 4]]), PADDED.values, 4), "index 3 twice in row 0"),
        (Sparse(*PADDED), "index 4, outside [0, 4), at [1, 1]"),
    ],
)
def test_what_is_not_a_padded_row_is_refused(message: Sparse, named: str) -> None:
    gradsift.densify(PADDED)
    with pytest.raises(GradsiftError, match=re.escape(named)):
        gradsift.densify(message)
    with pytest.raises(GradsiftError, match=re.escape(named)):
        gradsift.weighted_sum(message, torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize(
    ("dense", "k", "named"),
    [
        (torch.ones(2, 5), (1, 2, 3), "one per row, got 3 for shape [2, 5]"),
        (torch.ones(5), (1, 2), "one per row, got 2 for shape [5]"),
        (torch.ones(2, 5), (), "one per row, got 0 for shape [2, 5]"),
        (torch.ones(2, 5), (1, 6), "k must be in [1, 5], got 6"),
        (torch.ones(2, 5), (0, 2), "k must be in [1, 5], got 0"),
        (torch.ones(2, 5), (1, 2.0), "k must be an integer, got 2.0"),
    ],
)
def test_top_k_refuses_numbers_that_the_rows_do_not_have(dense: Tensor, k: Any, named: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(named)):
        gradsift.top_k(dense, k)


def test_only_one_module_knows_of_queues() -> None:
    """What the tests above replace is what the code asks."""
    with going("queued"):
        assert sparse.queued(torch.ones(1))
    assert not sparse.queued(torch.ones(1))
