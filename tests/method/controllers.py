"""Controllers that the tests of the round need: one that says what it is told to, and one with a k for each client."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gradsift import Controller, Observation, Proposal
from gradsift.control import K
from gradsift.control.estimate import estimated_sign


@dataclass
class Says(Controller[dict[str, Any]]):
    """The same k and k' in every round; it keeps what it was told."""

    k: K
    probe_k: K | None = None
    told: list[Observation] = field(default_factory=list)

    name = "says"

    @property
    def probes(self) -> bool:  # type: ignore[override]
        return self.probe_k is not None

    def init(self, dim: int, seed: int = 0) -> dict[str, Any]:
        return {"dim": dim, "seed": seed, "updates": 0}

    def propose(self, state: dict[str, Any], number: int) -> Proposal:
        del state
        return Proposal(number, self.k, self.probe_k)

    def update(self, state: dict[str, Any], seen: Observation) -> dict[str, Any]:
        self.told.append(seen)
        return {**state, "updates": state["updates"] + 1}

    def search_interval(self, state: dict[str, Any]) -> tuple[float, float] | None:
        return (1.0, float(state["dim"])) if self.probes else None


@dataclass(frozen=True)
class OneEach(Controller[list[float]]):
    """A k for each client, which follows the sign by a step of its own, in [1, dim]."""

    first: Sequence[float]
    probing: bool = True

    name = "one-each"

    @property
    def probes(self) -> bool:  # type: ignore[override]
        return self.probing

    def init(self, dim: int, seed: int = 0) -> list[float]:
        del seed
        return [*(min(k, dim) for k in self.first), float(dim)]

    def propose(self, state: list[float], number: int) -> Proposal:
        k = tuple(state[:-1])
        return Proposal(number, k, tuple(max(1.0, 0.6 * each) for each in k) if self.probing else None)

    def update(self, state: list[float], seen: Observation) -> list[float]:
        fell = seen.loss_before is not None and seen.loss_after is not None and seen.loss_after < seen.loss_before
        sign = estimated_sign(seen) if self.probing else (1 if fell else -1)
        moved = [k - (sign or 0) * (0.7 + client / 3) for client, k in enumerate(state[:-1])]
        return [*(min(max(k, 1.0), state[-1]) for k in moved), state[-1]]
