"""The cost of a round at any k, learned from rounds of which only k and the cost are seen, such as measured seconds.

A round is taken to cost t0 + t1 k, times noise. All that matters for k is the knee t0 / t1, the k at which sending
costs as much as the rest. Each knee of a grid, with the t0 and t1 that fit it best, is weighed by how well it explains
the last rounds, by the likelihood of Student's t in the logarithm of the cost: a straggler, however late, counts for
little. t0 and t1 are the weighted means over the grid, so they are never negative, and a k that is planned with them
has the lowest cost that is to be expected. The grid ends where sending the largest k costs a quarter of the rest,
whatever k were tried: where sending costs too little to be seen, k is large and stays there. If the last rounds are
explained far better apart from those before them, the link has changed, and the older rounds are forgotten.

The state is the list of these rounds, all in JSON values. Observations may be late, in any order, or missing.
"""

import math
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

WINDOW = 48  # rounds that are remembered
RECENT = (8, 16, 24)  # last rounds that are compared with those before; of 8 most must agree, so 3 slow ones do not
CHANGED = 7.0  # a change must make the rounds e^7 times as likely
LEAST, KEPT = 4, 6  # rounds without which nothing can be told; those that a change leaves: k varies within 6
REACH = 4.0  # k up to this factor beyond those that were tried is taken to be known
KNEES = 81  # in the grid
BELOW, ABOVE = 16.0, 4.0  # the factors by which it exceeds the smallest k that was tried, and the largest k there is
TAIL = 4.0  # degrees of freedom of Student's t
SMALLEST_NOISE = 0.01  # relative to the cost
CLIP = 1000.0  # a cost more than this factor from the median counts as one at this factor
VARY_LEAST, VARY_MOST = 1.1, 3.0  # factors

Floats = NDArray[np.float64]


class SeenCost(TypedDict):
    """What is remembered."""

    largest: float  # the k beyond which nobody would go
    seen: list[list[float]]  # [k, cost] of the last rounds, the oldest first


class Estimate(NamedTuple):
    """A round at k costs about t0 + t1 k, as far as k was tried."""

    t0: float
    t1: float
    least_k: float  # of the rounds that are remembered
    most_k: float
    doubt: float  # the relative deviation of t0 / t1; that of k* = sqrt(c t0 / t1) is half of it

    def price(self, k: float) -> float:
        """The cost of a round at k, made such that no minimum of price(k) (1 + c / k) is far from the k tried.

        Below a quarter of the least k it is no lower, and above 4 times the largest k it grows like k^2.
        """
        far = max(k / (REACH * self.most_k), 1.0)
        known = self.t0 + self.t1 * min(max(k, self.least_k / REACH), REACH * self.most_k)
        return known * far * far if known else 0.0


def start(largest: float) -> SeenCost:
    """Nothing is known; k will be at most ``largest``."""
    return SeenCost(largest=float(largest), seen=[])


def learn(state: SeenCost, k: float, cost: float) -> SeenCost:
    """The state after a round at ``k`` that cost ``cost``: finite, k > 0, cost >= 0."""
    seen = [*state["seen"], [float(k), float(cost)]][-WINDOW:]
    if len(seen) >= 2 * RECENT[0]:
        seen = seen[-_same_link(_Fit(seen, state["largest"])) :]
    return {**state, "seen": seen}


def _same_link(fit: "_Fit") -> int:
    """How many of the last rounds are of the link as it is now."""
    for recent in RECENT:
        if fit.rounds - recent >= RECENT[0] and fit.gain(recent) > CHANGED:
            return max(range(KEPT, recent + 1), key=fit.gain)
    return fit.rounds


def estimate(state: SeenCost) -> Estimate | None:
    """t0 and t1; None while there are fewer than 4 rounds, or all have almost the same k."""
    seen = state["seen"]
    if len(seen) < LEAST:
        return None
    ks = [k for k, _ in seen]
    return None if max(ks) < 1.05 * min(ks) else _Fit(seen, state["largest"]).estimate()


def variation(state: SeenCost, number: int) -> float:
    """The factor by which to multiply k in round ``number``: q or 1 / q, since t0 and t1 show only if k varies.

    A k off by q costs about ln(q)^2 / 4, and so does a doubt of ln(q) about the best k, which falls as q rises: the sum
    is least where q is the doubt. While few rounds are known q is larger, because what they tell serves all that
    follow. The order of q and 1 / q (Thue and Morse, each twice) has no period, and drift cancels out in it. Twice,
    because a round may also carry the result of the round before: then its size must not be opposite to this one's.
    """
    known = estimate(state)
    log_q = math.log(VARY_MOST)
    if known is not None:
        doubt = known.doubt / 2 * (1 + 32 / len(state["seen"]))
        log_q = min(max(doubt, math.log(VARY_LEAST)), log_q)
    return math.exp(log_q if ((number - 1) // 2).bit_count() % 2 else -log_q)


class _Fit:
    """How well each knee of the grid explains the rounds, all relative to one k and one cost of them.

    Shapes: K knees, n rounds.
    """

    def __init__(self, seen: list[list[float]], largest: float) -> None:
        k, cost = np.array(seen, dtype=np.float64).T
        self.rounds = len(seen)
        paid = np.sort(cost[cost > 0])
        self.unit_k, self.unit_cost = float(np.sort(k)[len(k) // 2]), float(paid[len(paid) // 2]) if len(paid) else 0.0
        self.x = np.log(k / self.unit_k)
        with np.errstate(over="ignore"):
            y = np.log(np.clip(cost / (self.unit_cost or 1.0), 1 / CLIP, CLIP))
        most = max(self.x.max(), math.log(largest / self.unit_k)) + math.log(ABOVE)
        self.knees = np.linspace(self.x.min() - math.log(BELOW), most, KNEES)
        self.offset = y - np.logaddexp(self.knees[:, None], self.x)  # [K, n] ln(t1) by each round without noise

    def gain(self, recent: int) -> float:
        """How much better the last ``recent`` rounds and those before are explained apart, in log-likelihood."""
        parts = [self.offset[:, :-recent], self.offset[:, -recent:]]
        noise = _noise(np.concatenate([_best_residual(part) for part in parts]), 4)
        apart = sum(_explained(part, noise)[1].min() for part in parts)
        return float(_explained(self.offset, noise)[1].min() - apart)

    def estimate(self) -> Estimate:
        """The means over the knees, each weighed by its likelihood."""
        levels, misfits = _explained(self.offset, _noise(_best_residual(self.offset), 2))
        weight = np.exp(misfits.min() - misfits)
        weight /= weight.sum()
        each_t1 = np.exp(levels)  # [K] in units of cost and k
        each_t0 = each_t1 * np.exp(self.knees)
        t0, t1 = float(weight @ each_t0), float(weight @ each_t1)
        doubt = math.sqrt(float(weight @ (each_t0 / t0 - each_t1 / t1) ** 2))
        least, most = (self.unit_k * math.exp(float(x)) for x in (self.x.min(), self.x.max()))
        return Estimate(self.unit_cost * t0, self.unit_cost * t1 / self.unit_k, least, most, doubt)


def _best_residual(offset: Floats) -> Floats:
    """[n] by how much each round is off, by the knee of the least mean distance."""
    distance = np.abs(offset - np.median(offset, axis=1, keepdims=True))
    return np.asarray(distance[distance.sum(axis=1).argmin()])


def _noise(residual: Floats, fitted: int) -> float:
    """The deviation of the noise, from its median, after so many numbers were fitted."""
    return 1.4826 * float(np.median(residual)) * len(residual) / max(1, len(residual) - fitted) + SMALLEST_NOISE


def _explained(offset: Floats, noise: float) -> tuple[Floats, Floats]:
    """[K] ln(t1), and minus the log-likelihood, apart from a constant."""
    level = np.median(offset, axis=1, keepdims=True)
    for _ in range(5):  # the level of the greatest likelihood, by repeated weighted means
        weight = 1 / (1 + ((offset - level) / noise) ** 2 / TAIL)
        level = (weight * offset).sum(axis=1, keepdims=True) / weight.sum(axis=1, keepdims=True)
    misfits = (TAIL + 1) / 2 * np.log1p(((offset - level) / noise) ** 2 / TAIL).sum(axis=1)
    return level[:, 0], np.asarray(misfits)
