"""Average the curves of several seeds, which were evaluated at different costs, to a mean with a band.

All seeds of a method are interpolated linearly on one grid, which ends where the shortest seed ends: nothing is
extrapolated, and every mean is over the same seeds. The tail of a longer seed is the part of it beyond the grid.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gradsift.report.runs import Floats, Run

POINTS = 400  # at most, in a curve; a figure cannot show more


class Curve(NamedTuple):
    """y over a strictly increasing x."""

    x: Floats
    y: Floats


class Band(NamedTuple):
    """Mean, minimum and maximum over the seeds as far as all of them go, and the tails of the longer seeds."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    tails: tuple[Curve, ...]
    seeds: int
    rounds_per_point: int = 1


def curve(x: Floats, y: Floats) -> Curve:
    """Drop the points without a value; of several points at one x (rounds without cost), keep the last."""
    valid = np.isfinite(y)
    x, y = x[valid], y[valid]
    last = np.append(np.diff(x) > 0, True)[: len(x)]
    return Curve(x[last], y[last])


def evaluations(run: Run, what: str, against: str) -> Curve:
    """Return ``what`` ("loss" or "accuracy") of a run at its evaluations, against "cost" or "rounds"."""
    x = run.evaluated_cost if against == "cost" else run.evaluated.astype(np.float64)
    return curve(x, run.loss if what == "loss" else run.accuracy)


def value_at(curve: Curve, x: float) -> float | None:
    """Interpolate the curve linearly at x; returns None if x is outside the curve."""
    inside = len(curve.x) > 0 and curve.x[0] <= x <= curve.x[-1]
    return float(np.interp(x, *curve)) if inside else None


def band(curves: Sequence[Curve], points: int = POINTS) -> Band | None:
    """Average the curves of one method's seeds; returns None if no curve has a point.

    A seed that has only its first point is left out if another seed has more.
    """
    used = [c for c in curves if len(c.x) > 1] or [c for c in curves if len(c.x)]
    if not used:
        return None
    start, end = max(c.x[0] for c in used), min(c.x[-1] for c in used)
    grid = np.unique(np.concatenate([c.x for c in used]))
    grid = grid[(grid >= start) & (grid <= end)]
    if len(grid) > points:
        grid = np.linspace(start, end, points)
    values = np.stack([np.interp(grid, *c) for c in used])
    tails = used  # if the seeds have no x in common
    if start <= end:
        tails = [
            Curve(np.append(end, c.x[c.x > end]), np.append(np.interp(end, *c), c.y[c.x > end]))
            for c in used
            if c.x[-1] > end
        ]
    thin = tuple(thinned(tail, points) for tail in tails)
    return Band(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0), thin, len(used))


def thinned(curve: Curve, points: int = POINTS) -> Curve:
    """Return the curve itself, or interpolate it at ``points`` points if it has more."""
    if len(curve.x) <= points:
        return curve
    grid = np.linspace(curve.x[0], curve.x[-1], points)
    return Curve(grid, np.interp(grid, *curve))


def over_rounds(values: Sequence[Floats], points: int = 600) -> Band | None:
    """Average one value per round over seeds, for the rounds that all seeds have; returns None without any round.

    If there are more rounds than ``points``, each point stands for equally many consecutive rounds, the last
    perhaps for fewer. Its mean is over these rounds; low and high are their extremes, so that no outlier disappears.
    """
    rounds = min(map(len, values), default=0)
    if rounds == 0:
        return None
    table = np.stack([v[:rounds] for v in values])  # [seeds, M]
    per_point = -(-rounds // points)
    first = np.arange(0, rounds, per_point)
    size = np.diff(np.append(first, rounds))
    mean = np.add.reduceat(table.mean(axis=0), first) / size
    low = np.minimum.reduceat(table.min(axis=0), first)
    high = np.maximum.reduceat(table.max(axis=0), first)
    return Band(first + (size + 1) / 2, mean, low, high, (), len(values), per_point)
