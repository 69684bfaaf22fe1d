"""The planned controller: it starts with the plan, learns c from what waits, and the prices from what rounds cost."""

import copy
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsift import GradsiftError, Observation
from gradsift.control import law
from gradsift.control.law import Prices
from gradsift.control.planned import GUESSED_ROUNDS, Planned, PlannedState, current_c, measured_c
from tests.control.links import Link
from tests.examples import examples

DIM = 400_000
T0, T1 = 1.0, 5e-5


def priced(controller: Planned, dim: int = DIM, t0: float = T0, t1: float = T1) -> PlannedState:
    return controller.priced(controller.init(dim), Prices.of(lambda k: t0 + t1 * k, dim))


def waiting_for(c: float, k: float, number: int, dim: int = DIM) -> float:
    """How long elements wait in round ``number`` of a task with this c."""
    return c * math.sqrt(dim) * math.pow(number, 1 / 3) / (7 * k)


def train(controller: Planned, state: PlannedState, c: float, rounds: int, late: int = 0) -> tuple[PlannedState, float]:
    """Rounds of a task that follows the law with this c; returns the last k."""
    waiting: list[Observation] = []
    for number in range(1, rounds + 1):
        proposal = controller.propose(state, number)
        k = max(1, round(float(proposal.k)))  # type: ignore[arg-type]
        cost = T0 + T1 * k
        waiting.append(Observation(proposal, cost, used_k=k, waiting=waiting_for(c, k, number), agreement=2.0))
        if len(waiting) > late:
            state = controller.update(state, waiting.pop(0))
    return state, float(controller.propose(state, rounds + 1).k)  # type: ignore[arg-type]


def best(c: float, t0: float = T0, t1: float = T1) -> float:
    return law.best_k(lambda k: t0 + t1 * k, c, 1, DIM)


def test_it_starts_with_the_plan() -> None:
    controller = Planned()
    first = controller.propose(priced(controller), 1)
    assert first.k == pytest.approx(best(math.sqrt(DIM)), rel=0.01)
    assert first.memo == {"c": pytest.approx(math.sqrt(DIM))}
    assert first.probe_k is None


@pytest.mark.parametrize("guess", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("c", [100.0, 600.0, 5000.0])
@pytest.mark.parametrize("late", [0, 1])
def test_a_wrong_guess_is_forgotten_within_thirty_rounds(guess: float, c: float, late: int) -> None:
    controller = Planned(guess=guess)
    state, k = train(controller, priced(controller), c, 30, late)
    assert k == pytest.approx(best(c), rel=0.4)
    _, k = train(controller, state, c, 300, late)
    assert k == pytest.approx(best(c), rel=0.1)


def test_without_measurements_the_guess_stays() -> None:
    controller = Planned()
    state = first = priced(controller)
    for number in range(1, 20):
        proposal = controller.propose(state, number)
        state = controller.update(state, Observation(proposal, T0 + T1 * 100, used_k=100))
    assert current_c(state) == pytest.approx(current_c(first))


def test_the_guess_counts_as_much_as_a_few_rounds() -> None:
    controller = Planned()
    state, _ = train(controller, priced(controller), 10 * math.sqrt(DIM), GUESSED_ROUNDS)
    assert current_c(state) == pytest.approx(math.sqrt(10) * math.sqrt(DIM))


@pytest.mark.parametrize(("agreement", "factor"), [(None, 1), (3.0, 1), (1.0, 1), (0.5, 2.5), (0.0, 4), (-5.0, 5.5)])
def test_clients_that_disagree_need_a_larger_k(agreement: float | None, factor: float) -> None:
    assert measured_c(DIM, 500, 20.0, agreement, 8) == pytest.approx(factor * measured_c(DIM, 500, 20.0, None, 8))


def test_clients_that_take_part_in_every_tenth_round_wait_ten_times_as_long() -> None:
    controller = Planned()
    all_of_them, tenth = priced(controller), priced(controller)
    for number in range(1, 11):
        seen = Observation(controller.propose(tenth, number), 1.0, used_k=9, waiting=30.0)
        tenth = controller.update(tenth, seen._replace(took_part=0.1))
        all_of_them = controller.update(all_of_them, seen._replace(waiting=300.0))
    assert tenth == all_of_them


def test_costs_that_differ_from_the_prices_correct_them() -> None:
    """As for a sparsifier whose messages down are ten times those up."""
    controller = Planned()
    state = priced(controller)
    for number in range(1, 60):
        proposal = controller.propose(state, number)
        k = max(1, round(float(proposal.k)))  # type: ignore[arg-type]
        state = controller.update(state, Observation(proposal, T0 + 10 * T1 * k, used_k=k))
    expected = best(math.sqrt(DIM), t1=10 * T1)
    assert float(controller.propose(state, 60).k) == pytest.approx(expected, rel=0.02)  # type: ignore[arg-type]


def follow(link: Link) -> tuple[list[float], list[float]]:
    """k and the best k of each of 120 rounds whose cost is only seen."""
    controller, c = Planned(), math.sqrt(DIM)
    state, used, wanted = controller.init(DIM), [], []
    for number in range(1, 121):
        proposal = controller.propose(state, number)
        k = max(1, round(float(proposal.k)))  # type: ignore[arg-type]
        cost = link.cost(number, k, k)
        seen = Observation(proposal, cost, used_k=k, waiting=waiting_for(c, k, number), agreement=2.0)
        state = controller.update(state, seen)
        used.append(float(k))
        wanted.append(best(c, *link.rates(number)))
    return used, wanted


def off(used: list[float], wanted: list[float], first: int, last: int) -> float:
    """The factor between the geometric means of k and of the best k over these rounds: k itself alternates."""
    return math.exp(abs(float(np.mean(np.log(used[first:last]) - np.log(wanted[first:last])))))


@pytest.mark.parametrize("change", [0.1, 10.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_link_that_is_only_seen_is_followed_within_twenty_rounds(change: float, seed: int) -> None:
    used, wanted = follow(Link(T0, T1, seed=seed, changes_after=60, then=(1.0, change)))
    assert off(used, wanted, 44, 60) < 1.3
    assert off(used, wanted, 80, 88) < 1.5
    assert off(used, wanted, 88, 120) < 1.3


@pytest.mark.parametrize("times", [10.0, 100.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_straggler_does_not_throw_k_off(times: float, seed: int) -> None:
    calm, _ = follow(Link(T0, T1, seed=seed))
    hit, _ = follow(Link(T0, T1, seed=seed, slow={70: times}))
    assert hit[:70] == calm[:70]
    assert off(hit, calm, 70, 86) < 1.1


@given(st.data())
@examples(100)
def test_any_observations_leave_it_in_its_bounds(data: st.DataObject) -> None:
    low = data.draw(st.integers(1, 50))
    controller = Planned(k_min=low, k_max=data.draw(st.integers(low, 1000)))
    state = controller.init(1000)
    if data.draw(st.booleans()):
        state = controller.priced(state, Prices.of(lambda k: 1 + k, 1000))
    numbers = st.floats(0, 1e300)
    for number in range(1, 12):
        proposal = controller.propose(state, number)
        assert controller.k_min <= proposal.k <= controller.k_max  # type: ignore[operator]
        before = copy.deepcopy(state)
        waiting = data.draw(st.none() | numbers)
        agreement = data.draw(st.none() | st.floats(-1e300, 1e300))
        used = data.draw(st.none() | st.integers(1, 1000))
        seen = Observation(proposal, data.draw(numbers), used_k=used, waiting=waiting, agreement=agreement)
        after = controller.update(state, seen)
        assert state == before
        state = json.loads(json.dumps(after))


@pytest.mark.parametrize("options", [{"guess": 0}, {"guess": math.nan}, {"k_min": 0}, {"k_min": 9, "k_max": 8}])
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(GradsiftError, match=r"guess|k_min"):
        Planned(**options)


def test_a_small_k_max_bounds_the_smallest_k() -> None:
    state = Planned(k_max=10).init(1_000_000)
    assert (state["low"], state["high"]) == (10.0, 10.0)


def test_prices_that_change_are_told_and_what_was_learned_about_the_old_ones_is_forgotten() -> None:
    planned = Planned()
    prices = Prices.of(lambda k: 1 + k, 100)
    state: PlannedState = {**planned.priced(planned.init(100), prices), "log_scale": 1.0, "priced": 7}
    assert planned.priced(state, prices) == state
    other = planned.priced(state, Prices.of(lambda k: 2 + k, 100))
    assert (other["log_scale"], other["priced"]) == (0.0, 0)
    assert planned.priced(state, None)["prices"] is None
