"""Test the paper's Assumption 2 on a sweep of fixed k: is t(k, l), the cost of a unit of loss, convex in k?

Also: how steep is it, and does one k minimise it at every loss l?
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsift.regret.interval import student
from gradsift.regret.reach import Floats


class Shape(NamedTuple):
    """t(k, l) at one loss, for every k whose runs all passed that loss."""

    loss: float
    ks: tuple[int, ...] = ()
    means: tuple[float, ...] = ()  # of t(k, l) over seeds
    bends: tuple[int, ...] = ()  # the k at which the mean is not convex
    sure: tuple[int, ...] = ()  # those of them at which this is significant (95 %); none with a single seed
    steepest: float = 0.0  # the largest absolute slope between neighbouring k
    minimiser: int | None = None  # None if no k passed the loss
    as_good: tuple[int, ...] = ()  # the k not significantly worse than the minimiser (95 %, paired by seed)
    lowest: tuple[float, ...] = ()  # t(k, l) of the lowest seed, for each of ``ks``
    highest: tuple[float, ...] = ()  # and of the highest seed
    open: tuple[int, ...] = ()  # the k whose runs ended above the loss, too early to show that they are worse


def shape(loss: float, ks: Sequence[int], t: Floats, least_t: Floats | None = None) -> Shape:
    """Examine ``t`` [K, S] at one loss; it is NaN if a run did not pass the loss, for which ``least_t`` bounds it."""
    t = np.asarray(t, dtype=np.float64)
    passed = np.isfinite(t).all(axis=1)
    if not passed.any():
        return Shape(loss)
    unfinished = np.asarray(ks)[~passed]
    bound = np.asarray(t if least_t is None else least_t, dtype=np.float64)[~passed]
    kept, t = np.asarray(ks)[passed], t[passed]
    means = t.mean(axis=1)
    slopes = np.diff(t, axis=0) / np.diff(kept)[:, None]  # [K - 1, S]
    turns = np.diff(slopes, axis=0)  # [K - 2, S]: not negative where convex
    errors = student(t.shape[1])
    least = int(means.argmin())

    def as_good(values: Floats) -> NDArray[np.bool_]:
        worse = values - t[least]
        return np.asarray(worse.mean(axis=1) <= errors * np.nan_to_num(standard_error(worse), nan=0.0))

    return Shape(
        loss=loss,
        ks=tuple(kept.tolist()),
        means=tuple(means.tolist()),
        bends=tuple(kept[1:-1][turns.mean(axis=1) < 0].tolist()),
        sure=tuple(kept[1:-1][turns.mean(axis=1) + errors * standard_error(turns) < 0].tolist()),
        steepest=float(np.abs(slopes.mean(axis=1)).max(initial=0.0)),
        minimiser=int(kept[least]),
        as_good=tuple(kept[as_good(t)].tolist()),
        lowest=tuple(t.min(axis=1).tolist()),
        highest=tuple(t.max(axis=1).tolist()),
        open=tuple(unfinished[as_good(bound)].tolist()),
    )


def one_minimiser(shapes: Sequence[Shape], *, or_open: bool = False) -> set[int]:
    """Return the k that may be the minimiser at every loss; ``or_open`` adds those whose runs ended too early to tell.

    If the set is empty even then, the minimiser depends on the loss.
    """
    sets = [set(shape.as_good + (shape.open if or_open else ())) for shape in shapes if shape.minimiser is not None]
    return set.intersection(*sets) if sets else set()


def standard_error(values: Floats) -> Floats:
    """Return the standard error of the mean over seeds, the last axis; NaN with fewer than two seeds."""
    seeds = values.shape[-1]
    if seeds < 2:
        return np.full(values.shape[:-1], np.nan)
    return np.asarray(values.std(axis=-1, ddof=1) / np.sqrt(seeds))
