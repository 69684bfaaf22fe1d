"""The cost of a round at any k, learned from rounds of which only k and the cost are seen, such as measured seconds.

A round is taken to cost t0 + t1 k, times noise. All that matters for k is the knee t0 / t1, the k at which sending
costs as much as the rest. Each knee of a grid is weighed by how well it explains the last rounds, by the likelihood of
Student's t in the logarithm of the cost: a straggler, however late, counts for little. The knee is the weighted mean,
and its doubt the weighted deviation. So t0 and t1 are never negative. If the last rounds are explained far better apart
from those before them, the link has changed, and the older rounds are forgotten.

The state is the list of these rounds, all in JSON values. Observations may be late, in any order, or missing.
"""

import math
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

WINDOW = 48  # rounds that are remembered
RECENT = 8  # rounds that must agree on a change: more than half of them, so 3 slow rounds are not one
CHANGED = 7.0  # a change must make the rounds e^7 times as likely
LEAST = 4  # rounds without which nothing can be told
REACH = 4.0  # k up to this factor beyond those that were tried is taken to be known
KNEES, BEYOND = 81, 16.0  # the grid of knees: how many, and by which factor it exceeds the k that were tried
TAIL = 4.0  # degrees of freedom of Student's t
SMALLEST_NOISE = 0.01  # relative to the cost
CLIP = 1000.0  # a cost more than this factor from the median counts as one at this factor
VARY_LEAST, VARY_MOST = 1.1, 3.0  # factors

Floats = NDArray[np.float64]


class SeenCost(TypedDict):
    """What is remembered: [k, cost] of the last rounds, the oldest first."""

    seen: list[list[float]]


class Estimate(NamedTuple):
    """A round at k costs about t0 + t1 k, as far as k was tried."""

    t0: float
    t1: float
    least_k: float  # of the rounds that are remembered
    most_k: float
    doubt: float  # the standard deviation of ln(t0 / t1); that of ln(k*), for k* = sqrt(c t0 / t1), is half of it

    def price(self, k: float) -> float:
        """The cost of a round at k, made such that no minimum of price(k) (1 + c / k) is far from the k tried.

        Below a quarter of the least k it is no lower, and above 4 times the largest k it grows like k^2.
        """
        far = max(k / (REACH * self.most_k), 1.0)
        known = self.t0 + self.t1 * min(max(k, self.least_k / REACH), REACH * self.most_k)
        return known * far * far if known else 0.0


def start() -> SeenCost:
    """Nothing is known."""
    return SeenCost(seen=[])


def learn(state: SeenCost, k: float, cost: float) -> SeenCost:
    """The state after a round at ``k`` that cost ``cost``: finite, k > 0, cost >= 0."""
    seen = [*state["seen"], [float(k), float(cost)]][-WINDOW:]
    old, new = seen[:-RECENT], seen[-RECENT:]
    if len(old) >= RECENT:
        noise = max(_Fit(old).noise, _Fit(new).noise)
        apart = _Fit(old, noise).misfit + _Fit(new, noise).misfit
        if _Fit(seen, noise).misfit - apart > CHANGED:
            seen = new
    return SeenCost(seen=seen)


def estimate(state: SeenCost) -> Estimate | None:
    """t0 and t1; None while there are fewer than 4 rounds, or all have almost the same k."""
    seen = state["seen"]
    if len(seen) < LEAST:
        return None
    ks = [k for k, _ in seen]
    return None if max(ks) < 1.05 * min(ks) else _Fit(seen).estimate()


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

    def __init__(self, seen: list[list[float]], noise: float | None = None) -> None:
        k, cost = np.array(seen, dtype=np.float64).T
        paid = np.sort(cost[cost > 0])
        self.unit_k, self.unit_cost = float(np.sort(k)[len(k) // 2]), float(paid[len(paid) // 2]) if len(paid) else 0.0
        self.x = np.log(k / self.unit_k)
        with np.errstate(over="ignore"):
            y = np.log(np.clip(cost / (self.unit_cost or 1.0), 1 / CLIP, CLIP))
        beyond = math.log(BEYOND)
        self.knees = np.linspace(self.x.min() - beyond, self.x.max() + beyond, KNEES)
        offset = y - np.logaddexp(self.knees[:, None], self.x)  # [K, n] ln(t1) by each round, if it had no noise
        level = np.median(offset, axis=1, keepdims=True)  # [K, 1]
        if noise is None:
            distance = np.abs(offset - level)
            median = float(np.median(distance[distance.sum(axis=1).argmin()]))
            noise = 1.4826 * median * len(k) / max(1, len(k) - 2) + SMALLEST_NOISE
        for _ in range(5):  # the level of the greatest likelihood, by repeated weighted means
            weight = 1 / (1 + ((offset - level) / noise) ** 2 / TAIL)
            level = (weight * offset).sum(axis=1, keepdims=True) / weight.sum(axis=1, keepdims=True)
        self.noise, self.level = noise, level[:, 0]
        self.misfits: Floats = (TAIL + 1) / 2 * np.log1p(((offset - level) / noise) ** 2 / TAIL).sum(axis=1)
        self.misfit = float(self.misfits.min())  # minus the log-likelihood, apart from a constant

    def estimate(self) -> Estimate:
        """The estimate from the mean over the knees, each weighed by its likelihood."""
        weight = np.exp(self.misfit - self.misfits)
        weight /= weight.sum()
        knee = float(weight @ self.knees)
        doubt = math.sqrt(float(weight @ (self.knees - knee) ** 2))
        level = float(np.interp(knee, self.knees, self.level))
        t0, t1 = self.unit_cost * math.exp(level + knee), self.unit_cost * math.exp(level) / self.unit_k
        least, most = (self.unit_k * math.exp(float(x)) for x in (self.x.min(), self.x.max()))
        return Estimate(t0, t1, least, most, doubt)
