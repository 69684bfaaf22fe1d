"""The arithmetic of regret against slow reference implementations, and on trajectories whose best k is known."""

import math
from random import Random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsift import GradsiftError
from gradsift.regret.assumption2 import one_minimiser, shape
from gradsift.regret.best import best, grid, refined
from gradsift.regret.interval import interval, ratio
from gradsift.regret.reach import cost_to, descent, least_unit_cost, regret, unit_cost
from gradsift.regret.spending import NEAR, right_signs, spending
from tests.regret.synthetic import (
    START,
    fixed,
    made,
    on,
    optimum,
    slow_cost_to,
    slow_regret,
    slow_running_minimum,
    t,
)

pytestmark = pytest.mark.slow  # many runs

courses = st.lists(
    st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 8.0)), min_size=1, max_size=25
)  # steps of the cost, and losses
rates = st.tuples(st.floats(0.001, 0.5), st.floats(1.0, 200.0))  # b, c


def curve_of(course: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return np.cumsum([step for step, _ in course]).tolist(), [loss for _, loss in course]


@given(courses, st.lists(st.floats(-1.0, 9.0), max_size=6))
def test_costs_to_losses(course: list[tuple[float, float]], losses: list[float]) -> None:
    cost, loss = curve_of(course)
    curve = descent(cost, loss)
    assert curve.y.tolist() == slow_running_minimum(loss)
    np.testing.assert_allclose(cost_to(curve, losses), [slow_cost_to(curve, one) for one in losses], rtol=1e-9)


@given(courses, st.floats(-1.0, 9.0), st.floats(0.0, 3.0))
def test_a_lower_loss_never_costs_less(course: list[tuple[float, float]], loss: float, less: float) -> None:
    high, low = cost_to(descent(*curve_of(course)), [loss, loss - less])
    assert math.isnan(low) or high <= low


@given(courses, courses)
def test_regret_is_what_was_spent_less_what_the_best_needs(
    one: list[tuple[float, float]], other: list[tuple[float, float]]
) -> None:
    curve, base = descent(*curve_of(one)), descent(*curve_of(other))
    np.testing.assert_allclose(regret(curve, base), slow_regret(curve, base), rtol=1e-9, atol=1e-12)


@given(rates, st.integers(2, 300))
def test_regret_of_a_fixed_k_is_known(rate: tuple[float, float], k: int) -> None:
    b, c = rate
    star = optimum(b, c)
    run, base = fixed(k, 60, b, c), fixed(star, 3000, b, c)
    values = regret(run, base)
    known = np.isfinite(values)
    expected = (START - run.y) * (t(k, b, c) - t(star, b, c))
    # Exact where the best's own steps end; between them its cost is on a line, as its loss is.
    np.testing.assert_allclose(values[known], expected[known], rtol=1e-6, atol=1e-6)
    assert (values[known] >= -1e-6).all()


@given(rates)
def test_regret_of_the_best_itself_is_nothing(rate: tuple[float, float]) -> None:
    run = fixed(optimum(*rate), 80, *rate)
    np.testing.assert_allclose(regret(run, run), 0.0, atol=1e-9)


@given(rates, st.lists(st.integers(2, 400), min_size=5, max_size=40))
def test_no_sequence_beats_the_best_where_the_assumptions_hold(rate: tuple[float, float], ks: list[int]) -> None:
    values = regret(made(ks, *rate), fixed(optimum(*rate), 5000, *rate))
    assert (values[np.isfinite(values)] >= -1e-6).all()


@given(rates)
def test_the_sweep_finds_the_known_best_and_refining_comes_nearer(rate: tuple[float, float]) -> None:
    b, c = rate
    star = optimum(b, c)
    ks = grid(2, 2000, 12)

    def costs(k: int) -> list[float]:
        return [float(cost_to(fixed(k, 4000, b, c), START - 0.3)[0])]  # all get there

    def found(ks: list[int]) -> int:
        chosen = best(ks, on(ks, costs))
        assert chosen is not None
        slow = min(ks, key=lambda k: costs(k)[0])
        assert costs(chosen.k) == costs(slow)
        return chosen.k

    first = found(ks)
    for _ in range(3):
        finer = refined(ks, [found(ks)])
        assert set(ks) <= set(finer)
        ks = finer
    last = found(ks)
    assert t(last, b, c) <= t(first, b, c) * (1 + 1e-9)
    if 2 <= star <= 2000:
        nearest = min(t(math.floor(star), b, c), t(math.ceil(star), b, c))  # of whole numbers
        assert t(last, b, c) <= 1.02 * nearest


@given(st.lists(st.lists(st.one_of(st.floats(1, 100), st.just(math.nan)), min_size=3, max_size=3), min_size=1))
def test_the_best_is_chosen_on_the_mean_of_complete_seeds(costs: list[list[float]]) -> None:
    ks = [2 + 3 * i for i in range(len(costs))]
    chosen = best(ks, np.array(costs))
    whole = [(fmean(row), k) for k, row in zip(ks, costs, strict=True) if not any(map(math.isnan, row))]
    if not whole:
        assert chosen is None
        return
    assert chosen is not None
    assert fmean(chosen.costs) == pytest.approx(min(whole)[0])
    assert chosen.costs == tuple(costs[ks.index(chosen.k)])
    there = [k for _, k in whole]
    assert chosen.at_edge == (chosen.k in (there[0], there[-1]))


def test_a_k_that_was_cut_off_before_it_spent_as_much_is_named() -> None:
    costs = np.array([[math.nan], [math.nan], [500.0], [900.0]])
    found = best([10, 100, 1000, 10_000], costs, np.array([[300.0], [600.0], [500.0], [900.0]]))
    assert found == (1000, (500.0,), True, (10,))
    assert best([10, 1000], costs[1:3]) == (1000, (500.0,), True, ())


def test_the_grid_is_even_in_the_logarithm_with_both_ends() -> None:
    assert grid(888.1, 444_062, 12)[0] == 889
    assert grid(888.1, 444_062, 12)[-1] == 444_062
    steps = np.diff(np.log(grid(888.1, 444_062, 12)))
    np.testing.assert_allclose(steps, steps.mean(), rtol=1e-2)
    assert grid(2, 5, 12) == [2, 3, 4, 5]
    for low, high, points in ((5, 5, 12), (0, 5, 12), (2, 5, 1), (5.2, 5.9, 3), (5.2, 6.1, 3)):
        with pytest.raises(GradsiftError, match="cannot make a grid"):
            grid(low, high, points)


def test_refining_adds_the_geometric_middles_around_the_best_only() -> None:
    assert refined([10, 40, 160], [40]) == [10, 20, 40, 80, 160]
    assert refined([10, 40, 160], [10], lowest=10) == [10, 20, 40, 160]
    assert refined([10, 11, 12], [11]) == [10, 11, 12]
    assert refined([10, 40], []) == [10, 40]


def test_refining_goes_on_below_the_smallest_k_if_that_is_the_best() -> None:
    assert refined([64, 256, 1024], [64]) == [4, 16, 64, 128, 256, 1024]
    assert refined([64, 256, 1024], [64], lowest=5) == [16, 64, 128, 256, 1024]
    assert refined([2, 20, 200], [2]) == [2, 6, 20, 200]
    assert refined([64, 256, 1024], [1024]) == [64, 256, 512, 1024]


@given(rates, st.integers(2, 500))
def test_the_cost_of_a_unit_of_loss(rate: tuple[float, float], k: int) -> None:
    found = unit_cost(fixed(k, 4000, *rate), [START - 0.3, START - 0.6], 0.1)
    np.testing.assert_allclose(found[np.isfinite(found)], t(k, *rate), rtol=1e-6)


@given(rates)
def test_assumption_2_holds_where_it_holds(rate: tuple[float, float]) -> None:
    ks = grid(2, 2000, 12)
    losses = [START - 0.3, START - 0.6]
    units = on(ks, lambda k: unit_cost(fixed(k, 40_000, *rate), losses, 0.1).tolist())
    shapes = [shape(loss, ks, units[:, [i, i]]) for i, loss in enumerate(losses)]
    for one in shapes:
        assert one.sure == ()
        assert one.minimiser == min(ks, key=lambda k: t(k, *rate))
    assert shapes[0].minimiser in one_minimiser(shapes)


def test_a_bend_and_a_minimiser_that_moves_are_seen() -> None:
    ks = [10, 20, 30, 40]
    noise = np.array([-0.01, 0.0, 0.01])
    bent = np.array([4.0, 5.0, 3.0, 9.0])[:, None] + noise  # up, down, up: not convex at 20
    one = shape(2.0, ks, bent)
    assert (one.bends, one.sure, one.minimiser, one.as_good) == ((20,), (20,), 30, (30,))
    assert one.steepest == pytest.approx(0.6)
    other = shape(1.0, ks, np.array([1.0, 2.0, 4.0, 8.0])[:, None] + noise)
    assert (other.bends, other.minimiser) == ((), 10)
    assert one_minimiser([one, other]) == set()
    single = shape(2.0, ks, bent[:, :1])
    assert (single.bends, single.sure, single.as_good) == ((20,), (), (30,))


def test_a_k_that_ended_before_a_loss_is_not_refuted_by_it() -> None:
    ks, noise = [10, 20, 40], np.array([-0.01, 0.0, 0.01])
    first = shape(2.0, ks, np.array([1.0, 2.0, 3.0])[:, None] + noise)
    t = np.array([np.nan, 2.0, 3.0])[:, None] + noise
    for spent, maybe in ((0.5, {10}), (2.5, set())):
        second = shape(1.0, ks, t, np.array([spent, 2.0, 3.0])[:, None] + noise)
        assert second.open == tuple(maybe)
        assert (second.minimiser, second.as_good) == (20, (20,))
        assert one_minimiser([first, second]) == set()
        assert one_minimiser([first, second], or_open=True) == maybe
    assert shape(1.0, ks, t).open == (), "nothing is known of it"


@given(courses, st.floats(0.0, 8.0), st.floats(0.1, 3.0))
def test_what_a_unit_of_loss_costs_at_least(course: list[tuple[float, float]], loss: float, half: float) -> None:
    curve = descent(*curve_of(course))
    low, high = slow_cost_to(curve, loss - half), slow_cost_to(curve, loss + half)
    end = float(curve.x[-1])
    low, high = (end if math.isnan(cost) else cost for cost in (low, high))
    np.testing.assert_allclose(least_unit_cost(curve, [loss], half), [(low - high) / (2 * half)], rtol=1e-9, atol=1e-12)


def test_a_bend_within_the_noise_is_not_sure_and_k_that_were_not_run_so_far_are_left_out() -> None:
    noisy = np.array([[4.0, 4.4, 3.6], [3.0, 3.9, 2.4], [2.1, 1.8, 2.4], [np.nan, 1.0, 1.0]])
    one = shape(2.0, [10, 20, 30, 40], noisy)
    assert one.ks == (10, 20, 30)
    assert (one.bends, one.sure) == ((), ()) or one.sure == ()
    nothing = shape(2.0, [10, 20], np.full((2, 3), np.nan))
    assert (nothing.minimiser, nothing.ks) == (None, ())
    assert one_minimiser([nothing]) == set()


@given(
    st.lists(
        st.tuples(st.floats(1, 1000), st.floats(0.1, 9.0), st.sampled_from([-1, 0, 1, 2])), min_size=1, max_size=30
    ),
    st.integers(2, 500),
    st.randoms(use_true_random=False),
)
def test_where_the_cost_went(rounds: list[tuple[float, float, int]], star: int, source: Random) -> None:
    k, cost, sign = (np.array(column) for column in zip(*rounds, strict=True))
    right = np.array([source.choice((-1, 0, 1)) for _ in rounds])
    counted = spending(k, cost, sign, right, star)
    total = sum(c for _, c, _ in rounds)
    large = [c for one, c, _ in rounds if one > NEAR * star]
    small = [c for one, c, _ in rounds if one < star / NEAR]
    none = [c for _, c, s in rounds if s not in (-1, 1)]
    judged = [(c, s, r) for (_, c, s), r in zip(rounds, right, strict=True) if s in (-1, 1) and r != 0]
    wrong = [c for c, s, r in judged if s != r]
    assert (counted.rounds, counted.judged) == (len(rounds), len(judged))
    assert counted.cost == pytest.approx(total)
    for number, part, these in (
        (counted.large, counted.large_cost, large),
        (counted.small, counted.small_cost, small),
        (counted.no_sign, counted.no_sign_cost, none),
        (counted.wrong, counted.wrong_cost, wrong),
    ):
        assert number == len(these)
        assert part == pytest.approx(sum(these) / total)


def test_a_sweep_says_which_sign_was_right_where_it_can() -> None:
    ks, costs = [10, 100, 1000, 10_000], np.array([4.0, 1.0, 4.0, math.nan])
    k = np.array([1000.0, 1000.0, 100.0, 101.0, 1000.0, 5000.0, 316.0])
    probe = np.array([100.0, 10.0, 10.0, 100.0, 2.0, 100.0, math.nan])
    assert right_signs(k, probe, ks, costs).tolist() == [1, 0, -1, 0, 0, 0, 0]
    middle = right_signs(np.array([100.0 * math.sqrt(10)]), np.array([10.0]), ks, costs)  # 2 against 4
    assert middle.tolist() == [-1]


def test_intervals() -> None:
    made_of = interval([1.0, 2.0, 3.0])
    assert made_of.mean == 2.0
    assert made_of.low == pytest.approx(2 - 4.303 / math.sqrt(3))
    assert interval([5.0]) == (5.0, None, None, 1)
    paired = ratio([2.0, 8.0], [1.0, 4.0])
    assert paired.mean == pytest.approx(2.0)
    assert paired.low == pytest.approx(2.0)
    wide = interval([0.0, 1.0] * 20)
    assert wide.high == pytest.approx(0.5 + 1.96 * np.std([0.0, 1.0] * 20, ddof=1) / math.sqrt(40))
