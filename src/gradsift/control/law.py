"""The law that plans k: rounds to a target are R0 (1 + c/k)^P, so the best k minimises price(k) (1 + c/k)^P.

c is the number of elements at which sending fewer starts to hurt: docs/theory.md says what it is made of, where these
constants come from, and where the law fails.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gradsift.errors import GradsiftError

EXPONENT = 0.7  # P


class Prices(NamedTuple):
    """The cost of a round at any k: exact at the numbers in ``k``, which increase, and linear between them."""

    k: tuple[float, ...]
    cost: tuple[float, ...]

    @classmethod
    def of(cls, price: Callable[[float], float], dim: int) -> "Prices":
        """Tabulate ``price`` for k of 1 to ``dim``."""
        k = np.unique(np.round(np.geomspace(1, dim, GRID)))
        return cls(tuple(k.tolist()), tuple(float(price(number)) for number in k.tolist()))

    def at(self, k: float) -> float:
        """The cost of a round at k."""
        return float(np.interp(k, self.k, self.cost))

    def fixed(self) -> float:
        """The part of the cost that does not depend on k."""
        if len(self.k) < 2:
            return 0.0
        return max(0.0, self.cost[0] - (self.cost[1] - self.cost[0]) / (self.k[1] - self.k[0]) * self.k[0])


GRID = 97  # points of a table of prices


def guess(dim: int) -> float:
    """c of a model with ``dim`` weights before anything is known about the task."""
    return math.sqrt(dim)


def slowdown(k: float, c: float) -> float:
    """How many times as many rounds training takes at k as if everything were sent at once."""
    return float((1 + c / k) ** EXPONENT)


def best_k(price: Callable[[float], float], c: float, low: float, high: float) -> float:
    """The k in [low, high] that minimises price(k) times ``slowdown``; of equal ones the smallest."""
    if not 0 < low <= high:
        raise GradsiftError(f"k must be searched in an interval above 0, got [{low!r}, {high!r}]")
    for _ in range(3):  # each pass narrows the interval around the best of its points
        points = np.geomspace(low, high, GRID).clip(low, high)
        best = int(np.argmin([price(k) * slowdown(k, c) for k in points.tolist()]))
        low, high = float(points[max(0, best - 1)]), float(points[min(GRID - 1, best + 1)])
    return float(points[best])
