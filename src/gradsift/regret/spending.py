"""Split the cost of a sign-based controller: rounds with k far from the best k, rounds with a missing or wrong sign.

The sign is that of the derivative of the cost in k, which the controller estimates by comparing k with its probe.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsift.regret.reach import Floats

NEAR = 2.0  # a k within this factor of the best k is near it
APART = 0.05  # two k whose costs differ by less than this in the logarithm count as equal


class Spending(NamedTuple):
    """Numbers of rounds of each kind, and their share of the total cost."""

    rounds: int
    cost: float
    large: int  # rounds with a k above NEAR times the best
    large_cost: float
    small: int  # rounds with a k below the best over NEAR
    small_cost: float
    no_sign: int  # rounds without a usable sign
    no_sign_cost: float
    judged: int  # rounds with a sign for which the sweep shows the right one
    wrong: int  # those of them whose sign is not the right one
    wrong_cost: float


def right_signs(k: Floats, probe: Floats, ks: Sequence[int], costs: Floats) -> NDArray[np.int64]:
    """Return the right sign of each round [M]: 1 if k costs more than ``probe``, -1 if less, 0 if not known.

    ``costs`` [K] is the cost of each of ``ks`` to the target. Between them the cost is interpolated linearly, in
    logarithms. The sign is not known for a k outside of ``ks``, nor if the two costs differ by less than APART.
    """
    logs, values = np.log(np.asarray(ks, dtype=np.float64)), np.log(costs)
    finite = np.isfinite(values)

    def expected(k: Floats) -> Floats:
        return np.interp(np.log(k), logs[finite], values[finite], left=np.nan, right=np.nan)

    difference = np.nan_to_num(expected(k) - expected(probe), nan=0.0)
    return np.where(np.abs(difference) > APART, np.sign(difference), 0).astype(np.int64)


def spending(
    k: Floats, round_cost: Floats, sign: NDArray[np.int64], right: NDArray[np.int64], best_k: float
) -> Spending:
    """Count the rounds of a run until it reached its target; a sign other than -1 and 1 counts as missing."""
    total = float(round_cost.sum())
    missing = ~np.isin(sign, (-1, 1))
    judged = ~missing & np.isin(right, (-1, 1))

    def part(rounds: NDArray[np.bool_]) -> tuple[int, float]:
        return int(rounds.sum()), float(round_cost[rounds].sum()) / total if total else 0.0

    large, small, wrong = part(k > NEAR * best_k), part(k < best_k / NEAR), part(judged & (sign != right))
    return Spending(len(k), total, *large, *small, *part(missing), int(judged.sum()), *wrong)
