"""Step size schedules: functions of the round number whose options can be saved in a configuration."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from gradsift.check import integer, real
from gradsift.errors import GradsiftError

Schedule = Callable[[int], float]  # from the round number, counted from 1, to the step size


@dataclass(frozen=True)
class Constant:
    """The same step size in every round."""

    lr: float

    def __post_init__(self) -> None:
        real("lr", self.lr)
        if self.lr <= 0:
            raise GradsiftError(f"lr must be positive, got {self.lr!r}")

    def __call__(self, number: int) -> float:
        """The step size in round ``number``."""
        del number
        return self.lr


@dataclass(frozen=True)
class StepDecay(Constant):
    """``lr``, multiplied by ``factor`` after every ``every`` rounds."""

    factor: float
    every: int

    def __post_init__(self) -> None:
        super().__post_init__()
        real("factor", self.factor, low=0.0, high=1.0)
        integer("every", self.every, 1)

    def __call__(self, number: int) -> float:
        """The step size in round ``number``."""
        return self.lr * self.factor ** ((number - 1) // self.every)


@dataclass(frozen=True)
class Cosine(Constant):
    """From ``lr`` in the first round along a half cosine to ``last`` in round ``rounds``, and ``last`` after it."""

    rounds: int
    last: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("rounds", self.rounds, 2)
        real("last", self.last, low=0.0, high=self.lr)

    def __call__(self, number: int) -> float:
        """The step size in round ``number``."""
        progress = min((number - 1) / (self.rounds - 1), 1.0)
        return self.last + (self.lr - self.last) * (1 + math.cos(math.pi * progress)) / 2
