"""Algorithm 2 against its listing, and what it does at k_min and when answers are late."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from tests.control.harness import Training, answer, drive, one
from tests.examples import examples


def algorithm_2(k_min: float, k_max: float, k_1: float, signs: list[int | None]) -> list[float]:
    """The listing: k_1, k_2, ... An unavailable sign leaves k (Section IV-E)."""
    ks = [k_1]
    for m, sign in enumerate(signs, start=1):
        step = 0.0 if sign is None else (k_max - k_min) / math.sqrt(2 * m) * sign
        ks.append(min(max(ks[-1] - step, k_min), k_max))
    return ks


@examples(200)
@given(
    k_min=st.floats(2, 1000),
    width=st.floats(0, 1e6),
    start=st.floats(0, 1),
    signs=st.lists(st.sampled_from([-1, 0, 1, None]), max_size=60),
)
def test_equals_the_listing(k_min: float, width: float, start: float, signs: list[int | None]) -> None:
    k_max = k_min + width
    k_1 = min(k_min + start * width, k_max)
    controller = gradsift.controller("sign", k_min=k_min, k_max=k_max, k_init=k_1)
    state: Any = controller.init(dim=math.ceil(k_max))
    ks = [state["k"]]
    for m, sign in enumerate(signs, start=1):
        proposal = controller.propose(state, m)
        assert proposal.k == state["k"]
        state = controller.update(state, answer(proposal, sign))
        ks.append(state["k"])
    assert ks == algorithm_2(k_min, k_max, k_1, signs)


@examples(200)
@given(k=st.floats(2, 1e6), above=st.floats(0, 1e6), m=st.integers(1, 10**6))
def test_the_probe_is_half_a_step_below_k(k: float, above: float, m: int) -> None:
    k_max = k + above
    controller = gradsift.controller("sign", k_min=2, k_max=k_max, k_init=k)
    proposal = controller.propose(controller.init(dim=math.ceil(k_max)), m)
    assert proposal.probe_k is not None
    assert 1 <= one(proposal.probe_k) < one(proposal.k) == k
    wanted = k - (k_max - 2) / math.sqrt(2 * m) / 2
    assert proposal.probe_k == max(1.0, wanted) or wanted == k  # only a step too small for the floats may differ


@pytest.mark.parametrize("name", ["sign", "extended-sign"])
@pytest.mark.parametrize("k_min", [2, 100])
@pytest.mark.parametrize("rounding", [False, True])
def test_k_leaves_k_min_when_the_sign_says_so(name: str, k_min: int, rounding: bool) -> None:
    """k' below k_min is what finds out that k_min is too small: k* is 1000, and the search starts at k_min."""
    training = Training(rounding=rounding)
    controller = gradsift.controller(name, k_min=k_min, k_init=k_min)
    state: Any = controller.init(dim=training.dim)
    proposal = controller.propose(state, 1)
    assert proposal.probe_k is not None
    assert one(proposal.probe_k) < k_min
    assert controller.update(state, training.observe(proposal))["k"] > k_min
    # The same after many rounds at k_min, when a step is less than one element: k' is then k - 1.
    late = controller.propose(state, 10**9)
    assert controller.update(state, training.observe(late))["k"] > k_min


def test_a_late_answer_moves_k_by_the_step_of_its_own_round() -> None:
    controller = gradsift.controller("sign", k_min=10, k_max=110, k_init=60)
    proposals, state = drive(controller, controller.init(dim=200), lambda p: answer(p, 1 if p.number % 2 else -1), 4, 1)
    # Rounds 1 and 2 play k_1; then 60 - 100/sqrt(2) is projected to 10, and 10 + 100/sqrt(4) = 60; 60 - 100/sqrt(6).
    assert [p.k for p in proposals] == pytest.approx([60, 60, 10, 60])
    assert state["k"] == pytest.approx(19.175171)


@pytest.mark.parametrize("number", [0, -1, 1.5, "1", math.nan])
def test_a_round_before_the_first_is_refused(number: Any) -> None:
    controller = gradsift.controller("sign", k_min=10, k_max=110)
    state = controller.init(dim=200)
    with pytest.raises(gradsift.GradsiftError, match="round number"):
        controller.propose(state, number)
    with pytest.raises(gradsift.GradsiftError, match="round number"):
        controller.update(state, answer(gradsift.Proposal(number, 20.0, 15.0), 1))
