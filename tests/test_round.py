"""Round and apply: Algorithm 1's steps around a sparsifier.

Shapes: weights [D], merged [k].
"""

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from gradsift import GradsiftError, Round, Sparse, apply, difference, top_k
from tests.examples import examples
from tests.sparsify.cases import SPARSE, Instance, as_dict, assert_same, instances, make, unchanged


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(case=instances(kind="dyadic"), exponent=st.integers(-4, 0))
def test_apply_steps_against_the_gradient_where_there_is_one(dtype: torch.dtype, case: Instance, exponent: int) -> None:
    lr = 2.0**exponent
    weights, merged = case.residual.sum(0).to(dtype), top_k(case.residual[0].to(dtype), case.rnd.k)
    with unchanged(weights, merged):
        after = apply(weights, merged, lr)
    step = as_dict(merged)
    assert after.dtype == dtype
    assert after.tolist() == [w - lr * step.get(j, 0.0) for j, w in enumerate(weights.tolist())]
    # The result is its own: the next round may write to it.
    with unchanged(weights):
        after.add_(1.0)


@given(case=instances())
def test_a_step_of_zero_and_an_empty_gradient_change_nothing(case: Instance) -> None:
    weights = case.residual[0]
    assert torch.equal(apply(weights, top_k(weights, case.rnd.k), 0.0), weights)
    assert_same(
        apply(weights, top_k(weights, 1)._replace(indices=torch.empty(0).long(), values=torch.empty(0)), 1), weights
    )


@pytest.mark.parametrize("name", SPARSE)
@given(case=instances(kind="dyadic", share="dyadic"))
@examples(40)
def test_the_probe_difference_leads_to_the_weights_of_the_probe(name: str, case: Instance) -> None:
    """w' = w - lr (B' - B), with one sparse message; exact here, since every number is dyadic."""
    sparsifier, lr = make(name), 0.5
    weights = case.residual.sum(0)
    upload = sparsifier.upload(case.residual, case.rnd)
    merged = sparsifier.merge(upload, case.share, case.rnd)
    after = apply(weights, merged, lr)
    for probe_k in range(1, case.rnd.k):
        probed = sparsifier.probe(upload, case.share, case.rnd, probe_k)
        change = difference(probed, merged)
        assert set(change.indices.tolist()) <= set(merged.indices.tolist()) | set(probed.indices.tolist())
        assert_same(apply(after, change, lr) + 0.0, apply(weights, probed, lr) + 0.0)


@pytest.mark.parametrize("lr", [math.nan, math.inf, -0.1, None, "0.1", True])
def test_apply_refuses_a_bad_step_size(lr: Any) -> None:
    weights, merged = torch.ones(3), top_k(torch.ones(3), 1)
    with unchanged(weights, merged), pytest.raises(GradsiftError, match=re.escape(f"got {lr!r}")):
        apply(weights, merged, lr)


@pytest.mark.parametrize(
    ("weights", "merged", "message"),
    [
        (torch.ones(4), top_k(torch.ones(3), 1), "weights must have shape [3], as merged has, got [4]"),
        (torch.ones(2, 3), top_k(torch.ones(3), 1), "weights must have shape [3], as merged has, got [2, 3]"),
        (torch.ones(3, 2), top_k(torch.ones(3), 1), "weights must have shape [3], as merged has, got [3, 2]"),
        (torch.ones(3), top_k(torch.ones(2, 3), 1), "merged must be [k], got [2, 1]"),
        (torch.ones(3), Sparse(torch.tensor([3]), torch.ones(1), 3), "merged holds index 3, outside [0, 3), at [0]"),
        (torch.ones(3), Sparse(torch.tensor([1, 1]), torch.ones(2), 3), "merged holds index 1 twice"),
        (torch.ones(3), Sparse(torch.tensor([1]), torch.tensor([math.nan]), 3), "must be finite, got nan at [0]"),
    ],
)
def test_apply_refuses_what_does_not_fit(weights: torch.Tensor, merged: Sparse, message: str) -> None:
    with unchanged(weights, merged), pytest.raises(GradsiftError, match=re.escape(message)):
        apply(weights, merged, 0.1)


@given(dim=st.integers(1, 9), k=st.integers(-2, 12), number=st.integers(-1, 3), offset=st.integers(-1, 30))
def test_a_round_is_valid_for_vectors_that_have_k_elements(dim: int, k: int, number: int, offset: int) -> None:
    rnd = Round(number=number, k=k, seed=0, offset=offset)
    if 1 <= k <= dim and number >= 1 and offset >= 0:
        rnd.validate(dim)
    else:
        with pytest.raises(GradsiftError):
            rnd.validate(dim)


def test_a_round_starts_at_the_beginning_unless_told() -> None:
    assert gradsift.Round(number=1, k=7, seed=0) == (1, 7, 0, 0, None)


@given(number=st.integers(1, 9), ks=st.lists(st.integers(1, 12), min_size=1, max_size=5), one=st.integers(1, 12))
def test_a_round_has_one_k_or_one_for_each_client(number: int, ks: list[int], one: int) -> None:
    rnd = Round(number=number, k=one, seed=7, offset=5)
    assert rnd.sizes == one
    each = rnd.at(ks)
    assert (each.k, each.client_k, each.sizes) == (max(ks), tuple(ks), tuple(ks))
    assert each == rnd.at(tuple(ks))
    assert each.at(one) == rnd
    assert each[2:4] == rnd[2:4] == (7, 5)
    each.validate(12)
