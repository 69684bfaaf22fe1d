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
    at_edge: bool  # no smaller, or no larger, k got there: the true best may lie outside
    open: tuple[int, ...] = ()  # k that ended before the loss, having spent less than this one: they may be better


def grid(low: float, high: float, points: int) -> list[int]:
    """So many whole k, or fewer where they coincide, evenly spaced in their logarithm, both ends included."""
    first, last = math.ceil(low), math.floor(high)
    if points < 2 or not 1 <= first < last:
        raise GradsiftError(f"no grid of {points} points in [{low!r}, {high!r}]")
    raw = np.exp(np.linspace(math.log(first), math.log(last), points))
    return sorted({round(k) for k in raw})


def best(ks: Sequence[int], costs: Floats, spent: Floats | None = None) -> Best | None:
    """``costs`` [K, S], NaN where a seed did not get there; only k that all seeds reach it with can be the best.

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
    """``ks`` and, around each of those that were ``found`` best, the geometric middles to its neighbours."""
    more = set(ks)
    ordered = sorted(more)
    for k in found:
        i = ordered.index(k)
        for other in ordered[max(0, i - 1) : i + 2]:
            more.add(round(math.sqrt(k * other)))
    return sorted(more)
