"""Gradient descent without a gradient: Flaxman, Kalai and McMahan (SODA 2005), in one dimension.

The paper's continuous bandit (Section V-B, item 3). For costs in [0, C = 1] that change by at most C over the
half-width r = R of the interval (L r = C) and a horizon of n rounds, their theorem for Lipschitz costs sets the
perturbation to r n^(-1/4) / sqrt(6) and the step to r / sqrt(n): both scale with the search interval.
"""

import math
from dataclasses import dataclass

from gradsift.check import integer, real
from gradsift.control.base import Controller, Interval, Observation, Proposal, Search, project
from gradsift.control.progress import Scaled, scaled_cost
from gradsift.draws import rng


class BanditState(Interval, Scaled):
    """K, the centre k around which the bandit plays, and the bound of its costs."""

    seed: int


@dataclass(frozen=True)
class ContinuousBandit(Search, Controller[BanditState]):
    """Play the centre plus or minus a perturbation, and move the centre away from the side that was expensive."""

    horizon: int = 1000
    bound: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        real("bound", self.bound, above=0, optional=True)
        integer("horizon", self.horizon, 1)

    def init(self, dim: int, seed: int = 0) -> BanditState:
        """The centre is k_init, moved so that both perturbations are inside K."""
        state = BanditState(**self.interval(dim), seed=seed, bound=self.bound)
        return self._move(state, state["k"])

    def propose(self, state: BanditState, number: int) -> Proposal:
        """The centre, perturbed up or down with equal probability; projected, since rounding errors may leave K."""
        direction = 1.0 if rng(state["seed"], "exploration", number=number).random() < 0.5 else -1.0
        k = project(state["k"] + direction * self.perturbation(state), state["low"], state["high"])
        return Proposal(number, k, None, {"direction": direction})

    def update(self, state: BanditState, seen: Observation) -> BanditState:
        """centre <- P(centre - step * cost * direction), where P projects onto K less a perturbation at each end."""
        cost, bound = scaled_cost(state["bound"], seen)
        if cost is None:
            return state
        step = self._half(state) / math.sqrt(self.horizon)
        return self._move({**state, "bound": bound}, state["k"] - step * cost * seen.proposal.recall("direction"))

    def perturbation(self, state: BanditState) -> float:
        """The distance between the centre and the proposed k."""
        return self._half(state) / math.sqrt(6 * math.sqrt(self.horizon))

    @staticmethod
    def _half(state: BanditState) -> float:
        return (state["high"] - state["low"]) / 2

    def _move(self, state: BanditState, k: float) -> BanditState:
        margin = self.perturbation(state)
        return {**state, "k": project(k, state["low"] + margin, state["high"] - margin)}
