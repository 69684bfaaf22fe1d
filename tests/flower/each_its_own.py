"""A controller that gives every client a k of its own."""

from dataclasses import dataclass

from gradsift import Controller, Observation, Proposal
from gradsift.control.estimate import estimated_sign


@dataclass(frozen=True)
class EachItsOwn(Controller[list[float]]):
    """All of them follow the sign, each by a step of its own, up to ``most``."""

    clients: int
    most: float = 40.0

    name = "each-its-own"
    probes = True

    def init(self, dim: int, seed: int = 0) -> list[float]:
        del seed
        return [min(4.5 + 3 * client, dim) for client in range(self.clients)]

    def propose(self, state: list[float], number: int) -> Proposal:
        return Proposal(number, tuple(state), tuple(k * 0.6 for k in state))

    def update(self, state: list[float], seen: Observation) -> list[float]:
        sign = estimated_sign(seen) or 0
        return [min(max(k - sign * (0.7 + client / 3), 2.0), self.most) for client, k in enumerate(state)]
