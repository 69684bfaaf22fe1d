"""The law that plans k: rounds to a target are R0 (1 + c/k)^P, so the best k minimises price(k) (1 + c/k)^P.

c is the number of elements below which sending fewer makes training slower: docs/theory.md says what it is made of,
where these constants come from, and where the law fails.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradsift.check import real
from gradsift.errors import GradsiftError

Floats = NDArray[np.float64]
F = TypeVar("F", float, Floats)
PriceFunction = Callable[[Floats], Floats]  # the cost of a round at each k

EXPONENT = 0.7  # P
POINTS = 97  # in a table of prices, and in each pass of a search


def guess(dim: int) -> float:
    """c of a model with ``dim`` weights before anything is known about the task."""
    return math.sqrt(dim)


def local_c(c: float, gradients: int) -> float:
    """The c of rounds with so many gradients, from that of rounds with one: it grows with their square root."""
    return c * math.sqrt(gradients)


def least_k(dim: int) -> float:
    """The smallest k that is planned: below it training slows down faster than the law says, or stalls."""
    return max(1.0, math.sqrt(dim) / 5)


def slowdown(k: F, c: float) -> F:
    """How many times as many rounds training takes at k as if everything were sent at once."""
    slower: F = (1 + c / k) ** EXPONENT
    return slower


class Prices(NamedTuple):
    """The cost of a round at any k: exact at the numbers in ``k``, which increase, and linear between them."""

    k: tuple[float, ...]
    cost: tuple[float, ...]
    each: tuple[
        tuple[float, ...], ...
    ] = ()  # if links differ: for each kind of clients its k, and ``k`` is their harmonic mean
    kinds: tuple[int, ...] = ()  # the kind of each client
    gradients: int = 1  # that a client computes in a round

    def validate(self) -> None:
        """Refuse numbers that are not finite, negative costs, and k that do not increase."""
        if len(self.k) != len(self.cost) or not self.k:
            raise GradsiftError(f"prices need one cost for each k, got {len(self.k)} k and {len(self.cost)} costs")
        for k, cost in zip(self.k, self.cost, strict=True):
            real("k of a price", k, above=0)
            real(f"the price of k = {k!r}", cost, low=0)
        if any(after <= before for before, after in itertools.pairwise(self.k)):
            raise GradsiftError(f"the k of prices must increase, got {self.k!r:.80}")

    @classmethod
    def of(cls, price: Callable[[float], float], dim: int) -> "Prices":
        """Tabulate ``price`` for k of 1 to ``dim``."""
        k: list[float] = np.unique(np.round(np.geomspace(1, dim, POINTS))).tolist()
        return cls(tuple(k), tuple(float(price(number)) for number in k))

    def at(self, k: Floats) -> Floats:
        """The cost of a round at each k."""
        return np.interp(k, self.k, self.cost)

    def shared(self, k: float, low: float, high: float) -> tuple[float, ...]:
        """The k of each client whose mean k is, from ``low`` to ``high``."""
        own = [min(max(float(np.interp(k, self.k, one)), low), high) for one in self.each]
        return tuple(own[kind] for kind in self.kinds)

    @property
    def base(self) -> float:
        """The part of the cost that does not depend on k, not more than the cost at the smallest k."""
        slope = 0.0 if len(self.k) < 2 else (self.cost[1] - self.cost[0]) / (self.k[1] - self.k[0])
        return min(max(0.0, self.cost[0] - slope * self.k[0]), self.cost[0])


def best_k(price: Callable[[float], float], c: float, low: float, high: float) -> float:
    """The k in [low, high] that minimises price(k) times ``slowdown``; of equal ones the smallest.

    Where rounds cost nothing it has the fewest rounds.
    """
    return search(np.vectorize(price, otypes=[float]), c, low, high)


def search(prices: PriceFunction, c: float, low: float, high: float) -> float:
    """``best_k``, for a function that prices many k at once."""
    if not 0 < low <= high:
        raise GradsiftError(f"k must be searched in an interval above 0, got [{low!r}, {high!r}]")
    for _ in range(3):  # each pass narrows the interval around the best of its points
        points = np.geomspace(low, high, POINTS).clip(low, high)
        price = prices(points)
        with np.errstate(over="ignore"):  # the lowest of huge prices is still found
            best = int(np.argmin((price if price.any() else 1.0) * slowdown(points, c)))
        low, high = float(points[max(0, best - 1)]), float(points[min(POINTS - 1, best + 1)])
    return float(points[best])
