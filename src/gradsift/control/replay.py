"""A recorded sequence of k, played again: "sequence x under communication time y" of the paper's Figs. 7 and 8."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict

from gradsift.check import real
from gradsift.control.base import Controller, Observation, Proposal
from gradsift.errors import GradsiftError


class ReplayState(TypedDict):
    """The sequence lives in the controller; there is nothing to remember."""


@dataclass(frozen=True)
class Replay(Controller[ReplayState]):
    """``sequence[m - 1]`` elements in round m; a run longer than its sequence is an error."""

    sequence: Sequence[float]
    learns: ClassVar[bool] = False

    def start(self, dim: int, seed: int) -> ReplayState:
        """Refuse a sequence that holds an impossible k."""
        del seed
        if not hasattr(self.sequence, "__getitem__") or len(self.sequence) == 0:
            raise GradsiftError(f"sequence must be a list of numbers, and not empty, got {self.sequence!r}")
        for number, k in enumerate(self.sequence, start=1):
            real(f"k of round {number}", k)
            if not 1 <= k <= dim:
                raise GradsiftError(f"k must be in [1, {dim}], got {k!r} for round {number}")
        return ReplayState()

    def propose(self, state: ReplayState, number: int) -> Proposal:
        """The recorded k."""
        del state
        if not 1 <= number <= len(self.sequence):
            raise GradsiftError(f"round {number} is outside the recorded sequence of {len(self.sequence)} rounds")
        return Proposal(number, float(self.sequence[number - 1]))

    def learn(self, state: ReplayState, seen: Observation) -> ReplayState:
        """Nothing."""
        del seen
        return state
