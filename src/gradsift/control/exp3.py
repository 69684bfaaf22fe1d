"""EXP3: Auer, Cesa-Bianchi, Freund and Schapire, The nonstochastic multiarmed bandit problem (SIAM J. Comput. 2002).

Each integer k is an arm, as in the paper (Section V-B, item 2). An arm that was never pulled has weight 1, so only the
pulled ones are stored: a round costs time and memory in the rounds so far, not in D. ``grid="log"`` is our option for
a bandit that can learn: ``arms`` values of k spaced evenly in their logarithm.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np

from gradsift.check import integer, real
from gradsift.control.base import Controller, Observation, Proposal, Search
from gradsift.control.progress import Scaled, check_bound, scaled_cost
from gradsift.draws import rng
from gradsift.errors import GradsiftError


class Exp3State(Scaled):
    """The interval, and the logarithms of the weights of the arms pulled so far (arm number -> log weight)."""

    low: int
    high: int
    seed: int
    log_weights: dict[str, float]


class _Draw(TypedDict):
    arm: int
    probability: float


@dataclass(frozen=True)
class Exp3(Search, Controller[Exp3State]):
    """Sample an arm, raise its weight by what it earned; without ``gamma``, Corollary 3.2's for ``horizon`` rounds."""

    grid: Literal["every", "log"] = "every"
    arms: int = 32  # of the logarithmic grid
    gamma: float | None = None
    horizon: int = 1000
    bound: float | None = None

    def __post_init__(self) -> None:
        """Refuse impossible options."""
        super().__post_init__()
        check_bound(self.bound)
        if self.k_init is not None:
            raise GradsiftError(f"exp3 draws its first k: k_init = {self.k_init!r} has no meaning")
        if self.grid not in ("every", "log"):
            raise GradsiftError(f"grid must be 'every' or 'log', got {self.grid!r}")
        integer("arms", self.arms, 2)
        integer("horizon", self.horizon, 1)
        if self.gamma is not None:
            real("gamma", self.gamma, above=0)
            if self.gamma > 1:
                raise GradsiftError(f"gamma must be in (0, 1], got {self.gamma!r}")

    def init(self, dim: int, seed: int = 0) -> Exp3State:
        """All weights 1."""
        whole = self.interval(dim)
        low, high = math.ceil(whole["low"]), math.floor(whole["high"])
        if low > high:
            raise GradsiftError(f"no integer k in [{whole['low']!r}, {whole['high']!r}]")
        return Exp3State(low=low, high=high, seed=seed, log_weights={}, bound=self.bound)

    def propose(self, state: Exp3State, number: int) -> Proposal:
        """An arm drawn from (1 - gamma) weights + gamma uniform."""
        drawn = self._draw(state, number)
        memo = {"arm": drawn["arm"], "probability": drawn["probability"]}
        return Proposal(number, float(self.k_of(state, drawn["arm"])), None, memo)

    def update(self, state: Exp3State, seen: Observation) -> Exp3State:
        """w <- w exp(gamma x / (p K)) for the pulled arm, where x = 1 - its scaled cost."""
        cost, bound = scaled_cost(state["bound"], seen)
        if cost is None:
            return state
        count = self.count(state)
        chosen, probability = seen.proposal.recall("arm"), seen.proposal.recall("probability")
        if not (0 <= chosen < count and 0 < probability <= 1):
            raise GradsiftError(f"the proposal is not one of these {count} arms: {seen.proposal.memo!r}")
        arm = str(int(chosen))
        gain = self.exploration(count) * (1 - cost) / (probability * count)
        log_weights = {**state["log_weights"], arm: state["log_weights"].get(arm, 0.0) + gain}
        return {**state, "bound": bound, "log_weights": log_weights}

    def count(self, state: Exp3State) -> int:
        """K: how many arms there are."""
        return state["high"] - state["low"] + 1 if self.grid == "every" else len(self._grid(state))

    def k_of(self, state: Exp3State, arm: int) -> int:
        """The k that an arm stands for."""
        return state["low"] + arm if self.grid == "every" else self._grid(state)[arm]

    def _grid(self, state: Exp3State) -> list[int]:
        """At most ``arms`` values of k, evenly spaced in their logarithm; those that round to the same are one."""
        ratio = state["high"] / state["low"]
        return sorted({round(state["low"] * ratio ** (arm / (self.arms - 1))) for arm in range(self.arms)})

    def exploration(self, count: int) -> float:
        """gamma: the probability of a uniform draw."""
        if self.gamma is not None:
            return self.gamma
        return min(1.0, math.sqrt(count * math.log(count) / ((math.e - 1) * self.horizon))) if count > 1 else 1.0

    def _draw(self, state: Exp3State, number: int) -> _Draw:
        count = self.count(state)
        gamma = self.exploration(count)
        pulled = sorted((int(arm), weight) for arm, weight in state["log_weights"].items())
        arms = np.array([arm for arm, _ in pulled], dtype=np.int64)
        logs = np.array([weight for _, weight in pulled])
        shift = max(0.0, float(logs.max(initial=0.0)))
        weights = np.exp(logs - shift)
        edges = weights.cumsum()
        mass = float(edges[-1]) if len(arms) else 0.0  # not weights.sum(), which may differ from the last edge
        unit = math.exp(-shift)  # the weight of an arm never pulled
        total = mass + (count - len(arms)) * unit

        generator = rng(state["seed"], "exploration", number=number)
        explores, position = generator.random() < gamma, generator.random()
        if explores:
            arm = min(int(position * count), count - 1)
        elif position * total < mass:
            arm = int(arms[np.searchsorted(edges, position * total, side="right")])
        else:  # uniform over the others: the r-th arm that was never pulled
            others = count - len(arms)
            nth = min(int((position * total - mass) / unit), others - 1)
            arm = nth + int(np.searchsorted(arms - np.arange(len(arms)), nth, side="right"))
        at = int(np.searchsorted(arms, arm))
        weight = float(weights[at]) if at < len(arms) and arms[at] == arm else unit
        return _Draw(arm=arm, probability=(1 - gamma) * weight / total + gamma / count)
