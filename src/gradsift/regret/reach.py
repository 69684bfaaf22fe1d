"""Compute T(l), the cost until the loss first reaches l, t(k, l), the cost of a unit of loss at l, and the regret."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsift.report.curves import Curve
from gradsift.report.summary import cost_to_reach

Floats = NDArray[np.float64]


def descent(cost: ArrayLike, loss: ArrayLike) -> Curve:
    """Return the lowest loss so far against the cost, which never rises, as the paper's analysis assumes."""
    return Curve(np.asarray(cost, dtype=np.float64), np.minimum.accumulate(np.asarray(loss, dtype=np.float64)))


def cost_to(curve: Curve, losses: ArrayLike) -> Floats:
    """Return T(l) [L] of each loss, interpolated between evaluations; NaN if not reached, 0 if the run starts below."""
    costs = [cost_to_reach(curve, float(loss), falling=True) for loss in np.ravel(np.asarray(losses))]
    return np.array([np.nan if cost is None else cost for cost in costs])


def unit_cost(curve: Curve, losses: Sequence[float], half: float, unreached: float = np.nan) -> Floats:
    """Return t(k, l) [L], the cost of a unit of loss around each l: (T(l - half) - T(l + half)) / (2 half).

    ``unreached`` replaces T of a loss that the run did not reach.
    """
    low, high = (np.nan_to_num(cost_to(curve, np.asarray(losses) + d), nan=unreached) for d in (-half, half))
    return np.asarray((low - high) / (2 * half))


def least_unit_cost(curve: Curve, losses: Sequence[float], half: float) -> Floats:
    """Return a lower bound of t(k, l) [L], for which a loss not reached counts as reached when the run ended."""
    return unit_cost(curve, losses, half, unreached=float(curve.x[-1]))


def regret(curve: Curve, best: Curve) -> Floats:
    """Return R(M) of Definition 4 after each evaluation of ``curve``; NaN if ``best``, a run at k*, never had the loss.

    R(M) is the sum over rounds of tau_m(k_m), which is the cost spent, minus the integral of t(k*, l) from L_M to L_0,
    which is the cost until a run at k* reaches the loss L_M. Both curves are those of ``descent``.
    """
    return curve.x - cost_to(best, curve.y)
