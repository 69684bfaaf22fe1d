"""The server's messages of one exchange, made from its state; parts that several clients receive are encoded once."""

import functools
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, RecordDict

from gradsift.flower.layout import Layout, with_prefix
from gradsift.flower.protocol import BUFFERS, FULL, RECORD, Order, client_slots, pack, payload, write
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
            checksum=rounds.checksum,
            slots=client_slots(rounds.method),
            seed=plan.rnd.seed,
            offset=plan.rnd.offset,
            lr=plan.lr,
            steps_before=plan.steps_before,
            exchange=plan.exchange,
            last_exchange=rounds.last_exchange,
        )
        self._missed = functools.cache(self._encoded_missed)

    def content(self, client: int, act: str, losses: bool) -> RecordDict:
        """The order for one client to update its weights, settle and act, as the content of a message."""
        rounds, content = self.rounds, RecordDict()
        known = rounds.clients[client]
        follows = rounds.can_follow(known.version)
        order = replace(self.order, act=act, k=rounds.plan_for(self.plan, client).rnd.k)
        if not follows:
            order = replace(order, layout=self.layout.text)
            content[FULL] = self._full
        else:
            order = replace(order, base=known.version, **self._missed(known.version))
            if rounds.averaged and known.version < rounds.last_exchange:
                content[BUFFERS] = ArrayRecord({name: rounds.non_trainable[name] for name in sorted(rounds.averaged)})
        merged = known.merged_upload
        if merged is not None:
            # If the client missed that round and no other, the elements that it is sent are those that were kept.
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
            # A client that takes the updates one by one comes through the version before the last. One that has taken
            # them already is sent what it had before: with momentum that is all weights.
            oldest = rounds.version - 1 if rounds.method.plain_step else 0
            held = follows and oldest <= known.version < rounds.version
            order = replace(order, losses=True, before=b"" if held else before, probe=probe)
        content[RECORD] = write(order)
        self.bytes += payload(content)
        return content

    def _encoded_missed(self, version: int) -> dict[str, Any]:
        """The fields of an order with what a client at ``version`` has missed."""
        if self.rounds.method.plain_step:
            return {"change": encode(self.rounds.missed(version))}
        return {"updates": self.rounds.missed_updates(version)}

    @functools.cached_property
    def _full(self) -> ArrayRecord:
        # The flat weights, because parameters of half precision are kept in full precision between the rounds.
        rounds = self.rounds
        rest = with_prefix("memory/", rounds.memory) | with_prefix("rest/", rounds.non_trainable)
        return ArrayRecord({"weights": rounds.weights} | rest)

    @functools.cached_property
    def _pending(self) -> tuple[bytes, bytes]:
        """The weights before the pending round, and at its k'."""
        pending = self.rounds.pending
        assert pending is not None
        return encode(pending.before), b"" if pending.probe is None else encode(pending.probe)
