"""Where a controller's cost went, by counting: the rounds with a k far from the best, and the signs that it had."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsift.regret.reach import Floats

NEAR = 2.0  # a k within this factor of the best is near it


class Spending(NamedTuple):
    """Numbers of rounds, and the part of the whole cost that went into them."""

    rounds: int
    cost: float
    large: int  # all rounds with a k above NEAR times the best
    large_cost: float
    small: int  # all rounds with a k below the best over NEAR
    small_cost: float
    no_sign: int  # rounds without a usable sign
    no_sign_cost: float
    far: int  # rounds with a sign at a k that is not near the best
    away: int  # those of them whose sign moved k away from the best
    away_cost: float


def spending(k: Floats, round_cost: Floats, sign: NDArray[np.int64], best_k: float) -> Spending:
    """Count the rounds of a run, up to where it reached its target. ``sign``: -1 or 1, anything else is none.

    A sign compares k with a k' below it, not with the best: one that moves k away from the best can still be the right
    answer to what was asked, where k' is on the other side of it. Near the best there is no telling.
    """
    total = float(round_cost.sum())
    large, small = k > NEAR * best_k, k < best_k / NEAR
    far = large | small
    none = ~np.isin(sign, (-1, 1))
    signed = far & ~none
    away = signed & (sign != np.where(large, 1, -1))

    def part(which: NDArray[np.bool_]) -> tuple[int, float]:
        return int(which.sum()), float(round_cost[which].sum()) / total if total else 0.0

    return Spending(len(k), total, *part(large), *part(small), *part(none), int(signed.sum()), *part(away))
