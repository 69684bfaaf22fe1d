"""The same k in every round."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from gradsift.check import real
from gradsift.control.base import Controller, Observation, Proposal
from gradsift.errors import GradsiftError


class FixedState(TypedDict):
    """k."""

    k: float


@dataclass(frozen=True)
class Fixed(Controller[FixedState]):
    """The same k in every round."""

    k: float
    varies: ClassVar[bool] = False
    learns: ClassVar[bool] = False

    def __post_init__(self) -> None:
        real("k", self.k, low=1)

    def init(self, dim: int, seed: int = 0) -> FixedState:
        """The state with k, which must not exceed ``dim``."""
        del seed
        if not 1 <= self.k <= dim:
            raise GradsiftError(f"k must be in [1, {dim}], got {self.k!r}")
        return FixedState(k=float(self.k))

    def largest_k(self, dim: int) -> float:
        """k."""
        del dim
        return float(self.k)

    def propose(self, state: FixedState, number: int) -> Proposal:
        """k."""
        return Proposal(number, state["k"])

    def update(self, state: FixedState, seen: Observation) -> FixedState:
        """The same state."""
        del seen
        return state
