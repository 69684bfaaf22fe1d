"""Compute means over seeds with 95 % confidence intervals, paired by seed if two methods are compared."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

# Student's t at 97.5 % for 1, 2, ... degrees of freedom; the normal value for more than these.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
NORMAL = 1.960


class Interval(NamedTuple):
    """A mean and its 95 % confidence interval; the bounds are None with a single seed."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def student(seeds: int) -> float:
    """Return half the width of the 95 % interval of a mean over this many seeds, in standard errors."""
    return T[seeds - 2] if 2 <= seeds <= len(T) + 1 else NORMAL


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of approximately normal values, one per seed, with its interval."""
    mean, seeds = fmean(values), len(values)
    if seeds < 2:
        return Interval(mean, None, None, seeds)
    half = student(seeds) * stdev(values) / math.sqrt(seeds)
    return Interval(mean, mean - half, mean + half, seeds)


def ratio(one: Sequence[float], other: Sequence[float]) -> Interval:
    """Return the geometric mean of the ratios one / other, paired by seed, so that a seed's effect on both cancels."""
    logs = interval([math.log(a / b) for a, b in zip(one, other, strict=True)])
    low, high = (None if bound is None else math.exp(bound) for bound in (logs.low, logs.high))
    return Interval(math.exp(logs.mean), low, high, logs.seeds)
