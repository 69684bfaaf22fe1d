"""The wrapper of a controller that checks every call."""

from typing import TypeVar

from gradsift.check import Checked, integer
from gradsift.control.base import Controller, Observation, Proposal
from gradsift.control.law import Prices

S = TypeVar("S")


class CheckedController(Checked, Controller[S]):
    """The controller ``inner`` with checked arguments."""

    inner: Controller[S]

    def __init__(self, inner: Controller[S]) -> None:
        super().__init__(inner, "name", "probes", "learns", "weighs", "plans", "varies")

    def init(self, dim: int, seed: int = 0) -> S:
        """The state before the first round, for vectors of ``dim`` elements."""
        integer("dim", dim, 1)
        integer("seed", seed, 0, 2**64 - 1)
        return self.inner.init(dim, seed)

    def propose(self, state: S, number: int) -> Proposal:
        """k (and k') for round ``number``, counted from 1."""
        integer("round number", number, 1)
        return self.inner.propose(state, number)

    def update(self, state: S, seen: Observation) -> S:
        """The state after learning from the observation of a round; ``state`` itself is not changed."""
        seen.validate(self.probes)
        return self.inner.update(state, seen)

    def priced(self, state: S, prices: Prices | None) -> S:
        """The state with the prices of rounds."""
        if prices is not None:
            prices.validate()
        return self.inner.priced(state, prices)

    def search_interval(self, state: S) -> tuple[float, float] | None:
        """The interval that is being searched now, or None if the controller does not search."""
        return self.inner.search_interval(state)

    def largest_k(self, dim: int) -> float:
        """The largest k that any round may propose."""
        return self.inner.largest_k(dim)
