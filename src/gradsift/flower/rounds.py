"""The server's state between two rounds on Flower, and its part of a round apart from the messages.

Version m of the weights includes m rounds. With a plain step, ``Rounds.changed`` holds the version in which each weight
changed last, which is enough to find what a client at any version has missed. Otherwise ``Rounds.updates`` holds what
was sent in the last rounds, and a client that has missed more of them needs the full weights.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from typing import NamedTuple

import numpy as np
import torch
from flwr.supercore import log
from torch import Tensor

from gradsift import pricing, round, weighing
from gradsift.control import Observation
from gradsift.errors import RunError
from gradsift.flower.protocol import NEVER, Report, checksum
from gradsift.method import Method
from gradsift.records.record import Record
from gradsift.round import Named, Outcome, Participation, Plan
from gradsift.server import ERROR, Server
from gradsift.sparse import Sparse, kept, nothing, stack
from gradsift.wire import Limits, decode, encode

MOST_UPDATES = 100  # that the server keeps; clients that have missed more are sent the full weights


class Upload(NamedTuple):
    """One client's upload, validated."""

    sent: Sparse  # ascending by index
    examples: float
    checksum: int
    session: str


class MergedUpload(NamedTuple):
    """A client's last merged upload, and which of its elements were kept.

    The server sends this until the client has settled, and keeps it longer: a client that falls back to an older state
    needs it again.
    """

    number: int  # the round of the upload
    session: str
    checksum: int
    settled: bool  # whether the client has reported that it settled the upload
    kept: Tensor  # [k] bool, for the elements in ascending order of their indices


@dataclass
class Client:
    """What the server knows of one client."""

    version: int = NEVER  # version of the client's weights, as it last reported
    merged_upload: MergedUpload | None = None
    can_probe: bool = False

    def set_settled(self, settled: bool) -> None:
        """Note whether the client has settled its last merged upload."""
        if self.merged_upload is not None:
            self.merged_upload = self.merged_upload._replace(settled=settled)


class Pending(NamedTuple):
    """A merged round whose losses have not been reported yet, and the weights to take them at."""

    seen: Observation  # for the controller, still without losses
    before: Sparse  # the weights that the round changed, with their values before it; all of them if losses need them
    probe: Sparse | None  # the weights that would differ at k', with their values at k'


@dataclass(eq=False)
class Rounds:
    """The server's state, advanced by the functions of ``gradsift.round``."""

    method: Method
    server: Server
    non_trainable: Named
    changed: Tensor  # [D] int32: the version in which each weight changed last, with a plain step
    pending: Pending | None = None
    clients: dict[int, Client] = field(default_factory=dict)  # in ascending order of their numbers
    averaged: set[str] = field(default_factory=set)  # non-trainable entries that training has changed
    priced_for: tuple[int, ...] = ()  # the numbers for which the controller knows the prices of rounds
    last_exchange: int = 0  # the last round with an exchange, in which buffers were averaged; 0 if there is none
    updates: list[bytes] = field(default_factory=list)  # of the last rounds, encoded; empty with a plain step

    @property
    def weights(self) -> Tensor:
        """[D] the global weights."""
        return self.server.weights

    @property
    def version(self) -> int:
        """The version of the global weights."""
        return self.server.number

    @property
    def memory(self) -> Named:
        """The memory of the server's optimizer, which clients have too."""
        return {name: value for name, value in self.server.memory.items() if name != ERROR}

    @property
    def checksum(self) -> int:
        """Of the weights and the optimizer's memory."""
        return checksum(self.weights, self.memory)

    def register(self, reports: Iterable[Report]) -> None:
        """Note which weights newly connected clients hold; every later order checks it again."""
        for report in reports:
            client = self.clients.setdefault(int(report.client), Client())
            client.can_probe = report.can_probe
            current = report.version == self.version and report.checksum == self.checksum
            client.version = report.version if current or 0 <= report.version < self.version else NEVER
            client.set_settled(client.merged_upload is not None and report.settled == client.merged_upload.checksum)
        self.clients = dict(sorted(self.clients.items()))

    def can_follow(self, version: int) -> bool:
        """Whether a client with this version can be sent what it has missed, and not only the full weights."""
        return version != NEVER and (self.method.plain_step or self.version - version <= len(self.updates))

    def missed_updates(self, version: int) -> tuple[bytes, ...]:
        """The updates of the rounds after ``version``, one for each."""
        return tuple(self.updates[len(self.updates) - (self.version - version) :])

    def missed(self, version: int) -> Sparse:
        """The weights that have changed since ``version``, with their current values; for a plain step."""
        indices = (self.changed > version).nonzero().squeeze(-1)
        return Sparse(indices, self.weights[indices], len(self.weights))

    def plan(self) -> Plan:
        """The plan of the next round."""
        return round.plan(self.method, self.server)

    def plan_again(self) -> Plan:
        """The plan of the last merged round, while its losses are pending: the controller proposes the same k."""
        server, steps = self.server, self.method.local.computations
        return round.plan(self.method, replace(server, number=server.number - 1, steps=server.steps - steps))

    def plan_for(self, plan: Plan, client: int) -> Plan:
        """The plan for one client: with its own k, where the clients have different ones."""
        if plan.rnd.client_k is None:
            return plan
        single = plan.for_clients([list(self.clients).index(client)])
        return single._replace(rnd=single.rnd.at(single.rnd.k))

    @property
    def buffers(self) -> int:
        """The number of elements in the averaged buffers."""
        return sum(self.non_trainable[name].numel() for name in self.averaged)

    def price(self, count: int) -> None:
        """Tell a controller that plans k what rounds cost in which ``count`` clients take part."""
        if self.method.controller.plans and self.priced_for != (key := (len(self.clients), count, self.buffers)):
            prices = pricing.prices(self.method, len(self.weights), *key)
            self.server, self.priced_for = round.priced(self.method, self.server, prices), key

    def observe(
        self, losses: Sequence[tuple[float, ...]], left: Mapping[int, float], uploads: Mapping[int, Upload]
    ) -> Observation | None:
        """(D) of Fig. 3: the controller learns from what clients report of the pending round, which may be nothing."""
        pending, self.pending = self.pending, None
        if pending is None:
            return None
        names = ("loss_before", "loss_after", "loss_probe")[: 2 if pending.probe is None else 3]
        complete = [reported for reported in losses if len(reported) == len(names)]
        means = [sum(column) / len(complete) for column in zip(*complete, strict=True)]
        if not all(map(math.isfinite, means)):  # the sum of finite losses may overflow
            log(WARNING, "gradsift: round %d: the mean losses are %s: not used", pending.seen.proposal.number, means)
            means = []
        seen = dict(zip(names, means, strict=False)) | self._agreement(pending, left, uploads)
        self.server, observed = round.observe(self.method, self.server, pending.seen, seen)
        return observed

    def _agreement(
        self, pending: Pending, left: Mapping[int, float], uploads: Mapping[int, Upload]
    ) -> dict[str, float]:
        """``agreement`` of the pending round, from the products of the clients' residuals with its step or update."""
        clients, share = self._shares({client: uploads[client] for client in left})
        if not clients:
            return {}
        lr = self.method.lr(pending.seen.proposal.number)
        if lr == 0:  # then there was no step to compare with
            return {}
        if self.method.plain_step:
            indices = pending.before.indices
            step = Sparse(indices, pending.before.values - self.weights[indices], len(self.weights))
        else:  # the clients know the merged gradient only as the update, lr times it after rounding
            step = decode(self.updates[-1], Limits.of(len(self.weights)))
        merged = step.with_values(step.values / lr)
        products = torch.tensor([left[client] / lr for client in clients], dtype=torch.float64)
        return weighing.weighed({"agreement": weighing.agreement(products, share, merged)})

    def merge(
        self, plan: Plan, uploads: Mapping[int, Upload], mass: Mapping[int, float], seconds: float = 0.0
    ) -> Record:
        """Merge the uploads, which took ``seconds``, and step; a round without uploads is only counted.

        ``mass`` is that of each client's residual before its upload.
        """
        before = self.server
        if not uploads:
            waited = self.method.cost.waiting_cost(seconds)
            self.server, record = round.skip(before, plan, len(self.clients), waited)
            self.pending = None
            self._keep(nothing(self.weights))
            return record
        clients, share = self._shares(uploads)
        sent = stack([uploads[client].sent for client in clients])
        participation = Participation(np.array([client in uploads for client in self.clients]), self.buffers, seconds)
        plan = plan.for_clients(np.flatnonzero(participation.took_part))
        masses = torch.tensor([mass[client] for client in clients], dtype=torch.float64)
        weighed = masses if self.method.controller.weighs else None
        outcome, number = round.merge(self.method, before, plan, sent, share, participation, weighed), plan.rnd.number
        if not bool(torch.isfinite(outcome.server.weights).all()):
            raise RunError(f"round {number}: the step leads to weights that are not finite; try a smaller lr")
        round.note_counts(outcome.record, outcome.counts, participation)
        self.pending = _pending(self.method, before.weights, outcome)
        for client, upload in uploads.items():
            mask = kept(upload.sent, outcome.merged)
            self.clients[client].merged_upload = MergedUpload(number, upload.session, upload.checksum, False, mask)
        self.server = outcome.server
        self.changed[outcome.merged.indices] = number
        self._keep(outcome.sent)
        return outcome.record

    def _keep(self, sent: Sparse) -> None:
        """Keep the update of a round, and those before it while all of them are smaller than the full weights."""
        if self.method.plain_step:
            return
        self.updates.append(encode(sent, values=self.method.down_values.wire_type))  # rounded already: exact
        while len(self.updates) > 1 and not self._fit(self.updates):
            del self.updates[0]

    def _fit(self, updates: Sequence[bytes]) -> bool:
        full = self.weights.nbytes * (1 + len(self.memory))
        return len(updates) <= MOST_UPDATES and sum(map(len, updates)) <= full

    def average_buffers(self, plan: Plan, buffers: Mapping[int, Named], uploads: Mapping[int, Upload]) -> None:
        """In a round with an exchange, average the buffers that training changed since the last one.

        A client that does not send one has kept the server's.
        """
        if not plan.exchange:
            return
        clients, share = self._shares(uploads)
        stacked = {
            name: torch.stack([buffers.get(client, {}).get(name, self.non_trainable[name]) for client in clients])
            for name in {name for changed in buffers.values() for name in changed}
        }
        self.non_trainable |= round.average_buffers(stacked, share)
        self.averaged |= stacked.keys()
        self.last_exchange = plan.rnd.number

    def _shares(self, uploads: Mapping[int, Upload]) -> tuple[list[int], Tensor]:
        """The clients that uploaded, in the order of all clients, and [n] the weight of each upload."""
        clients = [client for client in self.clients if client in uploads]
        examples = torch.tensor([uploads[client].examples for client in clients], dtype=torch.float64)
        return clients, examples / examples.sum()


def _pending(method: Method, weights: Tensor, outcome: Outcome) -> Pending | None:
    if outcome.observation is None:
        return None
    merged, probe = outcome.merged, None
    if outcome.probe_change is not None and outcome.probe_weights is not None:
        indices = outcome.probe_change.nonzero().squeeze(-1)
        probe = Sparse(indices, outcome.probe_weights[indices], merged.dim)
    seen = outcome.observation.seen(weighing.weighed(outcome.counts))
    moved = merged.indices
    if not method.plain_step and method.controller.learns:
        moved = (weights != outcome.server.weights).nonzero().squeeze(-1)  # with momentum, all of them
    return Pending(seen, Sparse(moved, weights[moved], merged.dim), probe)
