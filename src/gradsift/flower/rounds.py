"""The server's side of a round, without Flower: k, what to order of the clients, and what becomes of their uploads."""

import math
from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.supercore import log
from torch import Tensor

from gradsift import check
from gradsift.control import Controller, Observation, Proposal, round_k, round_probe_k
from gradsift.cost import CostModel, NormalizedTime, Traffic
from gradsift.errors import GradsiftError, RunError
from gradsift.flower.layout import Named
from gradsift.flower.server_state import Pending, Settle, State
from gradsift.round import Round
from gradsift.simulation.schedule import Schedule
from gradsift.sparse import Sparse, difference, stack
from gradsift.sparsify import Sparsifier
from gradsift.wire import encoded_size

Record = dict[str, int | float]


class Plan(NamedTuple):
    """A round that is under way."""

    rnd: Round
    proposal: Proposal
    probe_k: int | None
    lr: float
    first: int  # the round that its clients are drawn in: its own, except inside a FedAvg period


class Upload(NamedTuple):
    """What one client sent, checked."""

    sent: Sparse  # ascending by index
    examples: float
    checksum: int
    session: str


class Rounds:
    """The driver: it holds the state and calls sparsifier, controller and cost; it contains no algorithm."""

    def __init__(
        self,
        weights: Tensor,
        rest: Named,
        sparsifier: Sparsifier,
        controller: Controller[Any],
        cost: CostModel,
        lr: Schedule,
        seed: int,
    ) -> None:
        self.sparsifier, self.controller, self.cost, self.lr, self.seed = sparsifier, controller, cost, lr, seed
        control = controller.init(dim=len(weights), seed=seed)
        self.state = State(weights, rest, torch.zeros(len(weights), dtype=torch.int32), control)

    def plan(self) -> Plan:
        """k and what else the next round needs."""
        number, dim = self.state.number + 1, len(self.state.weights)
        proposal = self.controller.propose(self.state.control, number)
        k = round_k(proposal.k, self.seed, number)
        probe_k = None if proposal.probe_k is None else round_probe_k(proposal.probe_k, k, self.seed, number)
        rnd = Round(number, k, self.seed, self.state.offset)
        rnd.validate(dim)
        first = number - (number - 1) % self.sparsifier.period(dim, k)
        lr = float(self.lr(first))
        check.real(f"lr of round {first}", lr, low=0.0)
        return Plan(rnd, proposal, probe_k, lr, first)

    def last_plan(self, pending: Pending) -> Plan:
        """The plan of the round that is done, as far as taking its losses needs it."""
        seen, number = pending.seen, self.state.number
        used_k = round_k(seen.proposal.k, self.seed, number)
        return Plan(Round(number, used_k, self.seed, self.state.offset), seen.proposal, seen.used_probe_k, 1.0, number)

    def missed(self, version: int) -> Sparse:
        """The weights that have changed since ``version``, as they are now."""
        indices = (self.state.changed > version).nonzero().squeeze(-1)
        return Sparse(indices, self.state.weights[indices], len(self.state.weights))

    def check_upload(self, plan: Plan, sent: Sparse) -> None:
        """Refuse an upload that no client following the order could have made."""
        coordinates = self.sparsifier.coordinates(len(self.state.weights), plan.rnd)
        if coordinates is not None and not torch.equal(sent.indices, coordinates.sort().values):
            raise GradsiftError("the indices are not those of the round")

    def observe(self, losses: Sequence[tuple[float, ...]]) -> Observation | None:
        """(D): the controller learns from the clients' losses of the pending round; from none, if none came."""
        pending, self.state.pending = self.state.pending, None
        if pending is None:
            return None
        wanted = 2 if pending.probe is None else 3
        good = [each for each in losses if len(each) == wanted]
        seen = pending.seen
        if good:
            before, after, *probe = means = [sum(column) / len(good) for column in zip(*good, strict=True)]
            if all(math.isfinite(mean) for mean in means):
                seen = seen._replace(loss_before=before, loss_after=after, loss_probe=probe[0] if probe else None)
            else:  # each is finite, their sum is not: nothing can be learned from them
                log(WARNING, "gradsift: round %d: the mean losses are %s: not used", seen.proposal.number, means)
        self.state.control = self.controller.update(self.state.control, seen)
        return seen

    def merge(self, plan: Plan, uploads: Mapping[int, Upload]) -> Record:
        """Steps 2 and 3 of Fig. 3, and the step along B; an empty round leaves everything as it is."""
        state, dim, number = self.state, len(self.state.weights), plan.rnd.number
        record: Record = {"round": number, "k": plan.proposal.k, "used-k": plan.rnd.k, "lr": plan.lr}
        record |= {"clients": len(uploads), "cost": state.spent}
        if not uploads:
            state.number, state.pending = number, None
            return record
        numbers = sorted(uploads)
        sent = stack([uploads[client].sent for client in numbers])
        examples = torch.tensor([uploads[client].examples for client in numbers], dtype=torch.float64)
        share = examples / examples.sum()
        merged = self.sparsifier.combine(sent, share, plan.rnd)
        after = _stepped(state.weights, merged, plan.lr)
        if not bool(torch.isfinite(after).all()):
            raise RunError(f"round {number}: the step leads to weights that are not finite; try a smaller server rate")
        cost = self.cost.round_cost(self._traffic(numbers, sent, merged))
        seen = Observation(plan.proposal, cost, used_k=plan.rnd.k, used_probe_k=plan.probe_k)
        probe = None
        if plan.probe_k is not None:
            less = self.sparsifier.prefix(sent, plan.rnd, plan.probe_k)
            probed = self.sparsifier.combine(less, share, plan.rnd._replace(k=plan.probe_k))
            seen = seen._replace(probe_cost=self.cost.round_cost(self._traffic(numbers, less, probed)))
            change = difference(probed, merged)
            probe = Sparse(change.indices, _stepped(after, change, plan.lr)[change.indices], dim)
            record |= {"probe-k": plan.probe_k, "probe-elements": change.size}
        before = Sparse(merged.indices, state.weights[merged.indices], dim)
        state.pending = Pending(seen, before, probe) if self.controller.learns else None
        self._remember(number, uploads, merged)
        state.number, state.weights = number, after
        state.changed[merged.indices] = number
        state.offset += sent.size
        state.spent += cost
        return record | {
            "cost": state.spent,
            "round-cost": cost,
            "up-elements": sent.size,
            "down-elements": merged.size,
        }

    def average(self, moved: Mapping[int, Named], uploads: Mapping[int, Upload]) -> None:
        """Buffers: floats averaged by share, the largest of what is counted; one that did not move is as it was."""
        weight = torch.tensor([upload.examples for upload in uploads.values()], dtype=torch.float64)
        for name in {name for buffers in moved.values() for name in buffers}:
            stacked = torch.stack([moved.get(client, {}).get(name, self.state.rest[name]) for client in uploads])
            if stacked.is_floating_point():
                mean = torch.tensordot(weight / weight.sum(), stacked.double(), dims=1)
                self.state.rest[name] = mean.to(stacked.dtype)
            else:
                self.state.rest[name] = stacked.amax(dim=0)
            self.state.moving.add(name)

    def _remember(self, number: int, uploads: Mapping[int, Upload], merged: Sparse) -> None:
        kept = torch.zeros(merged.dim, dtype=torch.bool)
        kept[merged.indices] = True
        for client, upload in uploads.items():
            mask = kept[upload.sent.indices]
            self.state.clients[client].settle = Settle(number, upload.session, upload.checksum, mask)

    def _traffic(self, numbers: Sequence[int], up: Sparse, down: Sparse) -> Traffic:
        """What the clients sent and received, or would have; in bytes of the wire format where the cost counts them."""
        known = sorted(self.state.clients)
        took_part = np.isin(known, numbers)
        sent = received = None
        if not isinstance(self.cost, NormalizedTime):
            sent, received = np.zeros(len(known)), float(encoded_size(down)) if down.size else 0.0
            sent[took_part] = encoded_size(up) if up.size else 0
        return Traffic.of(
            up.dim,
            up.size,
            down.size,
            took_part=took_part,
            dense=self.sparsifier.dense,
            up_bytes=sent,
            down_bytes=received,
        )


def _stepped(weights: Tensor, merged: Sparse, lr: float) -> Tensor:
    """``gradsift.apply`` without its checks."""
    return weights.index_add(0, merged.indices, merged.values.to(weights), alpha=-lr)
