"""A recorded sequence of k: "sequence x under communication time y" of the paper's Figs. 7 and 8."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict

from gradsift.check import real
from gradsift.control.base import Controller, Observation, Proposal
from gradsift.errors import GradsiftError


class ReplayState(TypedDict):
    """Empty: the sequence is an option of the controller."""


@dataclass(frozen=True)
class Replay(Controller[ReplayState]):
    """``sequence[m - 1]`` elements in round m; an error in a round after the end of the sequence."""

    sequence: Sequence[float]
    learns: ClassVar[bool] = False

    def __post_init__(self) -> None:
        try:
            sequence = tuple(self.sequence)
        except TypeError:
            sequence = ()
        if not sequence or isinstance(self.sequence, str):
            raise GradsiftError(f"sequence must be a list of numbers, and not empty, got {self.sequence!r}")
        for number, k in enumerate(sequence, start=1):
            real(f"k of round {number}", k, low=1)
        object.__setattr__(self, "sequence", sequence)

    def init(self, dim: int, seed: int = 0) -> ReplayState:
        """The empty state; an error if a k exceeds ``dim``."""
        del seed
        for number, k in enumerate(self.sequence, start=1):
            if k > dim:
                raise GradsiftError(f"k must be in [1, {dim}], got {k!r} for round {number}")
        return ReplayState()

    def largest_k(self, dim: int) -> float:
        """The largest k of the sequence."""
        del dim
        return float(max(self.sequence))

    def propose(self, state: ReplayState, number: int) -> Proposal:
        """The recorded k."""
        del state
        if number > len(self.sequence):
            raise GradsiftError(f"round {number} is outside the recorded sequence of {len(self.sequence)} rounds")
        return Proposal(number, float(self.sequence[number - 1]))

    def update(self, state: ReplayState, seen: Observation) -> ReplayState:
        """The same state."""
        del seen
        return state
