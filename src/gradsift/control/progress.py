"""What the bandits minimise: the cost of a round for each unit of loss that it took off, scaled to [0, 1].

A bandit sees one number a round. The cost of the round alone would only say that a small k is cheap, so it is divided
by the decrease of the loss. The bound that scales it is an option; left out, it is ten times the first value seen. A
round without decrease counts as the bound, and so does a dearer one.
"""

import math
from typing import TypedDict

from gradsift.check import real
from gradsift.control.base import Observation

FIRST_TIMES = 10.0


class Scaled(TypedDict):
    """The part of a bandit's state that scales what it sees."""

    bound: float | None


def check_bound(bound: float | None) -> None:
    """Refuse a bound that is not positive and finite."""
    if bound is not None:
        real("bound", bound, above=0)


def scaled_cost(bound: float | None, seen: Observation) -> tuple[float | None, float | None]:
    """(The round's cost in [0, 1], or None if no loss was reported; the bound from now on)."""
    if seen.loss_before is None or seen.loss_after is None:
        return None, bound
    decrease = seen.loss_before - seen.loss_after
    price = float(seen.cost / decrease) if decrease > 0 else math.inf
    if not math.isfinite(FIRST_TIMES * price):  # no decrease, or one so small that its price is beyond any bound
        return 1.0, bound
    if bound is None:
        bound = FIRST_TIMES * price or None
    return (min(price / bound, 1.0) if bound else 0.0), bound
