"""From the server's state to the messages for the clients of a round; what is the same for many is encoded once."""

import dataclasses
import functools

from flwr.app import ArrayRecord, RecordDict

from gradsift.flower.layout import Layout
from gradsift.flower.protocol import BUFFERS, FULL, NEVER, RECORD, Order, checksum, client_slots, pack, write
from gradsift.flower.rounds import Rounds
from gradsift.round import Plan
from gradsift.wire import encode


class Orders:
    """The orders of one exchange: made when the weights stand, thrown away after it."""

    def __init__(self, rounds: Rounds, layout: Layout, order: Order, plan: Plan) -> None:
        self.rounds, self.layout = rounds, layout
        self.plan, state = plan, rounds.state
        self.order = dataclasses.replace(
            order,
            number=plan.rnd.number,
            version=state.version,
            checksum=checksum(state.weights),
            slots=client_slots(rounds.method),
            seed=plan.rnd.seed,
            offset=plan.rnd.offset,
            lr=plan.lr,
            steps_before=plan.steps_before,
            exchange=plan.exchange,
        )
        self._change = functools.cache(lambda version: encode(rounds.missed(version)))

    def content(self, client: int, act: str, losses: bool) -> RecordDict:
        """What brings this client up to date, lets it settle, and tells it what to do."""
        state = self.rounds.state
        known = state.clients[client]
        order = dataclasses.replace(self.order, act=act, k=self.rounds.plan_for(self.plan, client).rnd.k)
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
            only = base == settle.number - 1 and state.version == settle.number  # then ``change`` is what was kept
            order = dataclasses.replace(
                order,
                settle_number=settle.number,
                settle_session=settle.session,
                settle_checksum=settle.checksum,
                settled=settle.done,
                kept=b"" if settle.done or only else pack(settle.kept),
            )
        if losses and known.can_probe and state.pending is not None:
            before = b"" if base == state.version - 1 else self._before
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
