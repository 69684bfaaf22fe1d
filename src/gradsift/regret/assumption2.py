"""A test of Assumption 2: is t(k, l) convex in k, how steep is it, and has it the same minimiser at every loss?"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsift.regret.interval import student
from gradsift.regret.reach import Floats


class Shape(NamedTuple):
    """t(k, l) at one loss, for the k with which every seed passed that loss."""

    loss: float
    ks: tuple[int, ...]
    means: tuple[float, ...]  # t(k, l), over seeds
    bends: tuple[int, ...]  # the k at which it is not convex
    sure: tuple[int, ...]  # those of them that are significant over the seeds, at 95 %; none with a single seed
    steepest: float  # the largest slope between neighbours
    minimiser: int | None  # None: no k passed that loss
    as_good: tuple[int, ...]  # the k that are not significantly worse (95 %, paired by seed); with one seed itself
    lowest: tuple[float, ...]  # t(k, l) of the seed where it is least
    highest: tuple[float, ...]
    open: tuple[int, ...] = ()  # k whose runs ended before that loss, without having spent enough to be worse


def shape(loss: float, ks: Sequence[int], t: Floats, least_t: Floats | None = None) -> Shape:
    """``t`` [K, S] at one loss; NaN where a seed did not pass it. ``least_t`` [K, S] is a lower bound of t there."""
    t = np.asarray(t, dtype=np.float64)
    whole = np.isfinite(t).all(axis=1)
    cut_off = np.asarray(ks)[~whole]
    at_least = np.asarray(t if least_t is None else least_t, dtype=np.float64)[~whole]
    kept, t = np.asarray(ks)[whole], t[whole]
    if len(kept) == 0:
        return Shape(loss, (), (), (), (), 0.0, None, (), (), ())
    slopes = np.diff(t, axis=0) / np.diff(kept)[:, None]  # [K - 1, S]
    turns = np.diff(slopes, axis=0)  # [K - 2, S]: not negative where convex
    inner = kept[1:-1]
    bends = turns.mean(axis=1) < 0
    errors = student(t.shape[1])
    sure = turns.mean(axis=1) + errors * standard_error(turns) < 0
    least = int(t.mean(axis=1).argmin())

    def as_good(values: Floats) -> NDArray[np.bool_]:
        worse = values - t[least]
        same: NDArray[np.bool_] = worse.mean(axis=1) <= errors * np.nan_to_num(standard_error(worse), nan=0.0)
        return same

    return Shape(
        loss,
        tuple(kept.tolist()),
        tuple(t.mean(axis=1).tolist()),
        tuple(inner[bends].tolist()),
        tuple(inner[sure].tolist()),
        float(np.abs(slopes.mean(axis=1)).max(initial=0.0)),
        int(kept[least]),
        tuple(kept[as_good(t)].tolist()),
        tuple(t.min(axis=1).tolist()),
        tuple(t.max(axis=1).tolist()),
        tuple(cut_off[as_good(at_least)].tolist()),
    )


def one_minimiser(shapes: Sequence[Shape], *, or_open: bool = False) -> set[int]:
    """The k that may be the minimiser at every loss, with ``or_open`` also those that ended before some of them.

    If there is none even then, the minimiser moves with the loss.
    """
    sets = [set(one.as_good + (one.open if or_open else ())) for one in shapes if one.minimiser is not None]
    return set.intersection(*sets) if sets else set()


def standard_error(values: Floats) -> Floats:
    """Over the seeds, the last axis; NaN with fewer than two of them."""
    count = values.shape[-1]
    if count < 2:
        return np.full(values.shape[:-1], np.nan)
    error: Floats = values.std(axis=-1, ddof=1) / np.sqrt(count)
    return error
