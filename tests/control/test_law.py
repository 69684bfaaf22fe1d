"""The law that plans k: its search finds the best k for any prices, and prices are interpolated exactly."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsift import GradsiftError
from gradsift.control import law
from gradsift.control.law import EXPONENT, Prices
from tests.examples import examples

positive = st.floats(1e-6, 1e6)


def best_by_trying(t0: float, t1: float, c: float, dim: int) -> float:
    """The cost over R0 of the best whole k of 1 to ``dim``."""
    k = np.arange(1, dim + 1)
    return float(((t0 + t1 * k) * (1 + c / k) ** EXPONENT).min())


@given(positive, positive, st.floats(0.1, 1e4), st.integers(1, 3000))
@examples(200)
def test_the_best_k_is_that_of_trying_all(t0: float, t1: float, c: float, dim: int) -> None:
    k = law.best_k(lambda k: t0 + t1 * k, c, 1, dim)
    assert 1 <= k <= dim
    assert (t0 + t1 * k) * law.slowdown(k, c) <= best_by_trying(t0, t1, c, dim) * (1 + 1e-6)


@given(positive, st.floats(1.0, 1e5))
@examples(100)
def test_the_best_k_is_where_the_shares_are_equal(knee: float, c: float) -> None:
    """P c / (k + c) = t1 k / (t0 + t1 k), which is sqrt(c t0 / t1) for P = 1."""
    k = law.best_k(lambda k: knee + k, c, 1e-9, 1e12)
    assert EXPONENT * c / (k + c) == pytest.approx(k / (knee + k), rel=1e-3)


def test_prices_with_steps_and_free_rounds_have_a_best_k_too() -> None:
    stairs = law.best_k(lambda k: 1.0 + (k > 50), 20.0, 1, 1000)
    assert 45 <= stairs <= 50
    assert law.best_k(lambda k: 0 * k, 100.0, 3, 1000) == 1000  # rounds cost nothing: the fewest
    assert law.best_k(lambda k: 1 + 0 * k, 100.0, 1, 1000) == 1000  # sending costs nothing
    assert law.best_k(lambda k: k, 1e-9, 7, 7) == 7


@pytest.mark.parametrize(("low", "high"), [(0.0, 5.0), (-1.0, 5.0), (6.0, 5.0), (math.nan, 5.0)])
def test_an_interval_that_is_none_is_refused(low: float, high: float) -> None:
    with pytest.raises(GradsiftError, match="interval above 0"):
        law.best_k(lambda k: k, 1.0, low, high)


@given(st.integers(1, 10**7), positive, positive)
@examples(50)
def test_linear_prices_are_exact_between_the_points(dim: int, t0: float, t1: float) -> None:
    prices = Prices.of(lambda k: t0 + t1 * k, dim)
    k = np.geomspace(1, dim, 50).clip(1, dim)
    np.testing.assert_allclose(prices.at(k), t0 + t1 * k, rtol=1e-9)
    assert prices.base == pytest.approx(t0 if dim > 1 else t0 + t1, rel=1e-6, abs=1e-9 * t1)


def test_the_base_is_never_negative_nor_above_the_first_price() -> None:
    assert Prices((1.0, 2.0), (1.0, 5.0)).base == 0.0
    assert Prices((1.0, 2.0), (3.0, 2.0)).base == 3.0


def test_a_wrong_c_costs_little() -> None:
    """The table of docs/theory.md: what k costs that was planned with a c that is wrong by this factor."""
    for factor, most in ((2.0, 1.03), (3.0, 1.07), (10.0, 1.32)):
        for share in (0.01, 0.1, 1.0, 10.0, 100.0):  # of c in the k at which sending costs as much as the rest
            prices = Prices((0.0, 1e9), (1.0, 1.0 + share * 1e9))
            right, wrong = (law.search(prices.at, c, 1e-6, 1e6) for c in (1.0, factor))
            costs = [float(prices.at(np.array(k))) * law.slowdown(k, 1.0) for k in (right, wrong)]
            assert costs[1] <= most * costs[0]
