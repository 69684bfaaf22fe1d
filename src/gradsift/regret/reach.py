"""T(l), the cost until the loss is first down to l, and what follows from it: t(k, l) and the regret."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsift.report.curves import Curve
from gradsift.report.summary import cost_to_reach

Floats = NDArray[np.float64]


def descent(cost: ArrayLike, loss: ArrayLike) -> Curve:
    """The lowest loss so far against the cost; like the losses of the paper's analysis, it never rises."""
    return Curve(np.asarray(cost, dtype=np.float64), np.minimum.accumulate(np.asarray(loss, dtype=np.float64)))


def cost_to(curve: Curve, losses: ArrayLike) -> Floats:
    """[L] T(l) for each loss, interpolated between evaluations; NaN where it is not reached, 0 above the start."""
    reached = [cost_to_reach(curve, float(loss), falling=True) for loss in np.ravel(np.asarray(losses))]
    return np.array([np.nan if cost is None else cost for cost in reached])


def unit_cost(curve: Curve, losses: Sequence[float], half: float) -> Floats:
    """[L] t(k, l): the cost of a unit of loss around each l, as (T(l - half) - T(l + half)) / (2 half)."""
    at = np.asarray(losses, dtype=np.float64)
    return (cost_to(curve, at - half) - cost_to(curve, at + half)) / (2 * half)


def least_unit_cost(curve: Curve, losses: Sequence[float], half: float) -> Floats:
    """[L] a lower bound of t(k, l), from what had been spent where the run ended before the loss was passed."""
    at, end = np.asarray(losses, dtype=np.float64), float(curve.x[-1])
    low, high = (np.nan_to_num(cost_to(curve, edge), nan=end) for edge in (at - half, at + half))
    spent: Floats = (low - high) / (2 * half)
    return spent


def regret(curve: Curve, best: Curve) -> Floats:
    """R(M) of Definition 4 after each evaluation of ``curve``; NaN where ``best``, at the best k, ended before.

    R(M) is the sum over rounds of tau_m(k_m), which is what was spent, minus the integral of t(k*, l) from L_M to L_0,
    which is what a run at k* spends until its loss is L_M. Both curves are as ``descent`` makes them.
    """
    return curve.x - cost_to(best, curve.y)
