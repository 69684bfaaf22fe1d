"""Where a controller's cost went: into rounds with k far from the best, and with estimated signs missing or wrong."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsift.regret.reach import Floats

NEAR = 2.0  # a k within this factor of the best is near it
APART = 0.05  # of the logarithm of the cost: two k with a smaller difference count as equal


class Spending(NamedTuple):
    """Numbers of rounds, and the share of the whole cost that they had."""

    rounds: int
    cost: float
    large: int  # all rounds with a k above NEAR times the best
    large_cost: float
    small: int  # all rounds with a k below the best over NEAR
    small_cost: float
    no_sign: int  # rounds without a usable sign
    no_sign_cost: float
    judged: int  # rounds with a sign, where the sweep says what it should have been
    wrong: int  # those of them with the other sign
    wrong_cost: float


def right_signs(k: Floats, probe: Floats, ks: Sequence[int], costs: Floats) -> NDArray[np.int64]:
    """[M] the right sign where k was compared with ``probe``: 1 if k costs more, -1 if less, 0 if it is not known.

    ``costs`` [K] is what each of ``ks`` needs to the target, on a line between them in logarithms. It says nothing
    outside of them, nor where the two are less than APART from each other.
    """
    logs, values = np.log(np.asarray(ks, dtype=np.float64)), np.log(costs)
    known = np.isfinite(values)

    def expected(at: Floats) -> Floats:
        return np.interp(np.log(at), logs[known], values[known], left=np.nan, right=np.nan)

    apart = np.nan_to_num(expected(k) - expected(probe), nan=0.0)
    return np.where(np.abs(apart) > APART, np.sign(apart), 0).astype(np.int64)


def spending(
    k: Floats, round_cost: Floats, sign: NDArray[np.int64], right: NDArray[np.int64], best_k: float
) -> Spending:
    """Count the rounds of a run until it reached its target; a sign other than -1 and 1 counts as missing."""
    total = float(round_cost.sum())
    large, small = k > NEAR * best_k, k < best_k / NEAR
    none = ~np.isin(sign, (-1, 1))
    judged = ~none & np.isin(right, (-1, 1))
    wrong = judged & (sign != right)

    def part(which: NDArray[np.bool_]) -> tuple[int, float]:
        return int(which.sum()), float(round_cost[which].sum()) / total if total else 0.0

    return Spending(len(k), total, *part(large), *part(small), *part(none), int(judged.sum()), *part(wrong))
