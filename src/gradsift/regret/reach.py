"""T(l): what it cost to bring the loss down to l for the first time, on the line between two evaluations."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsift.report.curves import Curve
from gradsift.report.summary import cost_to_reach

Floats = NDArray[np.float64]


def descent(cost: ArrayLike, loss: ArrayLike) -> Curve:
    """The lowest loss so far against the cost: a curve that never rises, as the paper's losses do not."""
    return Curve(np.asarray(cost, dtype=np.float64), np.minimum.accumulate(np.asarray(loss, dtype=np.float64)))


def cost_to(curve: Curve, losses: ArrayLike) -> Floats:
    """[L] T(l) for each loss; NaN where it is not reached. A loss above the start costs nothing."""
    reached = [cost_to_reach(curve, float(loss), falling=True) for loss in np.ravel(np.asarray(losses))]
    return np.array([np.nan if cost is None else cost for cost in reached])


def unit_cost(curve: Curve, losses: Sequence[float], half: float) -> Floats:
    """[L] t(k, l): the cost of a unit of loss around each l, as (T(l - half) - T(l + half)) / (2 half)."""
    at = np.asarray(losses, dtype=np.float64)
    return (cost_to(curve, at - half) - cost_to(curve, at + half)) / (2 * half)


def least_unit_cost(curve: Curve, losses: Sequence[float], half: float) -> Floats:
    """[L] what t(k, l) is at least: where the run ended on the way, what it had spent on it until then."""
    at, end = np.asarray(losses, dtype=np.float64), float(curve.x[-1])
    low, high = (np.nan_to_num(cost_to(curve, edge), nan=end) for edge in (at - half, at + half))
    spent: Floats = (low - high) / (2 * half)
    return spent
