"""The server's side of a round, without Flower: what to ask of the clients, and what becomes of their uploads."""

import functools
import math
from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import NamedTuple

import numpy as np
import torch
from flwr.supercore import log
from torch import Tensor

from gradsift import round
from gradsift.control import Observation
from gradsift.errors import GradsiftError, RunError
from gradsift.flower.layout import Named
from gradsift.flower.server_state import Pending, Settle, State
from gradsift.method import Method
from gradsift.records.record import Record
from gradsift.round import Attendance, Outcome, Plan
from gradsift.sparse import Sparse, everything, kept, stack
from gradsift.sparsify import Round


class Upload(NamedTuple):
    """What one client sent, checked."""

    sent: Sparse  # ascending by index
    examples: float
    checksum: int
    session: str


class Rounds:
    """The driver: it keeps the server's state and calls the functions of ``gradsift.round``."""

    def __init__(self, method: Method, weights: Tensor, rest: Named) -> None:
        self.method = method
        changed = torch.zeros(len(weights), dtype=torch.int32)
        self.state = State(round.start(method, weights), rest, changed)

    def plan(self) -> Plan:
        """The next round."""
        return round.plan(self.method, self.state.server)

    def last_plan(self, pending: Pending) -> Plan:
        """The plan of the round that is done, as far as taking its losses needs it."""
        seen, server, steps = pending.seen, self.state.server, self.method.local.computations
        rnd = Round(server.number, seen.used_k or 1, self.method.seed, server.offset)
        before = server.steps - steps
        return Plan(rnd, seen.proposal, seen.used_probe_k, 1.0, server.number, steps, before, True, None)

    def plan_for(self, plan: Plan, client: int) -> Plan:
        """The plan as one client is to follow it: with its own k, where clients have different ones."""
        if plan.rnd.client_k is None:
            return plan
        own = plan.for_clients([list(self.state.clients).index(client)])
        return own._replace(rnd=own.rnd.at(own.rnd.k))

    def missed(self, version: int) -> Sparse:
        """The weights that have changed since ``version``, as they are now."""
        indices = (self.state.changed > version).nonzero().squeeze(-1)
        return Sparse(indices, self.state.weights[indices], len(self.state.weights))

    def upload_size(self, plan: Plan) -> int:
        """How many elements an upload by this plan has."""
        return self.method.sparsifier.upload_size(len(self.state.weights), plan.rnd) if plan.exchange else 0

    @functools.cached_property
    def value_type(self) -> str:
        """The type in which the values of an upload travel, by its name in the wire format."""
        values = self.method.values
        trial = values.rounded(everything(torch.zeros(1, dtype=self.state.weights.dtype)))
        return values.wire_type or str(trial.values.dtype).removeprefix("torch.")

    def check_upload(self, plan: Plan, sent: Sparse) -> None:
        """Refuse an upload that no client following the order could have made."""
        coordinates = self.method.sparsifier.coordinates(len(self.state.weights), plan.rnd)
        if coordinates is not None and not torch.equal(sent.indices, coordinates.sort().values):
            raise GradsiftError("the indices are not those of the round")

    def observe(self, losses: Sequence[tuple[float, ...]]) -> Observation | None:
        """(D): the controller learns from the clients' losses of the pending round; from none, if none came."""
        pending, self.state.pending = self.state.pending, None
        if pending is None:
            return None
        names = ("loss_before", "loss_after", "loss_probe")[: 2 if pending.probe is None else 3]
        good = [each for each in losses if len(each) == len(names)]
        means = [sum(column) / len(good) for column in zip(*good, strict=True)]
        if not all(math.isfinite(mean) for mean in means):  # each loss is finite, their sum is not
            log(WARNING, "gradsift: round %d: the mean losses are %s: not used", pending.seen.proposal.number, means)
            means = []
        reported = dict(zip(names, means, strict=False))
        self.state.server, observed = round.observe(self.method, self.state.server, pending.seen, reported)
        return observed

    def merge(self, plan: Plan, uploads: Mapping[int, Upload]) -> Record:
        """The server's part of a round; a round without uploads changes nothing but its number."""
        state, before = self.state, self.state.server
        if not uploads:
            state.server, record = round.skip(before, plan, len(state.clients))
            state.pending = None
            return record
        numbers, share = self._shares(uploads)
        sent = stack([uploads[client].sent for client in numbers])
        buffers = sum(state.rest[name].numel() for name in state.moving)
        attendance = Attendance(np.array([client in uploads for client in state.clients]), buffers)
        plan = plan.for_clients(np.flatnonzero(attendance.took_part))
        outcome = round.merge(self.method, before, plan, sent, share, attendance)
        if not bool(torch.isfinite(outcome.server.weights).all()):
            raise RunError(
                f"round {plan.rnd.number}: the step leads to weights that are not finite; try a smaller server rate"
            )
        round.note_counts(outcome.record, outcome.counts, attendance)
        state.pending = _pending(before.weights, outcome)
        self._remember(plan.rnd.number, uploads, outcome.merged)
        state.server = outcome.server
        state.changed[outcome.merged.indices] = plan.rnd.number
        return outcome.record

    def average(self, moved: Mapping[int, Named], uploads: Mapping[int, Upload]) -> None:
        """Average the buffers that training changed; a client that does not report one has it as it was."""
        numbers, share = self._shares(uploads)
        stacked = {
            name: torch.stack([moved.get(client, {}).get(name, self.state.rest[name]) for client in numbers])
            for name in {name for buffers in moved.values() for name in buffers}
        }
        self.state.rest |= round.average_buffers(stacked, share)
        self.state.moving |= stacked.keys()

    def _shares(self, uploads: Mapping[int, Upload]) -> tuple[list[int], Tensor]:
        """The clients of a round in the order of all clients, and [n] what each one's upload weighs."""
        numbers = [client for client in self.state.clients if client in uploads]
        examples = torch.tensor([uploads[client].examples for client in numbers], dtype=torch.float64)
        return numbers, examples / examples.sum()

    def _remember(self, number: int, uploads: Mapping[int, Upload], merged: Sparse) -> None:
        for client, upload in uploads.items():
            mask = kept(upload.sent, merged)
            self.state.clients[client].settle = Settle(number, upload.session, upload.checksum, mask)


def _pending(weights: Tensor, outcome: Outcome) -> Pending | None:
    if outcome.seen is None:
        return None
    merged, probe = outcome.merged, None
    if outcome.change is not None and outcome.probe is not None:
        indices = outcome.change.nonzero().squeeze(-1)
        probe = Sparse(indices, outcome.probe[indices], merged.dim)
    return Pending(outcome.seen, Sparse(merged.indices, weights[merged.indices], merged.dim), probe)
