"""Algorithm 2: online learning of k from the sign of the estimated derivative."""

import math
from dataclasses import dataclass
from typing import ClassVar

from gradsift.check import integer
from gradsift.control.base import Controller, Interval, Observation, Proposal, Search, project
from gradsift.control.estimate import estimated_sign


def step_size(state: Interval, rounds: int) -> float:
    """delta_m = B / sqrt(2m), in the m-th round of an instance that searches this interval."""
    integer("round number within an instance", rounds, 1)
    return (state["high"] - state["low"]) / math.sqrt(2 * rounds)


def probing(state: Interval, number: int, delta: float) -> Proposal:
    """k_m with its probe k'_m = k_m - delta_m / 2, which may be below k_min but not below 1, and is below k_m."""
    below = math.nextafter(state["k"], 1.0)  # for a delta that is zero or too small to change k
    return Proposal(number, state["k"], max(1.0, min(state["k"] - delta / 2, below)))


@dataclass(frozen=True)
class Sign(Search, Controller[Interval]):
    """Algorithm 2: step delta_m against the estimated sign; no step if the sign is unavailable."""

    probes: ClassVar[bool] = True
    lowest: ClassVar[float] = 2.0

    def init(self, dim: int, seed: int = 0) -> Interval:
        """K = [k_min, k_max], k_1 = k_init."""
        del seed
        return self.interval(dim)

    def propose(self, state: Interval, number: int) -> Proposal:
        """k_m and its probe."""
        return probing(state, number, step_size(state, number))

    def update(self, state: Interval, seen: Observation) -> Interval:
        """Line 4: k <- P_K(k - delta_m s_m). A late observation moves the present k by the step of its own round."""
        sign = estimated_sign(seen)
        if sign is None:
            return state
        delta = step_size(state, seen.proposal.number)
        return {**state, "k": project(state["k"] - delta * sign, state["low"], state["high"])}
