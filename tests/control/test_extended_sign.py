"""Algorithm 3: by hand, against the listing written out slowly, and where the listing cannot be followed."""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from tests.control.harness import answer
from tests.examples import examples


class Line(NamedTuple):
    """One round of the trace: the sign that came, k_{m+1}, and K and m_0 after the round."""

    sign: int | None
    k: float
    low: float = 10.0
    high: float = 110.0
    started: int = 0


# K = [10, 110], k_1 = 30, alpha = 1.25, M_u = 2. A restart needs B' < 0.414214 B.
TRACE = [
    Line(+1, 10.0),  # delta = 100/sqrt(2) = 70.710678: 30 - 70.710678 is projected to 10; n = 1
    Line(None, 10.0),  # unavailable: k stays, n stays 1, m advances
    # delta = 100/sqrt(6) = 40.824829. n = 2: k'max = 1.25 * 50.824829 = 63.531036, k'min = 10/1.25 = 8, clipped to
    # k_min = 10: B' = 53.531036 is not below 41.421356.
    Line(-1, 50.824829),
    Line(+1, 15.469490),  # delta = 100/sqrt(8) = 35.355339; n = 1
    # delta = 100/sqrt(10) = 31.622777: to 10. n = 2: k'max = 1.25 * 15.469490 = 19.336863, k'min = 8, clipped to 10:
    # B' = 9.336863 < 41.421356 and M'' = 5 >= M' = 0. First restart: K = [10, 19.336863], M' = 5, m_0 = 5.
    Line(+1, 10.0, 10.0, 19.336863, 5),
    Line(+1, 10.0, 10.0, 19.336863, 5),  # delta = 9.336863/sqrt(2) = 6.602159: held at 10 by the projection; n = 1
    # delta = 9.336863/2 = 4.668431: held again. n = 2: k'max = 12.5, k'min = 10: B' = 2.5 < 0.414214 * 9.336863 =
    # 3.867455, but M'' = 2 < M' = 5: no restart.
    Line(+1, 10.0, 10.0, 19.336863, 5),
    Line(-1, 13.811758, 10.0, 19.336863, 5),  # delta = 9.336863/sqrt(6) = 3.811758; n = 1
    # delta = 9.336863/sqrt(8) = 3.301080. n = 2: k'max = 1.25 * 13.811758 = 17.264697, k'min = 10.510678/1.25 =
    # 8.408542, clipped to 10: B' = 7.264697 is not below 3.867455.
    Line(+1, 10.510678, 10.0, 19.336863, 5),
    Line(+1, 10.0, 10.0, 19.336863, 5),  # delta = 9.336863/sqrt(10) = 2.952575: 7.558103 is projected to 10; n = 1
    # delta = 9.336863/sqrt(12) = 2.695320: held at 10. n = 2: k'max = 12.5, k'min = 10: B' = 2.5 < 3.867455 and
    # M'' = 6 >= M' = 5. Second restart: K = [10, 12.5], M' = 6, m_0 = 11.
    Line(+1, 10.0, 10.0, 12.5, 11),
    Line(-1, 11.767767, 10.0, 12.5, 11),  # delta = 2.5/sqrt(2) = 1.767767; n = 1
    # delta = 2.5/2 = 1.25: 13.017767 is projected to 12.5. n = 2: k'max = 15.625, above K but below k_max, and k'min =
    # 11.767767/1.25 = 9.414213, clipped to 10: B' = 5.625 is not below 1.035534.
    Line(-1, 12.5, 10.0, 12.5, 11),
    Line(+1, 11.479379, 10.0, 12.5, 11),  # delta = 2.5/sqrt(6) = 1.020621
]

# The same signs with literal_window: rounds 6, 7 and 11, in which the projection held k, do not count. So round 12
# closes the window that round 10 opened: k'max = 1.25 * 12.495381 = 15.619226, k'min = 10, B' = 5.619226: no restart.
LITERAL_TRACE = [
    *TRACE[:10],
    Line(+1, 10.0, 10.0, 19.336863, 5),
    Line(-1, 12.495381, 10.0, 19.336863, 5),  # delta = 9.336863/sqrt(14) = 2.495381
    Line(-1, 14.829597, 10.0, 19.336863, 5),  # delta = 9.336863/4 = 2.334216
    Line(+1, 12.628877, 10.0, 19.336863, 5),  # delta = 9.336863/sqrt(18) = 2.200720; B' = 18.536996 - 10.103102
]


@pytest.mark.parametrize(("literal", "trace"), [(False, TRACE), (True, LITERAL_TRACE)])
def test_a_trace_worked_by_hand(literal: bool, trace: list[Line]) -> None:
    controller = gradsift.controller(
        "extended-sign", k_min=10, k_max=110, k_init=30, alpha=1.25, window=2, literal_window=literal
    )
    state: Any = controller.init(dim=1000)
    assert controller.propose(state, 1).k == 30
    for m, line in enumerate(trace, start=1):
        state = controller.update(state, answer(controller.propose(state, m), line.sign))
        seen = (state["k"], state["low"], state["high"], state["started"])
        assert seen == pytest.approx(line[1:], abs=1e-6), f"after round {m}"


def algorithm_3(
    k_min: float, k_max: float, k_1: float, alpha: float, m_u: int, signs: list[int | None], literal: bool
) -> list[tuple[float, float, float]]:
    """The listing, line by line, with m_0 = 0 at first: (k_{m+1}, and the ends of K) after each round."""
    m_0, b, n, m_prev, low, high, seen_min, seen_max = 0, k_max - k_min, 0, 0, k_min, k_max, math.inf, 0.0
    k = k_1
    rounds = []
    for m, sign in enumerate(signs, start=1):  # line 2
        if sign is None:  # Section IV-E: k_m remains unchanged, and lines 6 and 7 are skipped
            rounds.append((k, low, high))
            continue
        before, k = k, min(max(k - b / math.sqrt(2 * (m - m_0)) * sign, low), high)  # line 4
        m_now = m - m_0  # line 5
        if not (literal and k == before):
            seen_min, seen_max = min(seen_min, k), max(seen_max, k)  # line 6
            n = n + 1  # line 7
        if n >= m_u:  # line 8
            seen_max, seen_min = min(alpha * seen_max, k_max), max(seen_min / alpha, k_min)  # line 9
            b_new = seen_max - seen_min  # line 10
            if b_new < (math.sqrt(2) - 1) * b and m_now >= m_prev:  # line 11
                low, high, b = seen_min, seen_max, b_new  # line 12
                m_prev = m_now  # line 13
                m_0 = m  # line 14
            n, seen_min, seen_max = 0, math.inf, 0.0  # line 15
        rounds.append((k, low, high))
    return rounds


def both(
    k_min: float, k_max: float, k_1: float, alpha: float, m_u: int, signs: list[int | None], literal: bool
) -> list[tuple[float, float, float]]:
    """The controller's rounds, after checking that they are the listing's, to the last bit."""
    controller = gradsift.controller(
        "extended-sign", k_min=k_min, k_max=k_max, k_init=k_1, alpha=alpha, window=m_u, literal_window=literal
    )
    state: Any = controller.init(dim=math.ceil(k_max))
    rounds = []
    for m, sign in enumerate(signs, start=1):
        state = controller.update(state, answer(controller.propose(state, m), sign))
        rounds.append((state["k"], state["low"], state["high"]))
    assert rounds == algorithm_3(k_min, k_max, k_1, alpha, m_u, signs, literal)
    return rounds


@examples(300)
@given(
    k_min=st.floats(2, 1000),
    width=st.floats(1, 1e6),
    start=st.floats(0, 1),
    alpha=st.floats(1.01, 3),
    m_u=st.integers(1, 6),
    signs=st.lists(st.sampled_from([-1, 0, 1, None]), max_size=80),
    literal=st.booleans(),
)
def test_equals_the_listing_on_any_signs(
    k_min: float, width: float, start: float, alpha: float, m_u: int, signs: list[int | None], literal: bool
) -> None:
    k_max = k_min + width
    k_1 = min(k_min + start * width, k_max)
    both(k_min, k_max, k_1, alpha, m_u, signs, literal)


@pytest.mark.parametrize("literal", [False, True])
def test_equals_the_listing_through_many_restarts(literal: bool) -> None:
    """Signs that mostly point at some k* shrink K again and again, at both ends of it and in between."""
    draw = np.random.default_rng(0)
    restarts = clipped_low = clipped_high = 0
    for _ in range(60):
        k_min, k_max = 5.0, 5.0 + 10 ** draw.uniform(1, 5)
        best = k_min + (k_max - k_min) * draw.choice([0.0, 0.02, 0.5, 0.98, 1.0])
        alpha, m_u, k_1 = float(draw.uniform(1.01, 1.6)), int(draw.integers(1, 15)), float(draw.uniform(k_min, k_max))
        signs: list[int | None] = []
        controller = gradsift.controller(
            "extended-sign", k_min=k_min, k_max=k_max, k_init=k_1, alpha=alpha, window=m_u, literal_window=literal
        )
        state: Any = controller.init(dim=math.ceil(k_max))
        for m in range(1, 150):
            sign = 1 if state["k"] > best else -1
            chance = draw.random()
            signs.append(None if chance < 0.1 else -sign if chance < 0.2 else sign)
            state = controller.update(state, answer(controller.propose(state, m), signs[-1]))
        intervals = [(low, high) for _, low, high in both(k_min, k_max, k_1, alpha, m_u, signs, literal)]
        changes = [after for before, after in itertools.pairwise(intervals) if after != before]
        restarts += len(changes)
        clipped_low += sum(low == k_min for low, _ in changes)
        clipped_high += sum(high == k_max for _, high in changes)
    assert restarts > 60
    assert min(clipped_low, clipped_high) > 5


def test_a_new_interval_may_leave_the_old_one() -> None:
    """Line 9 clips to k_min and k_max, not to the K of now: an instance on a wrong interval can get out of it."""
    controller = gradsift.controller("extended-sign", k_min=10, k_max=110, alpha=1.05, window=2)
    state: Any = controller.init(dim=1000)
    state = {**state, "low": 20.0, "high": 60.0, "k": 58.0, "counted": 1, "window_low": 58.0, "window_high": 58.0}
    # delta = 40/sqrt(400) = 2: to 60. The window's [58, 60] becomes [55.238095, 63], B' = 7.761905 < 16.568542.
    state = controller.update(state, answer(controller.propose(state, 200), -1))
    assert (state["k"], state["low"], state["high"]) == pytest.approx((60.0, 55.238095, 63.0), abs=1e-6)


def test_a_window_of_one_point_starts_no_instance() -> None:
    """alpha = 1 and a window in which k never moved: the listing would take K = {k}, in which k could never move."""
    controller = gradsift.controller("extended-sign", k_min=10, k_max=110, k_init=10, alpha=1, window=3)
    state: Any = controller.init(dim=1000)
    for m in range(1, 13):
        state = controller.update(state, answer(controller.propose(state, m), 1))
    assert (state["k"], state["low"], state["high"]) == (10.0, 10.0, 110.0)
    state = controller.update(state, answer(controller.propose(state, 13), -1))
    assert state["k"] == pytest.approx(10 + 100 / math.sqrt(26))


def test_an_answer_from_before_the_instance_is_refused() -> None:
    controller = gradsift.controller("extended-sign", k_min=10, k_max=110)
    state: Any = {**controller.init(dim=1000), "started": 7}
    early = controller.propose(controller.init(dim=1000), 7)
    with pytest.raises(gradsift.GradsiftError, match="round 7 was observed already"):
        controller.update(state, answer(early, 1))
    with pytest.raises(gradsift.GradsiftError, match="at least 1, got 0"):
        controller.propose(state, 7)
