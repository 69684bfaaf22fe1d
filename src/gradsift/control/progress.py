"""What the bandits minimise: the cost of a round for each unit of loss that it took off, scaled to [0, 1].

A bandit sees one number a round. The cost of the round alone would only say that a small k is cheap, so it is divided
by the decrease of the loss. The bound that scales it is an option; left out, it is ten times the first value seen. A
round without decrease counts as the bound, and so does a dearer one.
"""

from typing import TypedDict

from gradsift.control.base import Observation
from gradsift.errors import GradsiftError

FIRST_TIMES = 10.0


class Scaled(TypedDict):
    """The part of a bandit's state that scales what it sees."""

    bound: float | None


def check_bound(bound: float | None) -> None:
    """Refuse a bound that is not positive."""
    if bound is not None and not bound > 0:
        raise GradsiftError(f"bound must be positive, got {bound!r}")


def scaled_cost(bound: float | None, seen: Observation) -> tuple[float | None, float | None]:
    """(The round's cost in [0, 1], or None if no loss was reported; the bound from now on)."""
    if seen.loss_before is None or seen.loss_after is None:
        return None, bound
    decrease = seen.loss_before - seen.loss_after
    if decrease <= 0:
        return 1.0, bound
    if bound is None:
        bound = FIRST_TIMES * seen.cost / decrease or None
    return (min(seen.cost / decrease / bound, 1.0) if bound else 0.0), bound
