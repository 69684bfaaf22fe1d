"""Trajectories whose best k is known: a round at k takes SIZE k / (k + c) off the loss, and costs 1 + b k.

The cost of a unit of loss is then t(k) = (1 + b k)(1 + c / k) / SIZE at every loss: convex, least at sqrt(c / b).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from gradsift.regret.reach import Floats, descent
from gradsift.report.curves import Curve

START, SIZE = 10.0, 0.01


def t(k: float, b: float, c: float) -> float:
    return (1 + b * k) * (1 + c / k) / SIZE


def optimum(b: float, c: float) -> float:
    return math.sqrt(c / b)


def made(ks: Sequence[float], b: float, c: float) -> Curve:
    """The course of a sequence of k, evaluated after every round."""
    k = np.asarray(ks, dtype=np.float64)
    loss = START - np.cumsum(SIZE * k / (k + c))
    return descent(np.append(0.0, np.cumsum(1 + b * k)), np.append(START, loss))


def fixed(k: float, rounds: int, b: float, c: float) -> Curve:
    return made([k] * rounds, b, c)


def slow_cost_to(curve: Curve, loss: float) -> float:
    """The obvious twin of cost_to: walk along the curve."""
    previous: tuple[float, float] | None = None
    for x, y in zip(curve.x.tolist(), curve.y.tolist(), strict=True):
        if y <= loss:
            if previous is None:
                return float(x)
            return float(previous[0] + (x - previous[0]) * ((previous[1] - loss) / (previous[1] - y)))
        previous = (x, y)
    return math.nan


def slow_running_minimum(values: Sequence[float]) -> list[float]:
    return [min(values[: i + 1]) for i in range(len(values))]


def slow_regret(curve: Curve, best: Curve) -> list[float]:
    return [float(x) - slow_cost_to(best, float(y)) for x, y in zip(curve.x, curve.y, strict=True)]


def on(ks: Sequence[int], value: Callable[[int], Sequence[float]]) -> Floats:
    return np.array([value(k) for k in ks])
