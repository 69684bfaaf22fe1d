"""A cost that is only seen: a simulated link is learned and followed, whatever its noise, stragglers and changes."""

import copy
import itertools
import json
import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradsift.control import seen_cost
from gradsift.control.seen_cost import SeenCost
from tests.control.links import LARGEST, Link, cheapest, follow
from tests.examples import examples

NOISES = [0.05, 0.3]
SEEDS, MANY = range(10), range(40)


def price_of(state: SeenCost, k: float) -> float | None:
    known = seen_cost.estimate(state)
    return None if known is None else known.price(k)


def off(k: float, best: float) -> float:
    """By which factor k is off."""
    return math.exp(abs(math.log(k / best)))


def taught(rounds: list[tuple[float, float]], largest: float = LARGEST) -> SeenCost:
    state = seen_cost.start(largest)
    for k, cost in rounds:
        state = seen_cost.learn(state, k, cost)
    return state


def test_exact_costs_give_the_line() -> None:
    state = taught([(k, 3 + 0.01 * k) for k in (100.0, 900.0, 300.0, 100.0, 900.0, 500.0)])
    known = seen_cost.estimate(state)
    assert known is not None
    assert known[:2] == pytest.approx((3, 0.01), rel=0.1)
    assert known[2:4] == pytest.approx((100, 900))
    for k in (50.0, 100.0, 450.0, 900.0, 3000.0):
        assert price_of(state, k) == pytest.approx(3 + 0.01 * k, rel=0.1)


def test_what_was_not_tried_is_dear() -> None:
    """So whatever c is, the best k is at most 4 times as far as any that was tried."""
    flat = taught([(k, 7.0) for k in (100.0, 200.0) * 4])  # sending seems to cost nothing
    assert cheapest(flat, 1e9, 150.0) == pytest.approx(800, rel=0.05)
    steep = taught([(k, k / 10) for k in (100.0, 200.0) * 4])  # and here all else
    assert cheapest(steep, 1e-9, 150.0) == pytest.approx(25, rel=0.05)
    known = seen_cost.estimate(flat)
    assert known is not None
    assert known.price(1600.0) == pytest.approx(4 * known.price(800.0))


def test_nothing_is_told_too_early() -> None:
    state = seen_cost.start(LARGEST)
    for number in range(1, 4):
        assert price_of(state, 100.0) is None
        assert seen_cost.variation(state, number) in (pytest.approx(3), pytest.approx(1 / 3))
        state = seen_cost.learn(state, 100.0 * number, 1.0)
    assert price_of(state, 100.0) is None
    assert price_of(seen_cost.learn(state, 400.0, 1.0), 100.0) is not None
    assert price_of(taught([(100.0, 1.0), (101.0, 2.0)] * 9), 100.0) is None, "these k are all the same"


def test_k_varies_by_less_once_the_cost_is_known() -> None:
    def width(noise: float) -> float:
        link = Link(noise=noise)
        chosen, used = follow(link, 1000.0, 60)
        return statistics.mean(off(k, base) for k, base in zip(used[40:], chosen[40:], strict=True))

    assert 1.09 < width(0.01) < 1.12
    assert width(0.05) < 1.2 < 1.25 < width(0.3) < 2.0


def test_both_directions_are_tried_as_often_and_without_a_period() -> None:
    signs = [1 if seen_cost.variation(seen_cost.start(LARGEST), number) > 1 else -1 for number in range(1, 257)]
    assert abs(sum(signs)) <= 2
    assert sum(sign * number for number, sign in enumerate(signs)) == 0, "drift would look like t1"
    pairs = list(itertools.pairwise(signs))
    assert sum(left * right for left, right in pairs) > 0.3 * len(pairs), "k goes with that of the round before"
    for period in range(1, 33):
        assert any(left != right for left, right in zip(signs, signs[period:], strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("c_by_best", [1 / 3, 1.0, 3.0])
def test_the_best_k_is_found_from_any_first_one(noise: float, c_by_best: float) -> None:
    """At 30 % noise no method could be sure: 15 rounds of q = 2 leave a deviation of about 0.2 in ln(k*)."""
    good = []
    for by in (1 / 30, 1 / 5, 1.0, 5.0, 30.0):
        for seed in SEEDS:
            link = Link(c=1000.0, t0=3.0, t1=0.003 * c_by_best**2, noise=noise, seed=seed)
            assert link.best() == pytest.approx(1000 / c_by_best)
            chosen, _ = follow(link, link.best() * by, 16)
            good.append(off(chosen[15], link.best()) < 1.5)
    assert sum(good) >= len(good) * (1.0 if noise < 0.1 else 0.85)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("then", [(1, 10), (1, 0.1), (10, 1), (0.1, 1), (10, 10), (0.1, 0.1)])
def test_a_link_that_changes_is_followed(noise: float, then: tuple[float, float]) -> None:
    """At 30 % noise, t1 / 10 makes a round cheaper by two deviations of the noise only."""
    good = []
    for seed in MANY:
        link = Link(noise=noise, seed=seed, changes_after=40, then=then)
        chosen, _ = follow(link, 1000.0, 61)
        good.append(off(chosen[60], link.best(61)) < 1.5)
    assert sum(good) >= (38 if noise < 0.1 else 28)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_knowing_costs_little(noise: float) -> None:
    """In the long run, with all that varying k costs."""
    losses = []
    for seed in SEEDS:
        link = Link(noise=noise, seed=seed)
        losses += [link.loss(1, k) for k in follow(link, 1000.0, 100)[1][40:]]
    assert statistics.mean(losses) < (0.015 if noise < 0.1 else 0.08)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("by", [10.0, 100.0, 1e6])
def test_one_straggler_does_not_move_k(noise: float, by: float) -> None:
    """In most seeds; in the others chance looks like a change of the link, with or without the straggler."""
    moved = []
    for seed in MANY:
        link = Link(noise=noise, seed=seed)
        calm, _ = follow(link, 1000.0, 60)
        late, _ = follow(replace(link, slow={40: by}), 1000.0, 60)
        moved.append(max(off(k, other) for k, other in zip(calm, late, strict=True)))
    assert sum(factor < 1.15 for factor in moved) >= (40 if noise < 0.1 else 36)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_a_link_that_is_slow_for_three_rounds_is_not_followed(noise: float) -> None:
    moved = []
    for seed in MANY:
        link = Link(noise=noise, seed=seed)
        calm, _ = follow(link, 1000.0, 60)
        slow, _ = follow(replace(link, slow=dict.fromkeys((40, 41, 42), 10.0)), 1000.0, 60)
        moved.append(max(off(k, other) for k, other in zip(calm, slow, strict=True)))
    assert sum(factor < 1.2 for factor in moved) >= (40 if noise < 0.1 else 34)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_stragglers_in_every_twentieth_round_do_not_matter(noise: float) -> None:
    def typical(stragglers: float) -> float:
        runs = [follow(Link(noise=noise, seed=seed, stragglers=stragglers), 1000.0, 80)[0] for seed in SEEDS]
        return statistics.median(off(k, 1000.0) for chosen in runs for k in chosen[20:])

    assert typical(0.05) < 1.1 * typical(0.0)
    assert typical(0.05) < (1.1 if noise < 0.1 else 1.3)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_late_and_missing_costs_are_fine(noise: float) -> None:
    good = []
    for seed in SEEDS:
        link = Link(noise=noise, seed=seed, changes_after=50, then=(1.0, 10.0))
        chosen, _ = follow(link, 5000.0, 80, late=1, missing=lambda number: number % 5 == 2)
        good += [off(chosen[22], link.best()) < 1.5, off(chosen[79], link.best(80)) < 1.5]
    assert sum(good) >= len(good) * (0.95 if noise < 0.1 else 0.8)


@pytest.mark.slow
def test_a_round_that_also_carries_the_result_of_the_one_before() -> None:
    """As on Flower with one exchange a round: half of what is sent is of the k before."""
    runs = [follow(Link(noise=0.1, seed=seed, carried=0.5), 5000.0, 80)[0] for seed in SEEDS]
    offs = [off(k, 1000.0) for chosen in runs for k in chosen[30:]]
    assert statistics.median(offs) < 1.5
    assert max(offs) < 2.2


@pytest.mark.slow
def test_slow_drift_is_followed() -> None:
    """t1 grows a hundredfold within 200 rounds, so k* falls by a factor of 10."""

    class Drifting(Link):
        def rates(self, number: int) -> tuple[float, float]:
            return self.t0, self.t1 * 100 ** (number / 200)

    offs = []
    for seed in SEEDS:
        link = Drifting(noise=0.1, seed=seed)
        chosen, _ = follow(link, 1000.0, 200)
        offs += [off(k, link.best(number)) for number, k in enumerate(chosen[20:], start=21)]
    assert statistics.median(offs) < 1.4
    assert statistics.quantiles(offs, n=20)[-1] < 2


@pytest.mark.parametrize("noise", [0.0, *NOISES])
def test_a_link_that_costs_nothing_lets_k_grow(noise: float) -> None:
    """By at most a factor of 12 in a round: 4 beyond the largest k tried, times the variation."""
    link = Link(t1=1e-12, noise=noise)
    _, used = follow(link, 10.0, 15)
    assert all(later < 12.1 * max(used[: number + 1]) for number, later in enumerate(used[1:]))
    assert max(used) > 1000


COSTS = st.one_of(st.just(0.0), st.floats(1e-9, 1e9), st.sampled_from([1.0, 2.0, 5e-324, 1.7e308]))
ROUNDS = st.lists(st.tuples(st.floats(1, 1e9), COSTS), max_size=60)


@examples(150)
@given(rounds=ROUNDS, number=st.integers(1, 10**9), k=st.floats(1, 1e9))
def test_any_costs_give_sensible_numbers(rounds: list[tuple[float, float]], number: int, k: float) -> None:
    state = taught(rounds)
    assert json.loads(json.dumps(state)) == state
    assert len(state["seen"]) <= seen_cost.WINDOW
    assert len(json.dumps(state)) < 60 * seen_cost.WINDOW
    assert 1 / 3.01 < seen_cost.variation(state, number) < 3.01
    known, price = seen_cost.estimate(state), price_of(state, k)
    assert (known is None) == (price is None)
    if known is not None and price is not None:
        assert all(number >= 0 for number in known), "which NaN is not"
        assert math.isfinite(known.t0) or max(cost for _, cost in rounds) > 1e300
        assert price >= 0
        assert known.price(k * 2) >= price


@examples(50)
@given(rounds=ROUNDS, k=st.floats(1, 1e9), cost=COSTS)
def test_learning_changes_no_state_and_is_repeatable(rounds: list[tuple[float, float]], k: float, cost: float) -> None:
    state = taught(rounds)
    before = copy.deepcopy(state)
    assert seen_cost.learn(state, k, cost) == seen_cost.learn(json.loads(json.dumps(state)), k, cost)
    assert state == before


@examples(50)
@given(
    rounds=st.lists(st.tuples(st.floats(1, 1e9), st.one_of(st.just(0.0), st.floats(1e-9, 1e9))), max_size=30),
    k_power=st.integers(-9, 9),
    cost_power=st.integers(-40, 40),
    k=st.floats(1, 1e9),
)
def test_units_do_not_matter(rounds: list[tuple[float, float]], k_power: int, cost_power: int, k: float) -> None:
    k_unit, cost_unit = 2.0**k_power, 2.0**cost_power
    state = taught(rounds)
    other = taught([(k * k_unit, cost * cost_unit) for k, cost in rounds], LARGEST * k_unit)
    expected: Any = price_of(state, k)
    assume(expected is not None)
    assert price_of(other, k * k_unit) == pytest.approx(expected * cost_unit)
    assert seen_cost.variation(other, 5) == pytest.approx(seen_cost.variation(state, 5))
