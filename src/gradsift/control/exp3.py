"""EXP3: Auer, Cesa-Bianchi, Freund and Schapire, The nonstochastic multiarmed bandit problem (SIAM J. Comput. 2002).

Each integer k is an arm, as in the paper (Section V-B, item 2). An arm that was never pulled has weight 1, so only the
weights of pulled arms are stored: the time and memory of a round grow with the number of rounds, not with D.
``grid="log"`` is our addition, with few enough arms to learn: ``arms`` values of k, evenly spaced in their logarithm.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradsift.check import integer, real
from gradsift.control.base import Controller, Observation, Proposal, Search
from gradsift.control.progress import Scaled, scaled_cost
from gradsift.draws import rng
from gradsift.errors import GradsiftError


class Exp3State(Scaled):
    """The interval, the bound of the costs, and the log weight of each arm pulled so far, by arm number."""

    low: int
    high: int
    seed: int
    log_weights: dict[str, float]


@dataclass(frozen=True)
class Exp3(Search, Controller[Exp3State]):
    """Sample an arm and raise its weight by its reward, which is high where the cost was low."""

    grid: Literal["every", "log"] = "every"
    arms: int = 32  # at most, in the logarithmic grid
    gamma: float | None = None  # probability of a uniform draw; None: that of Corollary 3.2 for ``horizon`` rounds
    horizon: int = 1000
    bound: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        real("bound", self.bound, above=0, optional=True)
        if self.k_init is not None:
            raise GradsiftError(f"exp3 draws its first k: k_init = {self.k_init!r} has no meaning")
        if self.grid not in ("every", "log"):
            raise GradsiftError(f"grid must be 'every' or 'log', got {self.grid!r}")
        integer("arms", self.arms, 2)
        integer("horizon", self.horizon, 1)
        real("gamma", self.gamma, above=0, optional=True)
        if self.gamma is not None and self.gamma > 1:
            raise GradsiftError(f"gamma must be in (0, 1], got {self.gamma!r}")

    def init(self, dim: int, seed: int = 0) -> Exp3State:
        """All weights are 1."""
        interval = self.interval(dim)
        low, high = math.ceil(interval["low"]), math.floor(interval["high"])
        if low > high:
            raise GradsiftError(f"no integer k in [{interval['low']!r}, {interval['high']!r}]")
        return Exp3State(low=low, high=high, seed=seed, log_weights={}, bound=self.bound)

    def propose(self, state: Exp3State, number: int) -> Proposal:
        """An arm drawn from (1 - gamma) weights + gamma uniform."""
        arm, probability = self._draw(state, number)
        return Proposal(number, float(self.k_of(state, arm)), None, {"arm": arm, "probability": probability})

    def update(self, state: Exp3State, seen: Observation) -> Exp3State:
        """w <- w exp(gamma x / (p K)) for the pulled arm, where x = 1 - its scaled cost."""
        cost, bound = scaled_cost(state["bound"], seen)
        if cost is None:
            return state
        count = self.count(state)
        drawn, probability = seen.proposal.recall("arm"), seen.proposal.recall("probability")
        if not (0 <= drawn < count and 0 < probability <= 1):
            raise GradsiftError(f"the proposal is not one of these {count} arms: {seen.proposal.memo!r}")
        arm = str(int(drawn))
        gain = self.exploration(count) * (1 - cost) / (probability * count)
        log_weights = {**state["log_weights"], arm: state["log_weights"].get(arm, 0.0) + gain}
        return {**state, "bound": bound, "log_weights": log_weights}

    def count(self, state: Exp3State) -> int:
        """K: the number of arms."""
        return state["high"] - state["low"] + 1 if self.grid == "every" else len(self._grid(state))

    def k_of(self, state: Exp3State, arm: int) -> int:
        """The k of an arm."""
        return state["low"] + arm if self.grid == "every" else self._grid(state)[arm]

    def _grid(self, state: Exp3State) -> list[int]:
        """At most ``arms`` values of k, evenly spaced in their logarithm and rounded, without duplicates."""
        ratio = state["high"] / state["low"]
        return sorted({round(state["low"] * ratio ** (arm / (self.arms - 1))) for arm in range(self.arms)})

    def exploration(self, count: int) -> float:
        """gamma: the probability of a uniform draw."""
        if self.gamma is not None:
            return self.gamma
        return min(1.0, math.sqrt(count * math.log(count) / ((math.e - 1) * self.horizon))) if count > 1 else 1.0

    def _draw(self, state: Exp3State, number: int) -> tuple[int, float]:
        """An arm and the probability with which it was drawn."""
        count = self.count(state)
        gamma = self.exploration(count)
        pulled = sorted((int(arm), weight) for arm, weight in state["log_weights"].items())
        arms = np.array([arm for arm, _ in pulled], dtype=np.int64)
        logs = np.array([weight for _, weight in pulled])
        shift = max(0.0, float(logs.max(initial=0.0)))
        weights = np.exp(logs - shift)
        edges = weights.cumsum()
        mass = float(edges[-1]) if len(arms) else 0.0  # weights.sum() may differ from the last edge
        unit = math.exp(-shift)  # the weight of an arm that was never pulled
        total = mass + (count - len(arms)) * unit

        generator = rng(state["seed"], "exploration", number=number)
        explores, position = generator.random() < gamma, generator.random()
        if explores:
            arm = min(int(position * count), count - 1)
        elif position * total < mass:
            arm = int(arms[np.searchsorted(edges, position * total, side="right")])
        else:  # uniform over the arms that were never pulled: the n-th of them
            others = count - len(arms)
            nth = min(int((position * total - mass) / unit), others - 1)
            arm = nth + int(np.searchsorted(arms - np.arange(len(arms)), nth, side="right"))
        place = int(np.searchsorted(arms, arm))
        weight = float(weights[place]) if place < len(arms) and arms[place] == arm else unit
        return arm, (1 - gamma) * weight / total + gamma / count
