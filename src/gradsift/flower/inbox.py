"""The replies of one exchange, checked one by one: one that cannot be used is refused, and the others go on."""

import math
from collections.abc import Mapping
from logging import WARNING
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.supercore import log

from gradsift import check_tensors
from gradsift.errors import GradsiftError
from gradsift.flower.layout import Named
from gradsift.flower.metrics import examples
from gradsift.flower.protocol import BUFFERS, NEVER, RECORD, Order, Report, payload, read, upload_checksum
from gradsift.flower.rounds import Rounds, Upload
from gradsift.flower.server_state import Client
from gradsift.round import Plan
from gradsift.wire import Limits, decode


class Refusal(NamedTuple):
    """What was not used, and why."""

    number: int  # the round
    client: int | None
    node: int
    reason: str


class Inbox:
    """What the clients answered to ``order``."""

    def __init__(self, rounds: Rounds, plan: Plan, order: Order, client_of: Mapping[int, int], weight_key: str) -> None:
        self.rounds, self.plan, self.order, self.client_of, self.weight_key = rounds, plan, order, client_of, weight_key
        self.uploads: dict[int, Upload] = {}
        self.losses: dict[int, tuple[float, ...]] = {}
        self.moved: dict[int, Named] = {}
        self.contents: dict[int, RecordDict] = {}  # of the clients that are not refused
        self.refused: list[Refusal] = []
        self.bytes = 0
        self.resets = 0  # clients that had to give up their residual
        self._answered: set[int] = set()
        self._sizes: dict[int, int] = {}  # of uploads, by k

    def take(self, reply: Message, *, train: bool) -> None:
        """Use a reply, or refuse it."""
        node = reply.metadata.src_node_id
        client = self.client_of.get(node)
        try:
            if reply.has_error():
                raise GradsiftError(f"it failed: {reply.error.reason}")
            self.bytes += payload(reply.content)
            if client is None:
                raise GradsiftError("it has not said who it is")
            self._take(client, reply.content, train)
        except GradsiftError as problem:
            self._refuse(client, node, str(problem))

    @property
    def all_losses(self) -> list[tuple[float, ...]]:
        """The reported losses, in the order of the clients."""
        return [self.losses[client] for client in sorted(self.losses)]

    def _refuse(self, client: int | None, node: int, reason: str) -> None:
        self.refused.append(Refusal(self.plan.rnd.number, client, node, reason))
        who = "" if client is None else f"client {client}, "
        log(WARNING, "gradsift: round %d: refused %snode %d: %s", self.plan.rnd.number, who, node, reason)

    def _take(self, client: int, content: RecordDict, train: bool) -> None:
        order, known = self.order, self.rounds.state.clients[client]
        report = read(Report, content.get(RECORD))
        if report.client != str(client):
            raise GradsiftError(f"it answers as client {report.client!r:.80}")
        if (report.session, report.number) != (order.session, order.number):
            raise GradsiftError(f"stale: it answers round {report.number} of session {report.session!r:.80}")
        if client in self._answered:
            raise GradsiftError("repeated: it has answered already")
        self._answered.add(client)
        if report.behind:
            known.version = report.version if 0 <= report.version < order.version else NEVER
            known.settle = None if known.settle is None else known.settle._replace(done=False)
            raise GradsiftError("it is behind, and will be sent what it missed")
        if (report.version, report.checksum) != (order.version, order.checksum):
            known.version = NEVER
            raise GradsiftError(f"it holds version {report.version}, checksum {report.checksum:08x}, not ours")
        self._acknowledge(known, report)
        if report.reset:
            self.resets += 1
            log(WARNING, "gradsift: round %d: client %d gave up its residual", self.plan.rnd.number, client)
        if any(not math.isfinite(loss) for loss in report.losses):
            raise GradsiftError(f"its losses are {report.losses!r:.80}")
        if train:
            upload = self._upload(client, report, content)
            self.moved |= self._buffers(client, content)
            self.uploads[client] = upload
        self.losses[client] = report.losses
        self.contents[client] = content

    @staticmethod
    def _acknowledge(known: Client, report: Report) -> None:
        known.version, known.can_probe = report.version, report.can_probe
        if known.settle is not None and report.settled != known.settle.checksum:
            raise GradsiftError(f"it did not settle its upload of round {known.settle.number}")
        known.settle = None if known.settle is None else known.settle._replace(done=True)

    def _upload(self, client: int, report: Report, content: RecordDict) -> Upload:
        plan = self.rounds.plan_for(self.plan, client)
        dim, size = len(self.rounds.state.weights), self._size(plan)
        if len(report.upload) > 16 * size + dim // 8 + 1024:
            raise GradsiftError(f"oversized: an upload of {len(report.upload)} bytes for {size} elements")
        sent = decode(report.upload, Limits(dim, size, dim=dim, types=(self.rounds.value_type,)))
        if sent.size != size:
            raise GradsiftError(f"its upload has {sent.size} elements, the order asks for {size}")
        self.rounds.check_upload(plan, sent)
        checksum = upload_checksum(report.session, report.number, report.upload)
        return Upload(sent, examples(content, self.weight_key), checksum, report.session)

    def _size(self, plan: Plan) -> int:
        if plan.rnd.k not in self._sizes:
            self._sizes[plan.rnd.k] = self.rounds.upload_size(plan)
        return self._sizes[plan.rnd.k]

    def _buffers(self, client: int, content: RecordDict) -> dict[int, Named]:
        if BUFFERS not in content.array_records:
            return {}
        if self.order.buffers == "refuse":
            raise GradsiftError("it sent buffers, which are refused")
        rest = self.rounds.state.rest
        try:
            given = dict(content.array_records[BUFFERS].to_torch_state_dict())
        except Exception as problem:  # whatever numpy makes of bytes that are not an array
            raise GradsiftError(f"its buffers cannot be read: {problem}") from problem
        for name, value in given.items():
            like = rest.get(name)
            if like is None or like.shape != value.shape or like.dtype != value.dtype:
                raise GradsiftError(f"buffer {name!r} is {value.dtype} {list(value.shape)}, not as in the model")
            if value.is_floating_point():
                check_tensors.finite(f"buffer {name!r}", value)
        return {client: given}
