"""Means over seeds, paired where two methods are compared, with their confidence intervals."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

# Student's t at 97.5 %, by degrees of freedom from 1; the normal value for more than these.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
NORMAL = 1.960


class Interval(NamedTuple):
    """A mean and its 95 % interval, which a single seed does not have."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def student(seeds: int) -> float:
    """Half the width of a 95 % interval of a mean over so many seeds, in standard errors."""
    return T[seeds - 2] if 2 <= seeds <= len(T) + 1 else NORMAL


def interval(values: Sequence[float]) -> Interval:
    """The mean of values that are about normally distributed."""
    if len(values) < 2:
        return Interval(fmean(values), None, None, len(values))
    wide = student(len(values)) * stdev(values) / math.sqrt(len(values))
    return Interval(fmean(values), fmean(values) - wide, fmean(values) + wide, len(values))


def ratio(one: Sequence[float], other: Sequence[float]) -> Interval:
    """The geometric mean of one over the other, paired by seed, so that what a seed does to both cancels."""
    logs = interval([math.log(a / b) for a, b in zip(one, other, strict=True)])
    low, high = (None if edge is None else math.exp(edge) for edge in (logs.low, logs.high))
    return Interval(math.exp(logs.mean), low, high, logs.seeds)
