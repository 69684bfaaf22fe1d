"""The cost that the bandits minimise: the cost of a round per unit of loss decrease, scaled to [0, 1].

The cost of the round alone would always favour a small k, so it is divided by the decrease of the loss. The bound that
scales it is an option, and by default ten times the first value. A round without decrease, or above the bound, counts
as the bound.
"""

import math
from typing import TypedDict

from gradsift.control.base import Observation

FIRST_TIMES = 10.0


class Scaled(TypedDict):
    """The part of a bandit's state that scales its costs."""

    bound: float | None


def scaled_cost(bound: float | None, seen: Observation) -> tuple[float | None, float | None]:
    """The scaled cost of the round, or None if no loss was reported, and the bound for later rounds."""
    if seen.loss_before is None or seen.loss_after is None:
        return None, bound
    decrease = seen.loss_before - seen.loss_after
    price = float(seen.cost / decrease) if decrease > 0 else math.inf
    if not math.isfinite(FIRST_TIMES * price):  # no decrease, or one too small to divide by
        return 1.0, bound
    if bound is None:
        bound = FIRST_TIMES * price or None
    return (min(price / bound, 1.0) if bound else 0.0), bound
