"""Controllers whose every call is checked: bad input is refused by a message that names it."""

from typing import Any, TypeVar

from gradsift.check import integer
from gradsift.control.base import Controller, Observation, Proposal

S = TypeVar("S")


class CheckedController(Controller[S]):
    """Another controller behind checks; ``inner`` is the one behind them."""

    def __init__(self, inner: Controller[S]) -> None:
        self.inner = inner
        vars(self).update({name: getattr(inner, name) for name in ("name", "probes", "learns", "varies")})

    def __getattr__(self, name: str) -> Any:
        if "inner" not in vars(self):  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return repr(self.inner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CheckedController) and self.inner == other.inner

    def __hash__(self) -> int:
        return hash(self.inner)

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
        """The state after learning what became of a proposal; ``state`` itself is left as it was."""
        seen.validate(self.probes)
        return self.inner.update(state, seen)

    def search_interval(self, state: S) -> tuple[float, float] | None:
        """The interval that is being searched now; None: there is none."""
        return self.inner.search_interval(state)

    def largest_k(self, dim: int) -> float:
        """The largest k that any round may propose."""
        return self.inner.largest_k(dim)


def unchecked(controller: Controller[S]) -> Controller[S]:
    """The controller itself, without checks: for a driver that has checked what it passes."""
    return controller.inner if isinstance(controller, CheckedController) else controller
