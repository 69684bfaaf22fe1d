"""Where a controller's cost went, by counting: the rounds before it found k, and those whose sign did not help it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsift.regret.reach import Floats

NEAR = 2.0  # a k within this factor of the best counts as found


class Spending(NamedTuple):
    """Numbers of rounds, and the part of the whole cost that went into them."""

    rounds: int
    cost: float
    search: int  # rounds before k first came within a factor of NEAR of the best
    search_cost: float
    large: int  # all rounds with a k above NEAR times the best
    large_cost: float
    small: int  # all rounds with a k below the best over NEAR
    small_cost: float
    no_sign: int  # rounds without a usable sign
    no_sign_cost: float
    usable: int  # rounds with a sign at a k that is not near the best, where the right sign is known
    wrong: int  # those of them that pointed away from the best
    wrong_cost: float


def spending(k: Floats, round_cost: Floats, sign: NDArray[np.int64], best_k: float) -> Spending:
    """Count the rounds of a run, up to where it reached its target. ``sign``: -1 or 1, anything else is none.

    The right sign is that of k - best_k: the cost rises with k above the best, and falls below it. For k near the best
    it is not counted, since the sweep does not tell such k apart.
    """
    total = float(round_cost.sum())
    large, small = k > NEAR * best_k, k < best_k / NEAR
    far = large | small
    found = np.flatnonzero(~far)
    search = np.arange(len(k)) < (found[0] if len(found) else len(k))
    none = ~np.isin(sign, (-1, 1))
    usable = far & ~none
    wrong = usable & (sign != np.where(large, 1, -1))

    def part(which: NDArray[np.bool_]) -> tuple[int, float]:
        return int(which.sum()), float(round_cost[which].sum()) / total if total else 0.0

    return Spending(
        len(k), total, *part(search), *part(large), *part(small), *part(none), int(usable.sum()), *part(wrong)
    )
