"""What the controller tests share: observations with a wanted sign, a small model of training, and a driver."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradsift import Controller, Observation, Proposal, round_k, round_probe_k
from gradsift.control import K
from gradsift.control.law import Prices


def one(k: K | None) -> float:
    """The k of a proposal that has one for all clients, as every controller of the package makes it."""
    assert isinstance(k, int | float)
    return k


def answer(proposal: Proposal, sign: int | None) -> Observation:
    """An observation whose estimated sign is ``sign``; None: unavailable, because the loss rose.

    The losses fall from 1 to 0 at k and at k' alike, so tau-hat is the cost of the probe and the sign is that of
    cost - probe_cost.
    """
    if sign is None:
        return Observation(proposal, cost=1.0, probe_cost=1.0, loss_before=0.0, loss_after=1.0, loss_probe=-1.0)
    return Observation(proposal, cost=2.0 + sign, probe_cost=2.0, loss_before=1.0, loss_after=0.0, loss_probe=0.0)


@dataclass(frozen=True)
class Training:
    """Training reduced to numbers: a k-element round costs 1 + 2 comm k / dim and takes off 0.1 k / (k + half).

    The cost of a unit of loss, (1 + 2 comm k / dim) (k + half) / (0.1 k), is convex, and least at ``best``. What waits
    grows with the cube root of the rounds, so a controller that weighs finds the same c in each.
    """

    dim: int = 10_000
    comm: float = 10.0
    half: float = 2000.0
    rounding: bool = True  # as a driver does (Definition 2); else k and k' are used as they are proposed
    seed: int = 0

    @property
    def best(self) -> float:
        """k*, where the derivative 2 comm / dim - half / k^2 (over 0.1) is zero."""
        return math.sqrt(self.half * self.dim / (2 * self.comm))

    def cost(self, k: float) -> float:
        return 1 + 2 * self.comm * k / self.dim

    @property
    def prices(self) -> Prices:
        return Prices.of(self.cost, self.dim)

    def decrease(self, k: float) -> float:
        return 0.1 * k / (k + self.half)

    def unit_cost(self, k: float) -> float:
        return self.cost(k) / self.decrease(k)

    def observe(self, proposal: Proposal) -> Observation:
        """What a driver would report of this proposal."""
        k, probe_k = one(proposal.k), None if proposal.probe_k is None else one(proposal.probe_k)
        used_k = used_probe_k = None
        if self.rounding:
            k = used_k = round_k(k, self.seed, proposal.number)
            if probe_k is not None:
                probe_k = used_probe_k = round_probe_k(probe_k, used_k, self.seed, proposal.number)
        return Observation(
            proposal,
            cost=self.cost(k),
            probe_cost=None if probe_k is None else self.cost(probe_k),
            loss_before=1.0,
            loss_after=1.0 - self.decrease(k),
            loss_probe=None if probe_k is None else 1.0 - self.decrease(probe_k),
            used_k=used_k,
            used_probe_k=used_probe_k,
            waiting=self.half / k * math.pow(proposal.number, 1 / 3),
            agreement=0.5,
        )


def drive(
    controller: Controller[Any],
    state: Any,
    observe: Callable[[Proposal], Observation],
    rounds: int,
    late: int = 0,
    first: int = 1,
) -> tuple[list[Proposal], Any]:
    """The proposals of ``rounds`` rounds, and the state after them; each answer arrives ``late`` rounds late."""
    proposals: list[Proposal] = []
    waiting: list[Observation] = []
    for number in range(first, first + rounds):
        proposals.append(controller.propose(state, number))
        waiting.append(observe(proposals[-1]))
        if len(waiting) > late:
            state = controller.update(state, waiting.pop(0))
    return proposals, state
