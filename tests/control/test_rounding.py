"""Definition 2: stochastic rounding is unbiased, keyed by (seed, round), and leaves a k' below k."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsift import GradsiftError, round_k, round_probe_k
from tests.examples import examples

DRAWS = 10_000


@pytest.mark.parametrize("k", [1.1, 7.5, 888.25, 444_061.9])
@pytest.mark.parametrize("over", ["rounds", "seeds"])
def test_rounding_is_unbiased(k: float, over: str) -> None:
    rounded = [round_k(k, 5, n) if over == "rounds" else round_k(k, n, 5) for n in range(1, DRAWS + 1)]
    assert set(rounded) == {math.floor(k), math.ceil(k)}
    part = k - math.floor(k)
    # A mean of DRAWS coins has a standard error of sqrt(p (1 - p) / DRAWS); five of them are one chance in a million.
    assert abs(np.mean(rounded) - k) < 5 * math.sqrt(part * (1 - part) / DRAWS)


def test_the_probe_is_rounded_without_bias_and_apart_from_k() -> None:
    k, probe_k = 80.5, 40.5
    pairs = [(round_k(k, 0, n), round_probe_k(probe_k, 80, 0, n)) for n in range(1, DRAWS + 1)]
    error = 5 * math.sqrt(0.25 / DRAWS)
    assert abs(np.mean([probe for _, probe in pairs]) - probe_k) < error
    # Independent coins agree half the time.
    assert abs(np.mean([(a == 81) == (b == 41) for a, b in pairs]) - 0.5) < error


def test_rounds_and_seeds_draw_independently() -> None:
    draws = np.array([[round_k(3.5, seed, number) for number in range(1, 101)] for seed in range(100)]) - 3.5
    limit = 5 * math.sqrt(1 / (100 * 99))  # of a mean of 9900 products of independent signs
    assert abs(np.mean(4 * draws[1:] * draws[:-1])) < limit
    assert abs(np.mean(4 * draws[:, 1:] * draws[:, :-1])) < limit


@examples(300)
@given(k=st.floats(1, 1e9), seed=st.integers(0, 2**64 - 1), number=st.integers(1, 2**40))
def test_a_neighbour_and_the_same_again(k: float, seed: int, number: int) -> None:
    rounded = round_k(k, seed, number)
    assert type(rounded) is int
    assert rounded in (math.floor(k), math.ceil(k))
    assert rounded == round_k(k, seed, number)
    assert round_k(float(math.floor(k)), seed, number) == math.floor(k)


@examples(300)
@given(probe_k=st.floats(-1e6, 1e6), used_k=st.integers(2, 10**6), number=st.integers(1, 2**40))
def test_the_probe_is_clamped_below_k_and_nowhere_else(probe_k: float, used_k: int, number: int) -> None:
    rounded = round_probe_k(probe_k, used_k, 0, number)
    assert 1 <= rounded <= used_k - 1
    assert rounded in {min(max(k, 1), used_k - 1) for k in (math.floor(probe_k), math.ceil(probe_k))}


@pytest.mark.parametrize("k", [0, 0.999, -3, math.nan, math.inf, -math.inf, "7", None, True])
def test_an_impossible_k_is_refused(k: Any) -> None:
    with pytest.raises(GradsiftError, match=f"got {k!r}"):
        round_k(k, 0, 1)


@pytest.mark.parametrize("probe_k", [math.nan, math.inf, -math.inf, "7", None])
def test_an_impossible_probe_is_refused(probe_k: Any) -> None:
    with pytest.raises(GradsiftError, match=f"got {probe_k!r}"):
        round_probe_k(probe_k, 5, 0, 1)


@pytest.mark.parametrize("used_k", [1, 0, -1, 2.5, "7", math.nan])
def test_a_k_with_nothing_below_it_is_refused(used_k: Any) -> None:
    with pytest.raises(GradsiftError, match=f"{used_k!r}"):
        round_probe_k(1.0, used_k, 0, 1)
