"""The server's messages of one exchange, made from its state; parts that several clients receive are encoded once."""

import functools
from dataclasses import replace

from flwr.app import ArrayRecord, RecordDict

from gradsift.flower.layout import Layout, with_prefix
from gradsift.flower.protocol import BUFFERS, FULL, NEVER, RECORD, Order, checksum, client_slots, pack, payload, write
from gradsift.flower.rounds import Rounds
from gradsift.round import Plan
from gradsift.wire import encode


class Orders:
    """The orders of one exchange: the fields that they share, and those of each client."""

    def __init__(self, rounds: Rounds, layout: Layout, order: Order, plan: Plan) -> None:
        self.rounds, self.layout, self.plan = rounds, layout, plan
        self.bytes = 0  # of all messages so far
        self.order = replace(
            order,
            version=rounds.version,
            checksum=checksum(rounds.weights),
            slots=client_slots(rounds.method),
            seed=plan.rnd.seed,
            offset=plan.rnd.offset,
            lr=plan.lr,
            steps_before=plan.steps_before,
            exchange=plan.exchange,
            last_exchange=rounds.last_exchange,
        )
        self._change = functools.cache(lambda version: encode(rounds.missed(version)))

    def content(self, client: int, act: str, losses: bool) -> RecordDict:
        """The order for one client to update its weights, settle and act, as the content of a message."""
        rounds, content = self.rounds, RecordDict()
        known = rounds.clients[client]
        order = replace(self.order, act=act, k=rounds.plan_for(self.plan, client).rnd.k)
        if known.version == NEVER:
            order = replace(order, layout=self.layout.text)
            content[FULL] = self._full
        else:
            order = replace(order, base=known.version, change=self._change(known.version))
            if rounds.averaged and known.version < rounds.last_exchange:
                content[BUFFERS] = ArrayRecord({name: rounds.non_trainable[name] for name in sorted(rounds.averaged)})
        merged = known.merged_upload
        if merged is not None:
            # If the client missed that round and no other, the elements of ``change`` are those that were kept.
            implied = known.version == merged.number - 1 and rounds.version == merged.number
            order = replace(
                order,
                settle_number=merged.number,
                settle_session=merged.session,
                settle_checksum=merged.checksum,
                settled=merged.settled,
                kept=b"" if merged.settled or implied else pack(merged.kept),
            )
        if rounds.method.controller.weighs:
            order = replace(order, weigh=True)
        if losses and known.can_probe and rounds.pending is not None and rounds.method.controller.learns:
            before, probe = self._pending
            held = known.version == rounds.version - 1
            order = replace(order, losses=True, before=b"" if held else before, probe=probe)
        content[RECORD] = write(order)
        self.bytes += payload(content)
        return content

    @functools.cached_property
    def _full(self) -> ArrayRecord:
        # The flat weights, because parameters of half precision are kept in full precision between the rounds.
        rounds = self.rounds
        return ArrayRecord({"weights": rounds.weights} | with_prefix("rest/", rounds.non_trainable))

    @functools.cached_property
    def _pending(self) -> tuple[bytes, bytes]:
        """The weights before the pending round, and at its k'."""
        pending = self.rounds.pending
        assert pending is not None
        return encode(pending.before), b"" if pending.probe is None else encode(pending.probe)
