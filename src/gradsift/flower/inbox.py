"""The replies of one exchange, validated one by one: a reply that cannot be used is refused, and the others count."""

import functools
import math
from collections.abc import Iterable, Mapping
from logging import WARNING
from typing import NamedTuple

import torch
from flwr.app import Message, RecordDict
from flwr.supercore import log

from gradsift import check_tensors
from gradsift.errors import GradsiftError
from gradsift.flower.layout import Named
from gradsift.flower.metrics import examples
from gradsift.flower.orders import Orders
from gradsift.flower.protocol import BUFFERS, NEVER, RECORD, Report, payload, read, upload_checksum
from gradsift.flower.rounds import Upload
from gradsift.sparse import everything
from gradsift.wire import Limits, decode


class Refusal(NamedTuple):
    """A reply that was not used, and why."""

    number: int  # the round
    client: int | None
    node: int
    reason: str


class Inbox:
    """The clients' replies to ``orders``; those to train orders must have an upload."""

    def __init__(
        self, orders: Orders, replies: Iterable[Message], client_of: Mapping[int, int], weight_key: str, *, train: bool
    ) -> None:
        self.orders, self.client_of, self.weight_key = orders, client_of, weight_key
        self.rounds, self.method = orders.rounds, orders.rounds.method
        self.accepted: dict[int, RecordDict] = {}  # client -> the content of its reply
        self.uploads: dict[int, Upload] = {}
        self.buffers: dict[int, Named] = {}  # client -> the buffers that training changed
        self.refused: list[Refusal] = []
        self.bytes = 0
        self.resets = 0  # clients that had to discard their residual
        self.losses: dict[int, tuple[float, ...]] = {}
        self.mass: dict[int, float] = {}  # client -> the mass of its residual before its upload
        self.left: dict[int, float] = {}  # client -> the product of its settled residual with the last step
        self._replied: set[int] = set()
        values, weights = self.method.values, self.rounds.weights
        # Cached for each k: a sparsifier may have to try an upload of D zeros.
        self._upload_size = functools.cache(functools.partial(self.method.sparsifier.upload_size, len(weights)))
        trial = values.rounded(everything(torch.zeros(1, dtype=weights.dtype)))
        self._value_type = values.wire_type or str(trial.values.dtype).removeprefix("torch.")
        # In the order of the clients, so that sums do not depend on the order of arrival.
        for reply in sorted(replies, key=lambda reply: client_of.get(reply.metadata.src_node_id, -1)):
            self._receive(reply, train)

    def _receive(self, reply: Message, train: bool) -> None:
        node, number = reply.metadata.src_node_id, self.orders.order.number
        client = self.client_of.get(node)
        try:
            if reply.has_error():
                raise GradsiftError(f"it failed: {reply.error.reason}")
            self.bytes += payload(reply.content)
            if client is None:
                raise GradsiftError("it has not identified itself")
            self._take(client, reply.content, train)
        except GradsiftError as problem:
            self.refused.append(Refusal(number, client, node, str(problem)))
            sender = f"node {node}" if client is None else f"client {client}, node {node}"
            log(WARNING, "gradsift: round %d: refused %s: %s", number, sender, problem)

    def _take(self, client: int, content: RecordDict, train: bool) -> None:
        report, order = read(Report, content.get(RECORD)), self.orders.order
        if report.client != str(client):
            raise GradsiftError(f"it answers as client {report.client!r:.80}")
        if (report.session, report.number) != (order.session, order.number):
            raise GradsiftError(f"stale: it answers round {report.number} of session {report.session!r:.80}")
        if client in self._replied:
            raise GradsiftError("repeated: it has answered already")
        self._replied.add(client)
        self._acknowledge(client, report)
        if report.reset:
            self.resets += 1
            log(WARNING, "gradsift: round %d: client %d discarded its residual", report.number, client)
        if not all(map(math.isfinite, report.losses)):
            raise GradsiftError(f"its losses are not finite: {report.losses!r:.80}")
        weighed = (report.mass, *report.left)
        if report.mass < 0 or len(weighed) > 2 or not all(map(math.isfinite, weighed)):
            raise GradsiftError(f"the weight of its residual cannot be {weighed!r:.80}")
        if train:
            upload = self._upload(client, report, content)
            if BUFFERS in content.array_records:
                self.buffers[client] = self._changed_buffers(content)
            self.uploads[client], self.mass[client] = upload, report.mass
            if report.left:
                self.left[client] = report.left[0]
        self.losses[client] = report.losses
        self.accepted[client] = content

    def _acknowledge(self, client: int, report: Report) -> None:
        """Note which weights the client holds and that it has settled; refuse the reply unless both are as ordered."""
        order, known = self.orders.order, self.rounds.clients[client]
        if report.behind:
            known.version = report.version if 0 <= report.version < order.version else NEVER
            known.set_settled(False)
            raise GradsiftError("it is behind, and will be sent what it missed")
        if (report.version, report.checksum) != (order.version, order.checksum):
            known.version = NEVER
            raise GradsiftError(f"it holds version {report.version}, checksum {report.checksum:08x}, not the server's")
        known.version, known.can_probe = report.version, report.can_probe
        if known.merged_upload is not None and report.settled != known.merged_upload.checksum:
            raise GradsiftError(f"it did not settle its upload of round {known.merged_upload.number}")
        known.set_settled(True)

    def _upload(self, client: int, report: Report, content: RecordDict) -> Upload:
        plan, dim = self.rounds.plan_for(self.orders.plan, client), len(self.rounds.weights)
        size = self._upload_size(plan.rnd) if plan.exchange else 0
        if len(report.upload) > 16 * size + dim // 8 + 1024:
            raise GradsiftError(f"oversized: an upload of {len(report.upload)} bytes for {size} elements")
        sent = decode(report.upload, Limits(dim, size, dim=dim, types=(self._value_type,)))
        if sent.size != size:
            raise GradsiftError(f"its upload has {sent.size} elements, the order asks for {size}")
        coordinates = self.method.sparsifier.coordinates(dim, plan.rnd)
        if coordinates is not None and not torch.equal(sent.indices, coordinates.sort().values):
            raise GradsiftError("the indices are not those of the round")
        checksum = upload_checksum(report.session, report.number, report.upload)
        return Upload(sent, examples(content, self.weight_key), checksum, report.session)

    def _changed_buffers(self, content: RecordDict) -> Named:
        if self.orders.order.buffers == "refuse":
            raise GradsiftError("it sent buffers, but the strategy refuses them")
        if not self.orders.plan.exchange:
            raise GradsiftError("it sent buffers in a round without an exchange")
        try:
            buffers = dict(content.array_records[BUFFERS].to_torch_state_dict())
        except Exception as problem:  # numpy raises various errors for bytes that are not an array
            raise GradsiftError(f"its buffers cannot be read: {problem}") from problem
        for name, value in buffers.items():
            like = self.rounds.non_trainable.get(name)
            if like is None or like.shape != value.shape or like.dtype != value.dtype:
                raise GradsiftError(f"buffer {name!r} is {value.dtype} {list(value.shape)}, not as in the model")
            if value.is_floating_point():
                check_tensors.finite(f"buffer {name!r}", value)
        return buffers
