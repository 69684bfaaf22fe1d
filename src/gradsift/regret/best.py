"""Find the best fixed k in hindsight, by the mean cost over seeds, and the k to try next."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gradsift.errors import GradsiftError
from gradsift.regret.reach import Floats


class Best(NamedTuple):
    """The fixed k with the lowest mean cost to reach a loss."""

    k: int
    costs: tuple[float, ...]  # of each seed
    at_edge: bool  # whether it is the smallest or the largest k that reached the loss: the true best may be beyond it
    open: tuple[int, ...] = ()  # the k whose runs ended above the loss at a lower cost, so that they may be better


def grid(low: float, high: float, points: int) -> list[int]:
    """Return ``points`` integers, evenly spaced on a logarithmic scale, with both ends; fewer if some coincide."""
    first, last = math.ceil(low), math.floor(high)
    if points < 2 or not 1 <= first < last:
        raise GradsiftError(f"cannot make a grid of {points} points in [{low!r}, {high!r}]")
    return sorted({round(k) for k in np.geomspace(first, last, points)})


def best(ks: Sequence[int], costs: Floats, spent: Floats | None = None) -> Best | None:
    """Return the k with the lowest mean of ``costs`` [K, S]; a k with a NaN (a run did not reach the loss) is left out.

    ``spent`` [K, S] is the cost at which each run ended. Returns None if no k is left.
    """
    costs = np.asarray(costs, dtype=np.float64)
    means = costs.mean(axis=1)
    reached = np.flatnonzero(np.isfinite(means))
    if len(reached) == 0:
        return None
    i = int(reached[means[reached].argmin()])
    ends = np.full(len(means), np.inf) if spent is None else np.asarray(spent).mean(axis=1)
    unfinished = tuple(k for k, mean, end in zip(ks, means, ends, strict=True) if np.isnan(mean) and end < means[i])
    return Best(ks[i], tuple(costs[i].tolist()), i in (reached[0], reached[-1]), unfinished)


def refined(ks: Sequence[int], best_ks: Iterable[int], lowest: float = 1) -> list[int]:
    """Return ``ks`` and, for each k in ``best_ks``, the geometric means of it and its neighbours.

    If the smallest k is among the best, the best may lie below it: then two smaller ones follow at the same distance,
    but none below ``lowest``.
    """
    ordered = sorted(set(ks))
    places = [ordered.index(k) for k in best_ks]
    between = {round(math.sqrt(ordered[i] * other)) for i in places for other in ordered[max(0, i - 1) : i + 2]}
    if 0 in places and len(ordered) > 1:
        ratio = ordered[0] / ordered[1]
        between |= {k for step in (1, 2) if (k := round(ordered[0] * ratio**step)) >= lowest}
    return sorted(between.union(ks))
