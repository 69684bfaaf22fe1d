"""The controller of the paper's Figure 1, which changes k once, after a given round."""

from dataclasses import InitVar, dataclass
from typing import ClassVar, TypedDict

from gradsift.check import real
from gradsift.control.base import Controller, Observation, Proposal
from gradsift.errors import GradsiftError


class NoState(TypedDict):
    """The controller has nothing to remember."""


@dataclass(frozen=True)
class Switching(Controller[NoState]):
    """``first`` up to round ``after``, ``then`` in all later rounds; ``first`` in all rounds if ``after`` is None.

    ``after`` is not a field, since a run's configuration must not change: it depends on the global loss, and is known
    only when the run is resumed.
    """

    first: float
    then: float
    after: InitVar[int | None] = None
    name: ClassVar[str] = "switching"
    learns: ClassVar[bool] = False

    def __post_init__(self, after: int | None) -> None:
        """Refuse a k below 1."""
        real("first", self.first, low=1)
        real("then", self.then, low=1)
        object.__setattr__(self, "_after", after)

    def init(self, dim: int, seed: int = 0) -> NoState:
        """Refuse a k above the dimension."""
        del seed
        if self.largest_k(dim) > dim:
            raise GradsiftError(f"k must be in [1, {dim}], got {max(self.first, self.then)!r}")
        return NoState()

    def largest_k(self, dim: int) -> float:
        """Return the larger of the two."""
        del dim
        return float(max(self.first, self.then))

    def propose(self, state: NoState, number: int) -> Proposal:
        """Propose one of the two."""
        del state
        after: int | None = self._after  # type: ignore[attr-defined]
        return Proposal(number, float(self.first if after is None or number <= after else self.then))

    def update(self, state: NoState, seen: Observation) -> NoState:
        """Return the state unchanged."""
        del seen
        return state
