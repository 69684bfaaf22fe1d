"""Algorithm 3: restarts of Algorithm 2 on a smaller interval, with smaller steps, when that lowers the regret bound.

Three deviations from the printed algorithm, explained in docs/deviations.md: m_0 starts at 0, because with 1, as
printed, delta_1 divides by zero; the window (lines 6 and 7) skips the rounds whose sign is unavailable, and only if
``literal_window`` is set also those in which k stayed in place; and no instance starts on an interval of a single
point, which k could never leave.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from gradsift.check import boolean, integer, real
from gradsift.control.base import Controller, Interval, Observation, Proposal, Search, project
from gradsift.control.estimate import estimated_sign
from gradsift.control.sign import probing, step_size
from gradsift.errors import GradsiftError


class ExtendedState(Interval):
    """K and k of the current instance, and the numbers that decide when the next one starts."""

    k_min: float  # the original interval, to which line 9 clips
    k_max: float
    started: int  # m_0: the last round before the current instance
    previous: int  # M': the number of rounds of the previous instance
    counted: int  # n: the number of rounds in the current window
    window_low: float | None  # k'_min and k'_max: the range of k in the current window
    window_high: float | None


@dataclass(frozen=True)
class ExtendedSign(Search, Controller[ExtendedState]):
    """Algorithm 3, the paper's choice: like sign, but the interval shrinks to the recent range of k."""

    alpha: float = 1.5
    window: int = 20  # M_u
    literal_window: bool = False

    probes: ClassVar[bool] = True
    lowest: ClassVar[float] = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        real("alpha", self.alpha, low=1)
        integer("window", self.window, 1)
        boolean("literal_window", self.literal_window)

    def init(self, dim: int, seed: int = 0) -> ExtendedState:
        """Line 1, with m_0 = 0."""
        del seed
        interval = self.interval(dim)
        low, high = interval["low"], interval["high"]
        return ExtendedState(
            **interval, k_min=low, k_max=high, started=0, previous=0, counted=0, window_low=None, window_high=None
        )

    def propose(self, state: ExtendedState, number: int) -> Proposal:
        """k_m and its probe."""
        return probing(state, number, step_size(state, number - state["started"]))

    def update(self, state: ExtendedState, seen: Observation) -> ExtendedState:
        """Lines 3 to 15, for the round of ``seen``; m advances in every round, also without a sign."""
        ran = seen.proposal.number - state["started"]  # M''
        if ran < 1:
            raise GradsiftError(
                f"round {seen.proposal.number} was observed already: the instance started after {state['started']}"
            )
        sign = estimated_sign(seen)
        if sign is None:
            return state
        k = project(state["k"] - step_size(state, ran) * sign, state["low"], state["high"])
        if self.literal_window and k == state["k"]:
            return state
        low = k if state["window_low"] is None else min(state["window_low"], k)
        high = k if state["window_high"] is None else max(state["window_high"], k)
        counted = state["counted"] + 1
        if counted < self.window:
            return {**state, "k": k, "counted": counted, "window_low": low, "window_high": high}
        after = ExtendedState(**{**state, "k": k, "counted": 0, "window_low": None, "window_high": None})
        return self._maybe_restart(after, low, high, ran, seen.proposal.number)

    def _maybe_restart(self, state: ExtendedState, low: float, high: float, ran: int, number: int) -> ExtendedState:
        """Lines 9 to 14: a new instance on the window's range, widened by alpha, if its regret bound is lower."""
        high = min(self.alpha * high, state["k_max"])
        low = max(low / self.alpha, state["k_min"])
        width = state["high"] - state["low"]
        if not 0 < high - low < (math.sqrt(2) - 1) * width or ran < state["previous"]:
            return state
        return {**state, "low": low, "high": high, "previous": ran, "started": number}
