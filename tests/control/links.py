"""A link whose rounds cost t0 + t1 k, with noise and stragglers, and a loop that chooses k from the costs it sees."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gradsift.control import seen_cost
from gradsift.control.seen_cost import SeenCost


@dataclass(frozen=True)
class Link:
    """t0 and t1 of each round; ``slow`` has factors for single rounds. At t0 / t1 = c, k* is c."""

    t0: float = 3.0
    t1: float = 0.003
    c: float = 1000.0
    noise: float = 0.05  # the deviation of the logarithm
    seed: int = 0
    changes_after: int = 10**9
    then: tuple[float, float] = (1.0, 1.0)  # factors of t0 and t1 after the change
    slow: Mapping[int, float] = field(default_factory=dict)
    carried: float = 0.0  # the part of t1 k that is of the round before: its result
    stragglers: float = 0.0  # the probability of a round that costs ten times as much

    def rates(self, number: int) -> tuple[float, float]:
        by = self.then if number > self.changes_after else (1.0, 1.0)
        return self.t0 * by[0], self.t1 * by[1]

    def best(self, number: int = 1) -> float:
        t0, t1 = self.rates(number)
        return math.sqrt(self.c * t0 / t1)

    def loss(self, number: int, k: float) -> float:
        """How much dearer progress is at k than at k*."""

        def dear(k: float) -> float:
            t0, t1 = self.rates(number)
            return (t0 + t1 * k) * (1 + self.c / k)

        return dear(k) / dear(self.best(number)) - 1

    def cost(self, number: int, k: float, k_before: float) -> float:
        draw = np.random.default_rng([self.seed, number])
        t0, t1 = self.rates(number)
        k = (1 - self.carried) * k + self.carried * k_before
        late = 10.0 if draw.random() < self.stragglers else 1.0
        return (t0 + t1 * k) * math.exp(self.noise * draw.normal()) * late * self.slow.get(number, 1.0)


LARGEST = 1e6  # the largest k of these links
GRID = np.exp(np.linspace(-0.5, 0.5, 21))


def cheapest(state: SeenCost, c: float, k: float) -> float:
    """The minimum of price(k) (1 + c / k), by search: as a controller that knows nothing of t0 and t1 finds it."""
    known = seen_cost.estimate(state)
    if known is None:
        return k
    for step in (4.0, 0.4, 0.04):  # each finer grid is around the best point of the one before, which may move on
        while True:
            near = min((float(k * by**step) for by in GRID), key=lambda k: known.price(k) * (1 + c / k))
            if abs(math.log(near / k)) < 0.49 * step:
                break
            k = near
        k = near
    return k


def never(number: int) -> bool:
    del number
    return False


def follow(
    link: Link, first_k: float, rounds: int, late: int = 0, missing: Callable[[int], bool] = never
) -> tuple[list[float], list[float]]:
    """The k chosen before each round, and the k used; costs are learned ``late`` rounds late, if not ``missing``."""
    state, k = seen_cost.start(LARGEST), first_k
    chosen: list[float] = []
    used: list[float] = []
    for number in range(1, rounds + 1):
        seen = number - 1 - late
        if seen >= 1 and not missing(seen):
            before = used[max(seen - 2, 0)]
            state = seen_cost.learn(state, used[seen - 1], link.cost(seen, used[seen - 1], before))
        k = cheapest(state, link.c, k)
        chosen.append(k)
        used.append(k * seen_cost.variation(state, number))
    return chosen, used
