"""The controller of Figure 1: one k, then another."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from gradsift.check import real
from gradsift.control.base import Controller, Observation, Proposal
from gradsift.errors import GradsiftError


class NoState(TypedDict):
    """Nothing to remember."""


@dataclass(frozen=True)
class Switching(Controller[NoState]):
    """``first`` until ``switch_after`` is called with the number of a round, ``then`` in all rounds after it.

    The round depends on the global loss, which no controller sees: whoever drives the run calls ``switch_after``, and
    calls it again when the run is resumed.
    """

    first: float
    then: float
    name: ClassVar[str] = "switching"
    learns: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse a k that no dim can make right."""
        real("first", self.first, low=1)
        real("then", self.then, low=1)
        object.__setattr__(self, "_last", None)

    def switch_after(self, number: int) -> None:
        """The last round with the first k."""
        object.__setattr__(self, "_last", number)

    def init(self, dim: int, seed: int = 0) -> NoState:
        """Refuse a k above the dimension."""
        del seed
        for k in (self.first, self.then):
            if k > dim:
                raise GradsiftError(f"k must be in [1, {dim}], got {k!r}")
        return NoState()

    def largest_k(self, dim: int) -> float:
        """The larger of the two."""
        del dim
        return float(max(self.first, self.then))

    def propose(self, state: NoState, number: int) -> Proposal:
        """One of the two."""
        del state
        last: int | None = self._last  # type: ignore[attr-defined]
        return Proposal(number, float(self.first if last is None or number <= last else self.then))

    def update(self, state: NoState, seen: Observation) -> NoState:
        """Nothing."""
        del seen
        return state
