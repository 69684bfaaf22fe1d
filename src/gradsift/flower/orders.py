"""From the server's state to the messages for the clients of a round; what is the same for many is encoded once."""

import dataclasses
import functools
import json
from typing import Any

from flwr.app import ArrayRecord, RecordDict

from gradsift.flower.layout import Layout
from gradsift.flower.protocol import BUFFERS, FULL, NEVER, RECORD, Order, checksum, pack, write
from gradsift.flower.rounds import Plan, Rounds
from gradsift.wire import encode


class Orders:
    """The orders of one exchange: made when the weights stand, thrown away after it."""

    def __init__(self, rounds: Rounds, layout: Layout, order: Order, plan: Plan, values: str) -> None:
        self.rounds, self.layout = rounds, layout
        state, sparsifier = rounds.state, rounds.sparsifier
        options: dict[str, Any] = dataclasses.asdict(sparsifier) if dataclasses.is_dataclass(sparsifier) else {}
        self.order = dataclasses.replace(
            order,
            number=plan.rnd.number,
            version=state.number,
            checksum=checksum(state.weights),
            sparsifier=json.dumps([sparsifier.name, options]),
            k=plan.rnd.k,
            seed=plan.rnd.seed,
            offset=plan.rnd.offset,
            lr=plan.lr,
            values=values,
        )
        self._change = functools.cache(lambda version: encode(rounds.missed(version)))

    def content(self, client: int, act: str, losses: bool) -> RecordDict:
        """What brings this client up to date, lets it settle, and tells it what to do."""
        state = self.rounds.state
        known = state.clients[client]
        order = dataclasses.replace(self.order, act=act)
        content = RecordDict()
        base = known.version
        if base != NEVER:
            order = dataclasses.replace(order, base=base, change=self._change(base))
            if state.moving:
                content[BUFFERS] = ArrayRecord({name: state.rest[name] for name in sorted(state.moving)})
        else:
            order = dataclasses.replace(order, layout=self.layout.text)
            content[FULL] = self._full
        if known.settle is not None:
            settle = known.settle
            only = base == settle.number - 1 and state.number == settle.number  # then ``change`` is what was kept
            order = dataclasses.replace(
                order,
                settle_number=settle.number,
                settle_session=settle.session,
                settle_checksum=settle.checksum,
                settled=settle.done,
                kept=b"" if settle.done or only else pack(settle.kept),
            )
        if losses and known.can_probe and state.pending is not None:
            before = b"" if base == state.number - 1 else self._before
            order = dataclasses.replace(order, losses=True, probe=self._probe, before=before)
        content[RECORD] = write(order)
        return content

    @functools.cached_property
    def _full(self) -> ArrayRecord:
        state = self.rounds.state
        # Flat: parameters of half precision are kept in full precision between the rounds.
        return ArrayRecord({"weights": state.weights} | {f"rest/{name}": value for name, value in state.rest.items()})

    @functools.cached_property
    def _before(self) -> bytes:
        pending = self.rounds.state.pending
        return b"" if pending is None else encode(pending.before)

    @functools.cached_property
    def _probe(self) -> bytes:
        pending = self.rounds.state.pending
        return b"" if pending is None or pending.probe is None else encode(pending.probe)
