"""The best fixed k in hindsight, chosen on the mean over seeds, and where to look for a better one."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gradsift.errors import GradsiftError
from gradsift.regret.reach import Floats


class Best(NamedTuple):
    """The fixed k whose mean cost to a loss is least."""

    k: int
    costs: tuple[float, ...]  # of each seed
    at_edge: bool  # no smaller, or no larger, k reached the loss: the true best may be outside
    open: tuple[int, ...] = ()  # k whose runs ended before the loss at a lower cost: they may be better


def grid(low: float, high: float, points: int) -> list[int]:
    """``points`` integers evenly spaced on a logarithmic scale, both ends included; fewer where they coincide."""
    first, last = math.ceil(low), math.floor(high)
    if points < 2 or not 1 <= first < last:
        raise GradsiftError(f"no grid of {points} points in [{low!r}, {high!r}]")
    raw = np.exp(np.linspace(math.log(first), math.log(last), points))
    return sorted({round(k) for k in raw})


def best(ks: Sequence[int], costs: Floats, spent: Floats | None = None) -> Best | None:
    """The k of the lowest mean cost; ``costs`` [K, S] is NaN where a seed did not reach the loss, which rules k out.

    ``spent`` [K, S] is what each run had spent when it ended.
    """
    costs = np.asarray(costs, dtype=np.float64)
    means = costs.mean(axis=1)
    there = np.flatnonzero(np.isfinite(means))
    if len(there) == 0:
        return None
    i = int(there[means[there].argmin()])
    ends = np.full(len(means), np.inf) if spent is None else np.asarray(spent).mean(axis=1)
    cut = tuple(k for k, mean, end in zip(ks, means, ends, strict=True) if np.isnan(mean) and end < means[i])
    return Best(ks[i], tuple(costs[i].tolist()), i in (there[0], there[-1]), cut)


def refined(ks: Sequence[int], found: Iterable[int]) -> list[int]:
    """``ks`` and, for each k that was ``found`` best, the geometric means of it and its neighbours."""
    more = set(ks)
    ordered = sorted(more)
    for k in found:
        i = ordered.index(k)
        for other in ordered[max(0, i - 1) : i + 2]:
            more.add(round(math.sqrt(k * other)))
    return sorted(more)
