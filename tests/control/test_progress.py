"""What the bandits minimise: the price of a unit of loss, scaled to [0, 1]."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsift import Observation, Proposal
from gradsift.control.progress import scaled_cost
from tests.examples import examples


def seen(cost: float, before: float | None, after: float | None) -> Observation:
    return Observation(Proposal(1, 5.0), cost, loss_before=before, loss_after=after)


def test_by_hand() -> None:
    # 6 for a decrease of 0.5 is 12 a unit.
    assert scaled_cost(48.0, seen(6.0, 2.0, 1.5)) == (0.25, 48.0)
    assert scaled_cost(12.0, seen(6.0, 2.0, 1.5)) == (1.0, 12.0)
    assert scaled_cost(3.0, seen(6.0, 2.0, 1.5)) == (1.0, 3.0)  # dearer than the bound counts as the bound
    assert scaled_cost(None, seen(6.0, 2.0, 1.5)) == (0.1, 120.0)  # ten times the first price seen
    assert scaled_cost(48.0, seen(6.0, 1.5, 1.5)) == (1.0, 48.0)  # no decrease: the bound
    assert scaled_cost(48.0, seen(6.0, 1.5, 2.0)) == (1.0, 48.0)
    assert scaled_cost(None, seen(6.0, 1.5, 2.0)) == (1.0, None)  # which sets no scale
    assert scaled_cost(48.0, seen(6.0, None, None)) == (None, 48.0)  # nobody reported: nothing is learnt
    assert scaled_cost(None, seen(0.0, 2.0, 1.5)) == (0.0, None)  # a free round sets no scale either


ANY = st.floats(allow_nan=False, allow_infinity=False)


@examples(500)
@given(bound=st.none() | st.floats(1e-300, 1e300), cost=st.floats(0, allow_infinity=False), before=ANY, after=ANY)
def test_always_in_range_with_a_usable_bound(bound: float | None, cost: float, before: float, after: float) -> None:
    scaled, kept = scaled_cost(bound, seen(cost, before, after))
    assert scaled is not None
    assert 0 <= scaled <= 1
    assert kept is None or (math.isfinite(kept) and kept > 0)
    assert bound is None or kept == bound


def test_a_decrease_too_small_to_divide_by_sets_no_scale() -> None:
    assert scaled_cost(None, seen(1.0, 5e-324, 0.0)) == (1.0, None)
    assert scaled_cost(2.0, seen(1.0, 5e-324, 0.0)) == pytest.approx((1.0, 2.0))
