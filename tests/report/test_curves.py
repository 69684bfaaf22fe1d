"""Bands over seeds: no value outside the range of the seeds, no extrapolation, no evaluation lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsift.report.curves import Curve, band, curve, over_rounds, thinned, value_at
from gradsift.report.runs import Floats

numbers = st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: round(value, 3))


@st.composite
def curves(draw: st.DrawFn, low: int = 1, high: int = 12) -> Curve:
    """A curve from 0 on, as evaluations over costs are."""
    steps = draw(st.lists(st.integers(1, 50), min_size=low - 1, max_size=high - 1))
    x = np.cumsum([0.0, *steps])
    return Curve(x, np.array(draw(st.lists(numbers, min_size=len(x), max_size=len(x)))))


def value(given: Curve, x: float) -> float:
    """The line between two points, by hand."""
    right = int(np.searchsorted(given.x, x))
    if given.x[min(right, len(given.x) - 1)] == x:
        return float(given.y[right])
    (x0, x1), (y0, y1) = given.x[right - 1 : right + 1], given.y[right - 1 : right + 1]
    return float(y0 + (y1 - y0) * (x - x0) / (x1 - x0))


@given(st.lists(curves(low=2), min_size=1, max_size=5), st.sampled_from([5, 400]))
def test_a_band_is_that_of_the_seeds_where_all_have_values(seeds: list[Curve], points: int) -> None:
    made = band(seeds, points)
    assert made is not None
    end = min(c.x[-1] for c in seeds)
    assert made.x[0] == 0
    assert made.x[-1] == end  # not shorter than the shortest, and no longer
    assert len(made.x) <= points
    assert made.seeds == len(seeds)
    for i, x in enumerate(made.x):
        values = [value(c, float(x)) for c in seeds]
        assert made.mean[i] == pytest.approx(np.mean(values), rel=1e-9, abs=1e-6)
        assert made.low[i] == pytest.approx(min(values), rel=1e-9, abs=1e-6)
        assert made.high[i] == pytest.approx(max(values), rel=1e-9, abs=1e-6)


@given(st.lists(curves(low=2), min_size=1, max_size=5))
def test_the_rest_of_longer_seeds_is_kept(seeds: list[Curve]) -> None:
    made = band(seeds)
    assert made is not None
    end = made.x[-1]
    longer = [c for c in seeds if c.x[-1] > end]
    assert len(made.tails) == len(longer)
    for tail, seed in zip(made.tails, longer, strict=True):
        assert tail.x[0] == end
        assert tail.x[1:].tolist() == seed.x[seed.x > end].tolist()
        assert tail.y[1:].tolist() == seed.y[seed.x > end].tolist()
        assert tail.y[0] == pytest.approx(value(seed, float(end)), rel=1e-9, abs=1e-6)


@given(st.lists(curves(low=2), min_size=1, max_size=4))
def test_every_evaluation_within_the_common_range_is_a_point(seeds: list[Curve]) -> None:
    made = band(seeds)
    assert made is not None
    wanted = sorted({float(x) for c in seeds for x in c.x if x <= made.x[-1]})
    assert made.x.tolist() == wanted


def test_a_seed_with_only_its_start_does_not_shorten_the_others() -> None:
    start, whole = Curve(np.array([0.0]), np.array([2.0])), Curve(np.array([0.0, 4.0]), np.array([2.0, 1.0]))
    made = band([start, whole])
    assert made is not None
    assert made.x.tolist() == [0, 4]
    assert made.seeds == 1
    alone = band([start, start])
    assert alone is not None
    assert alone.x.tolist() == [0]
    assert band([Curve(np.empty(0), np.empty(0))]) is None
    assert band([]) is None


def test_seeds_without_a_common_x_are_all_tails() -> None:
    made = band([Curve(np.array([0.0, 1.0]), np.array([1.0, 2.0])), Curve(np.array([2.0, 3.0]), np.array([3.0, 4.0]))])
    assert made is not None
    assert len(made.x) == 0
    assert [tail.x.tolist() for tail in made.tails] == [[0, 1], [2, 3]]


def test_the_last_of_several_values_at_one_cost() -> None:
    made = curve(np.array([0.0, 1.0, 1.0, 2.0, 2.0]), np.array([5.0, 4.0, 3.0, 2.0, np.nan]))
    assert made.x.tolist() == [0, 1, 2]
    assert made.y.tolist() == [5, 3, 2]
    assert len(curve(np.empty(0), np.empty(0)).x) == 0


@given(curves(), st.floats(-10, 700))
def test_a_value_is_only_read_inside_a_curve(given_curve: Curve, x: float) -> None:
    found = value_at(given_curve, x)
    if 0 <= x <= given_curve.x[-1]:
        assert found == pytest.approx(value(given_curve, x), rel=1e-9, abs=1e-6)
    else:
        assert found is None


@given(st.lists(st.lists(numbers, min_size=1, max_size=40), min_size=1, max_size=4), st.integers(1, 50))
def test_stretches_of_rounds_lose_no_excursion(lists: list[list[float]], points: int) -> None:
    values: list[Floats] = [np.array(v) for v in lists]
    made = over_rounds(values, points)
    assert made is not None
    each = made.rounds_per_point
    shortest = min(map(len, values))
    assert len(made.x) <= points
    assert (each == 1) == (shortest <= points)
    for i in range(len(made.x)):
        part = np.stack([v[:shortest] for v in values])[:, i * each : (i + 1) * each]
        rounds = np.arange(shortest)[i * each : (i + 1) * each] + 1
        assert made.x[i] == pytest.approx(rounds.mean())
        assert made.mean[i] == pytest.approx(part.mean(), rel=1e-9, abs=1e-6)
        assert (made.low[i], made.high[i]) == (part.min(), part.max())
    assert len(made.x) * each >= shortest


def test_no_rounds() -> None:
    assert over_rounds([]) is None
    assert over_rounds([np.empty(0), np.ones(3)]) is None


@given(curves(high=40), st.integers(2, 50))
def test_thinned_curves_keep_their_ends(given_curve: Curve, points: int) -> None:
    made = thinned(given_curve, points)
    assert len(made.x) <= max(points, 1)
    assert (made.x[0], made.x[-1]) == (given_curve.x[0], given_curve.x[-1])
    assert (made.y[0], made.y[-1]) == (given_curve.y[0], given_curve.y[-1])
