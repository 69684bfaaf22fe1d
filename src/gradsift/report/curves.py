"""Curves averaged over seeds, whose points are at different costs.

Every seed is interpolated linearly on one grid, which ends where the shortest seed ends: nothing is extrapolated, and
the mean is over the same seeds everywhere. The rest of each longer seed is kept as its tail.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gradsift.report.runs import Floats, Run

POINTS = 400  # of a curve; more cannot be seen in a figure


class Curve(NamedTuple):
    """y over an x that strictly increases."""

    x: Floats
    y: Floats


class Band(NamedTuple):
    """Mean, lowest and highest over the seeds, as far as all of them go, and the tails of the longer ones."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    tails: tuple[Curve, ...]
    seeds: int


def curve(x: Floats, y: Floats) -> Curve:
    """The points that have a value; of several at the same x, after rounds without cost, the last."""
    there = np.isfinite(y)
    x, y = x[there], y[there]
    last = np.append(np.diff(x) > 0, True)[: len(x)]
    return Curve(x[last], y[last])


def evaluations(run: Run, what: str, against: str) -> Curve:
    """``what`` ("loss" or "accuracy") of the evaluations against "cost" or "rounds"."""
    x = run.evaluated_cost if against == "cost" else run.evaluated.astype(np.float64)
    return curve(x, run.loss if what == "loss" else run.accuracy)


def per_round(run: Run, values: Floats, first: float | None = None) -> Curve:
    """Values of each round; ``first`` is the one before round 1."""
    x = np.arange(1, run.rounds + 1, dtype=np.float64)
    if first is None:
        return curve(x, values)
    return curve(np.append(0.0, x), np.append(first, values))


def at(given: Curve, x: float) -> float | None:
    """The value at x by linear interpolation; None outside the curve."""
    if len(given.x) == 0 or not given.x[0] <= x <= given.x[-1]:
        return None
    return float(np.interp(x, given.x, given.y))


def band(curves: Sequence[Curve], points: int = POINTS) -> Band | None:
    """The curves of one method's seeds as one band. None: there is nothing to draw.

    A seed with no more than its first point says nothing about the course of a run, and is left out.
    """
    longest = max((len(c.x) for c in curves), default=0)
    used = [c for c in curves if len(c.x) >= min(2, longest) and len(c.x)]
    if not used:
        return None
    start, end = max(c.x[0] for c in used), min(c.x[-1] for c in used)
    grid = np.unique(np.concatenate([c.x for c in used]))
    grid = grid[(grid >= start) & (grid <= end)]
    if len(grid) > points:
        grid = np.linspace(start, end, points)
    tails = [Curve(np.append(end, c.x[c.x > end]), np.append(np.interp(end, *c), c.y[c.x > end])) for c in used]
    if start > end:  # seeds that have no x in common
        tails = used
    values = np.stack([np.interp(grid, *c) for c in used])
    return Band(
        grid,
        values.mean(axis=0),
        values.min(axis=0),
        values.max(axis=0),
        tuple(thinned(tail, points) for tail in tails if len(tail.x) > 1 or start > end),
        len(used),
    )


def thinned(given: Curve, points: int = POINTS) -> Curve:
    """A curve with no more than so many points."""
    if len(given.x) <= points:
        return given
    grid = np.linspace(given.x[0], given.x[-1], points)
    return Curve(grid, np.interp(grid, *given))


def over_rounds(values: Sequence[Floats], points: int = 600) -> tuple[Band, int] | None:
    """Values of each round of each seed, as a band, and how many rounds make one point of it.

    A long run is cut into stretches of equally many rounds (the last may be shorter): the mean is that of the stretch,
    lowest and highest are over all its rounds, so that no excursion is lost. Only the rounds that all seeds have.
    """
    shortest = min((len(v) for v in values), default=0)
    if shortest == 0:
        return None
    table = np.stack([v[:shortest] for v in values])  # [seeds, M]
    each = -(-shortest // points)
    first = np.arange(0, shortest, each)
    size = np.diff(np.append(first, shortest))
    mean = np.add.reduceat(table.mean(axis=0), first) / size
    low = np.minimum.reduceat(table.min(axis=0), first)
    high = np.maximum.reduceat(table.max(axis=0), first)
    return Band(first + (size + 1) / 2, mean, low, high, (), len(values)), each
