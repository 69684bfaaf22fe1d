"""The continuous bandit: its steps by definition, its theorem, and its place within the interval."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from gradsift import Observation, Proposal
from gradsift.control.continuous_bandit import ContinuousBandit
from tests.control.harness import drive, one
from tests.examples import examples

pytestmark = pytest.mark.slow  # many runs


def test_one_step_by_hand() -> None:
    # Half-width 50 and 16 rounds: the perturbation is 50 / sqrt(6 * 4) = 10.206207, the step 50 / 4 = 12.5.
    controller = ContinuousBandit(k_min=10, k_max=110, k_init=60, horizon=16, bound=8.0)
    state = controller.init(dim=200, seed=0)
    for number in range(1, 9):
        proposal = controller.propose(state, number)
        up = proposal.memo["direction"]
        assert up in (-1.0, 1.0)
        assert proposal.k == pytest.approx(60 + up * 10.206207)
        assert proposal.probe_k is None
        # A price of 2 over the bound 8 is a cost of 1/4: 12.5 / 4 away from the side that was played.
        after = controller.update(state, Observation(proposal, 1.0, loss_before=1.0, loss_after=0.5))
        assert after["k"] == pytest.approx(60 - up * 3.125)


def test_both_sides_are_played_as_often() -> None:
    controller = ContinuousBandit(k_min=10, k_max=110)
    state = controller.init(dim=200, seed=4)
    ups = sum(controller.propose(state, number).memo["direction"] > 0 for number in range(1, 4001))
    assert abs(ups - 2000) < 5 * math.sqrt(4000 / 4)


@pytest.mark.parametrize("best", [300.0, 2500.0, 9700.0])
def test_finds_the_optimum_and_keeps_its_bound(best: float) -> None:
    """Flaxman et al., from the middle, Lipschitz costs with L r <= C = 1: expected regret under 2 n^(3/4) sqrt(6)."""
    rounds, k_min, k_max = 20_000, 2.0, 10_000.0

    def price(k: float) -> float:
        return abs(k - best) / k_max

    def observe(proposal: Proposal) -> Observation:
        return Observation(proposal, price(one(proposal.k)), loss_before=1.0, loss_after=0.0)

    bound = 2 * rounds**0.75 * math.sqrt(6)
    if best != 2500.0:
        assert rounds * price((k_min + k_max) / 2) > bound, "staying put must break the bound"
    regrets = []
    for seed in range(3):
        controller = gradsift.controller("continuous-bandit", k_min=k_min, k_max=k_max, horizon=rounds, bound=1.0)
        proposals, _ = drive(controller, controller.init(dim=10_000, seed=seed), observe, rounds)
        assert all(k_min <= one(p.k) <= k_max for p in proposals)
        assert np.mean([p.k for p in proposals[-rounds // 4 :]]) == pytest.approx(best, abs=0.002 * k_max)
        regrets.append(sum(price(one(p.k)) for p in proposals))
    assert np.mean(regrets) < bound


def test_perturbation_and_step_scale_with_the_range() -> None:
    def first_steps(scale: float) -> tuple[float, float]:
        controller = ContinuousBandit(k_min=10 * scale, k_max=110 * scale, k_init=60 * scale, bound=1.0)
        state = controller.init(dim=int(110 * scale))
        proposal = controller.propose(state, 1)
        after = controller.update(state, Observation(proposal, 0.5, loss_before=1.0, loss_after=0.0))
        return abs(one(proposal.k) - state["k"]), abs(after["k"] - state["k"])

    small, large = first_steps(1.0), first_steps(70.0)
    assert large == pytest.approx((70 * small[0], 70 * small[1]))
    assert min(small) > 0


@examples(300)
@given(
    k_min=st.floats(1, 1e4),
    width=st.floats(0, 1e6),
    start=st.sampled_from([0.0, 0.3, 1.0]),
    horizon=st.integers(1, 10**6),
    decreases=st.lists(st.floats(-1, 1), max_size=20),
    seed=st.integers(0, 2**64 - 1),
)
def test_never_leaves_the_interval(
    k_min: float, width: float, start: float, horizon: int, decreases: list[float], seed: int
) -> None:
    """Not by a rounding error either: at k_min = 1 that would be a k that cannot be rounded."""
    k_max = k_min + width
    k_init = min(k_min + start * width, k_max)
    controller = gradsift.controller("continuous-bandit", k_min=k_min, k_max=k_max, k_init=k_init, horizon=horizon)
    state: Any = controller.init(dim=math.ceil(k_max), seed=seed)
    for number, decrease in enumerate([*decreases, 1.0], start=1):
        proposal = controller.propose(state, number)
        assert k_min <= one(proposal.k) <= k_max
        # The centre keeps its distance from both ends, so this is the whole perturbation and not a part of it.
        perturbation = ContinuousBandit(horizon=horizon).perturbation(state)
        assert abs(proposal.k - state["k"]) == pytest.approx(perturbation, abs=1e-12 * k_max)
        state = controller.update(state, Observation(proposal, 1.0, loss_before=0.0, loss_after=-decrease))
