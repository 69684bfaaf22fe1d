"""Theorems 1 and 2: the regret of Algorithm 2 stays under G B sqrt(2M), and under G H B sqrt(2M) with noisy signs.

The costs are tau_m(k) = g_m |k - k*| with 0 <= g_m <= G: at |tau'| = G they are the steepest that the assumptions
allow, and around k* every step overshoots. At the kink itself any slope in [-G, G] is a derivative; the adversary takes
the one that drives k away. All regrets are given as a share of the bound. On such costs Algorithm 2 comes to one half
of it: k alternates between x and delta_m - x from k*, delta_m / 2 on average, and the delta_m add up to B sqrt(2M).
A step three times as long therefore ends near 1.5. With k* at an end of K the projection stops every second overshoot:
one third of the bound, and three times as long a step only just reaches it, so that control is for the inside of K.

Each negative control is the real controller with one function of it replaced.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import gradsift
from gradsift import Observation
from gradsift.control.base import Interval
from gradsift.control.estimate import estimated_sign
from gradsift.control.sign import step_size
from tests.control.harness import answer, one

pytestmark = pytest.mark.slow  # many runs

ROUNDS = 10_000
K_MIN, K_MAX, G = 888.0, 444_062.0, 0.37
B = K_MAX - K_MIN

Slope = Callable[[int, float], float]  # (m, k_m - k*) -> g_m in [0, G]
Noise = Callable[[int, int], int | None]  # (m, s_m) -> the estimate of it


def at(share: float) -> float:
    """The point of K that lies ``share`` of the way up."""
    return K_MIN + share * B


def steepest(m: int, distance: float) -> float:
    """|tau'| = G in every round."""
    del m, distance
    return G


def regret(
    best: float,
    first: float,
    *,
    rounds: int = ROUNDS,
    slope: Slope = steepest,
    noise: Noise | None = None,
    h: float = 1.0,
    name: str = "sign",
) -> tuple[float, float]:
    """The regret over G H B sqrt(2M): after the last round, and the largest after any round."""
    controller = gradsift.controller(name, k_min=K_MIN, k_max=K_MAX, k_init=first)
    state: Any = controller.init(dim=int(K_MAX))
    inward = 1 if best == K_MAX else -1  # the sign at the kink: a step by it leaves k* for the inside of K
    total = worst = 0.0
    for m in range(1, rounds + 1):
        proposal = controller.propose(state, m)
        distance = one(proposal.k) - best
        steepness = slope(m, distance)
        total += steepness * abs(distance)
        worst = max(worst, total / (G * h * B * math.sqrt(2 * m)))
        sign = 0 if steepness == 0 else (distance > 0) - (distance < 0) or inward
        state = controller.update(state, answer(proposal, sign if noise is None else noise(m, sign)))
    return total / (G * h * B * math.sqrt(2 * rounds)), worst


def frozen(seen: Observation) -> int | None:
    del seen
    return None


def flipped(seen: Observation) -> int | None:
    sign = estimated_sign(seen)
    return None if sign is None else -sign


def constant(state: Interval, rounds: int) -> float:
    del rounds
    return step_size(state, 1)


def tripled(state: Interval, rounds: int) -> float:
    return 3 * step_size(state, rounds)


MUTANTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "frozen k": ("estimated_sign", frozen),
    "flipped sign": ("estimated_sign", flipped),
    "constant step": ("step_size", constant),
    "tripled step": ("step_size", tripled),
}


@contextmanager
def mutant(name: str) -> Iterator[None]:
    """Algorithm 2 with one of its functions replaced."""
    function, replacement = MUTANTS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"gradsift.control.sign.{function}", replacement)
        yield


BEST = (0.0, 0.03, 0.25, 0.45, 0.62, 0.97, 1.0)  # k*, as shares of K: the ends, near them, and between


@pytest.mark.parametrize("best", BEST)
def test_theorem_1_and_what_breaks_it(best: float) -> None:
    for first in (0.0, 0.5, 1.0):
        last, worst = regret(at(best), at(first))
        assert worst <= 1.0, f"k* at {best}, k_1 at {first}: {worst} of the bound"
        inside = 0 < best < 1
        assert last > (0.49 if inside else 0.33), "these costs must make the bound bite"
        for name in MUTANTS:
            if (best == first and name in ("frozen k", "flipped sign")) or (not inside and name == "tripled step"):
                continue  # it starts at k* and stays there, or is stopped by the projection
            with mutant(name):
                last, _ = regret(at(best), at(first))
            assert last > 1.4, f"{name}, k* at {best}, k_1 at {first}: only {last} of the bound"


def test_theorem_1_over_a_hundred_thousand_rounds() -> None:
    last, worst = regret(at(1 / 3), at(1.0), rounds=100_000)
    assert worst <= 1.0
    assert last > 0.45


def asleep_until(start: int) -> Slope:
    """Flat costs while the step shrinks, then the steepest: k must walk all the way to k* in small steps."""
    return lambda m, _distance: G if m > start else 0.0


def only_far(m: int, distance: float) -> float:
    """Steep only where k is far from k* for its step, next to flat where it is near."""
    return G if abs(distance) > B / math.sqrt(2 * m) / 2 else 1e-9 * G


def only_above(m: int, distance: float) -> float:
    """Steep above k* and next to flat below: an asymmetric V."""
    del m
    return G if distance > 0 else 1e-9 * G


def random_slopes(seed: int, share_flat: float) -> Slope:
    """Any slope up to G, or none at all."""
    draws = np.random.default_rng(seed).random((2, ROUNDS + 1)).tolist()
    return lambda m, _distance: 0.0 if draws[0][m] < share_flat else G * draws[1][m]


ADVERSARIES: dict[str, Slope] = {
    "asleep, then a last walk": asleep_until(ROUNDS - int(math.sqrt(2 * ROUNDS))),
    "asleep for half": asleep_until(ROUNDS // 2),
    "only far": only_far,
    "only above": only_above,
    "random": random_slopes(0, 0.0),
    "random, often flat": random_slopes(1, 0.7),
}


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_theorem_1_holds_for_slopes_that_vary(adversary: str) -> None:
    for best in (0.0, 0.3, 0.62, 1.0):
        for first in (0.0, 1.0):
            _, worst = regret(at(best), at(first), slope=ADVERSARIES[adversary])
            assert worst <= 1.0, f"k* at {best}, k_1 at {first}: {worst} of the bound"


def test_the_late_walk_bites() -> None:
    last, worst = regret(at(0.0), at(1.0), slope=ADVERSARIES["asleep, then a last walk"])
    assert 0.49 < last <= worst <= 1.0


def wrong_signs(seed: int, h: float) -> Noise:
    """The wrong sign, so often that P(right) - P(wrong) = 1 / h."""
    draws = np.random.default_rng(seed).random(ROUNDS + 1).tolist()
    return lambda m, sign: sign if draws[m] < (1 + 1 / h) / 2 else -sign


def missing_signs(seed: int, h: float) -> Noise:
    """No sign at all, so often that P(right) = 1 / h: k stays, exactly as if the estimate were 0."""
    draws = np.random.default_rng(seed).random(ROUNDS + 1).tolist()
    return lambda m, sign: sign if draws[m] < 1 / h else None


def mixed_signs(seed: int, h: float) -> Noise:
    """Wrong in a quarter of the rounds, right in 1 / h more than that, else 0 or missing."""
    draws = np.random.default_rng(seed).random(ROUNDS + 1).tolist()

    def noise(m: int, sign: int) -> int | None:
        if draws[m] < 0.25 + 1 / h:
            return sign
        if draws[m] < 0.5 + 1 / h:
            return -sign
        return 0 if m % 2 else None

    return noise


@pytest.mark.parametrize(
    ("noise", "h", "seeds"),
    [
        (wrong_signs, 1.5, 8),
        (wrong_signs, 4.0, 8),
        (wrong_signs, 10.0, 4),
        (missing_signs, 3.0, 4),
        (mixed_signs, 3.0, 4),
    ],
)
def test_theorem_2(noise: Callable[[int, float], Noise], h: float, seeds: int) -> None:
    largest = 0.0
    for best, first in ((0.0, 1.0), (0.3, 0.0), (0.62, 0.5), (1.0, 0.0)):
        regrets = [regret(at(best), at(first), noise=noise(seed, h), h=h)[0] for seed in range(seeds)]
        mean = float(np.mean(regrets))
        error = float(np.std(regrets, ddof=1)) / math.sqrt(seeds)
        # The theorem bounds the expectation: the mean must be under it by more than it may be off.
        assert mean + 5 * error <= 1.0, f"k* at {best}: {mean} +- {error} of the bound"
        largest = max(largest, mean)
    if noise is wrong_signs:
        assert largest > 0.45, "wrong signs must make the bound bite"


@pytest.mark.parametrize(("best", "first"), [(0.3, 0.0), (0.62, 0.5)])
def test_theorem_2_and_what_breaks_it(best: float, first: float) -> None:
    h, seeds = 2.0, 3

    def mean() -> float:
        return float(
            np.mean([regret(at(best), at(first), noise=wrong_signs(seed, h), h=h)[0] for seed in range(seeds)])
        )

    assert 0.45 < mean() <= 1.0
    for name in MUTANTS:
        with mutant(name):
            assert mean() > 1.2, f"{name}: only {mean()} of the bound"


@pytest.mark.parametrize("best", [0.05, 0.3, 0.62, 0.95])
def test_estimated_signs_of_equation_11_serve_as_well(best: float) -> None:
    """tau known only at k and k': the secant errs within delta / 4 of k*, where an error costs little."""
    controller = gradsift.controller("sign", k_min=K_MIN, k_max=K_MAX, k_init=K_MIN)
    state: Any = controller.init(dim=int(K_MAX))
    total = 0.0
    for m in range(1, ROUNDS + 1):
        proposal = controller.propose(state, m)
        assert proposal.probe_k is not None
        cost, probe_cost = (G * abs(k - at(best)) for k in (one(proposal.k), one(proposal.probe_k)))
        total += cost
        state = controller.update(state, Observation(proposal, cost, probe_cost, 1.0, 0.0, 0.0))
        assert total <= G * B * math.sqrt(2 * m)


@pytest.mark.parametrize(("best", "share"), [(0.01, 0.1), (0.1, 0.25), (0.4, 0.75), (0.8, 1.0)])
def test_algorithm_3_keeps_the_bound_and_beats_algorithm_2(best: float, share: float) -> None:
    """Section IV-D: the same bound, and "significantly better" where k* is small, so that K can shrink around it."""
    sign, _ = regret(at(best), at(0.5))
    extended, worst = regret(at(best), at(0.5), name="extended-sign")
    assert worst <= 1.0
    assert extended <= share * sign
