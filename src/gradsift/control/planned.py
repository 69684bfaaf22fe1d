"""The default: k is planned from the prices of rounds and the law of ``law``, whose c is measured while training runs.

Two numbers of each round tell c, and cost next to nothing (docs/theory.md):

    waiting    the mass left in the residuals over the mass that was sent: how many exchanges an element waits
    agreement  what all clients held where something was sent, over what was sent: below 1 the others disagree

The waiting time of a task grows with the cube root of the rounds, so c is a multiple of k * waiting / rounds^(1/3).
"""

import math
import statistics
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypedDict

import numpy as np

from gradsift.check import real
from gradsift.control import law, seen_cost
from gradsift.control.base import Controller, Observation, Proposal, Search, project
from gradsift.control.law import F, Floats, PriceFunction, Prices
from gradsift.control.seen_cost import SeenCost

GUESSED_ROUNDS = 5  # the guess of c counts as much as this many rounds of measurements
MEMORY = 20  # rounds over which measurements are averaged
LARGEST_SCALE = math.log(1e6)  # by which the costs that are seen may differ from the prices


class Rule(NamedTuple):
    """How c follows from what is seen in a round; docs/theory.md says where the constants come from."""

    waiting: float = 7.0  # c = waiting * k * W / (rounds^growth * sqrt(D)), where the clients agree
    disagreement: float = 3.0  # and up to 1 + most * disagreement times that where they do not
    growth: float = 1 / 3
    most: float = 1.5

    def ratio(self, dim: int, rounds: int, waiting: F, agreement: F) -> F:
        """c/k by the waiting time and the agreement of the ``rounds``-th round."""
        opposed = np.minimum(np.maximum(1 - agreement, 0.0), self.most)
        with np.errstate(over="ignore"):
            found: F = (
                self.waiting * waiting / (rounds**self.growth * math.sqrt(dim)) * (1 + self.disagreement * opposed)
            )
        return found


RULE = Rule()


class PlannedState(TypedDict):
    """What has been learned so far."""

    dim: int
    low: float  # the bounds of k
    high: float
    guess: float  # c before the first measurement
    log_c: float  # the mean logarithm of the measured c
    measured: int  # rounds that it is the mean of; at most MEMORY count
    rounds: int  # that were observed so far
    log_scale: float  # of what depends on k in the costs that were seen, over what the prices say
    priced: int  # rounds that it is the mean of
    prices: list[list[float]] | None  # ``_table`` of the prices; None if costs are only seen
    seen: SeenCost  # the costs that were seen, while there are no prices


@dataclass(frozen=True)
class Planned(Controller[PlannedState]):
    """The default: the k that is cheapest by the prices of rounds and by how long elements wait; it has no probe."""

    k_min: float | None = None  # None: sqrt(D) / 5, or k_max if that is smaller
    k_max: float | None = None  # None: D
    guess: float = 1.0  # the first guess of c, in units of ``law.guess``

    learns: ClassVar[bool] = False
    weighs: ClassVar[bool] = True
    plans: ClassVar[bool] = True

    def __post_init__(self) -> None:
        Search(self.k_min, self.k_max)  # refuses bounds that are not valid
        real("guess", self.guess, above=0)

    def init(self, dim: int, seed: int = 0) -> PlannedState:
        """The guess, and no prices yet."""
        del seed
        least = min(law.least_k(dim), self.largest_k(dim)) if self.k_min is None else self.k_min
        interval = Search(least, self.k_max).interval(dim)
        return PlannedState(
            dim=dim,
            low=interval["low"],
            high=interval["high"],
            guess=self._guess(dim),
            log_c=0.0,
            measured=0,
            rounds=0,
            log_scale=0.0,
            priced=0,
            prices=None,
            seen=seen_cost.start(interval["high"]),
        )

    def largest_k(self, dim: int) -> float:
        """k_max."""
        return Search(k_max=self.k_max).largest_k(dim)

    def priced(self, state: PlannedState, prices: Prices | None) -> PlannedState:
        """The state with the prices of rounds; what was learned about other prices is forgotten."""
        table = None if prices is None else _table(prices)
        if table == state["prices"]:
            return state
        state = {**state, "prices": table, "log_scale": 0.0, "priced": 0, "seen": seen_cost.start(state["high"])}
        return {**state, "guess": self._guess(state["dim"], 1 if prices is None else prices.gradients)}

    def _guess(self, dim: int, gradients: int = 1) -> float:
        return project(law.local_c(self.guess * law.guess(dim), gradients), 1.0, dim)

    def propose(self, state: PlannedState, number: int) -> Proposal:
        """The k that is planned with what is known; where costs are only seen, it varies so that they can be told."""
        c, low, high = current_c(state), state["low"], state["high"]
        if state["prices"] is not None:
            prices = _prices(state)
            if not prices.each:
                return Proposal(number, law.search(_corrected(state), c, low, high), memo={"c": c})
            least, most = (project(bound, prices.k[0], prices.k[-1]) for bound in (low, high))
            each = prices.shared(law.search(_corrected(state), c, least, most), low, high)
            return Proposal(number, each, memo={"c": c, "mean_k": statistics.harmonic_mean(each)})
        known = seen_cost.estimate(state["seen"])
        k = math.sqrt(c * state["dim"])  # as if sending everything took about as long as computing
        if known is not None:
            k = law.best_k(known.price, c, low, high)
        return Proposal(number, project(k * seen_cost.variation(state["seen"], number), low, high), memo={"c": c})

    def update(self, state: PlannedState, seen: Observation) -> PlannedState:
        """Learn c from the waiting time, and how far the costs that were seen are from the prices."""
        state = {**state, "rounds": state["rounds"] + 1}
        if seen.used_k is None:
            return state
        k = seen.proposal.memo.get("mean_k", seen.used_k)
        if seen.waiting and seen.took_part:
            # A client that takes part in every tenth round sends a tenth as often: its elements wait ten times as long.
            waiting = seen.waiting / seen.took_part
            log_c = math.log(measured_c(state["dim"], k, waiting, seen.agreement, state["rounds"]))
            state["log_c"] = _averaged(state["log_c"], state["measured"], log_c)
            state["measured"] += 1
        if state["prices"] is None:
            return {**state, "seen": seen_cost.learn(state["seen"], k, seen.cost)}
        prices = _prices(state)
        expected, found = float(prices.at(np.array(k))) - prices.base, seen.cost - prices.base
        if expected > 0 and found > 0:
            log_scale = project(math.log(found) - math.log(expected), -LARGEST_SCALE, LARGEST_SCALE)
            state["log_scale"] = _averaged(state["log_scale"], state["priced"], log_scale)
            state["priced"] += 1
        return state


def measured_c(dim: int, k: float, waiting: float, agreement: float | None, rounds: int) -> float:
    """c by the waiting time and the agreement of one round, the ``rounds``-th: from 1 to D."""
    ratio = RULE.ratio(dim, max(1, rounds), waiting, 1.0 if agreement is None else agreement)
    return project(k * float(ratio), 1.0, max(1.0, dim))


def current_c(state: PlannedState) -> float:
    """c by the guess and all measurements."""
    measured = state["measured"]
    return math.exp(
        (GUESSED_ROUNDS * math.log(state["guess"]) + measured * state["log_c"]) / (GUESSED_ROUNDS + measured)
    )


def _averaged(mean: float, count: int, value: float) -> float:
    """The mean of ``count`` values and one more; of many, the last count most."""
    return mean + (value - mean) / (min(count, MEMORY) + 1)


def _table(prices: Prices) -> list[list[float]]:
    """Prices as lists, for a checkpoint."""
    shared = (prices.kinds, *prices.each) if prices.each else ()
    return [list(row) for row in (prices.k, prices.cost, *shared)]


def _prices(state: PlannedState) -> Prices:
    assert state["prices"] is not None
    k, cost, *shared = map(tuple, state["prices"])
    return Prices(k, cost, tuple(shared[1:]), tuple(int(kind) for kind in shared[0])) if shared else Prices(k, cost)


def _corrected(state: PlannedState) -> PriceFunction:
    """The prices, corrected by the costs that were seen."""
    prices, scale = _prices(state), math.exp(state["log_scale"])

    def corrected(k: Floats) -> Floats:
        return prices.base + scale * (prices.at(k) - prices.base)

    return corrected
