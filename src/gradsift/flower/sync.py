"""How a client follows an order before it acts: it catches up with the server's weights and settles its last upload."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradsift import round
from gradsift.errors import GradsiftError
from gradsift.flower.client_state import ClientState
from gradsift.flower.layout import Layout, Named
from gradsift.flower.protocol import NEVER, Order, checksum, unpack, upload_checksum
from gradsift.sparse import Sparse
from gradsift.wire import Limits, decode


class Behind(Exception):
    """The order starts from what this client does not hold; ``version`` is what it does. The server will send more."""

    def __init__(self, why: str, version: int) -> None:
        super().__init__(why)
        self.version = version


class Synced(NamedTuple):
    """A client as the order wants it."""

    state: ClientState
    before: Tensor | None  # the weights before the last round, if it still has them or was sent them
    reset: str = ""  # why it had to give up its residual


def sync(state: ClientState | None, order: Order, full: Mapping[str, Tensor] | None, buffers: Named) -> Synced:
    """Catch up and settle; ``full`` is everything, where the order has no base."""
    before = changed = None
    if order.base == NEVER:
        if full is None:
            raise GradsiftError("the order has neither a base nor whole weights")
        layout = Layout.read(order.layout)
        weights = full["weights"]
        rest = {name.removeprefix("rest/"): value for name, value in full.items() if name.startswith("rest/")}
    elif state is None:
        raise Behind("it holds no weights", NEVER)
    elif state.version < order.base:
        raise Behind(f"it holds version {state.version}, the order starts from {order.base}", state.version)
    else:
        layout, rest = state.layout, state.rest
        changed = decode(order.change, Limits.of(layout.dim))
        weights = replaced(state.weights, changed)
        if state.version == order.version - 1:
            before = state.weights
    if checksum(weights) != order.checksum:
        raise Behind(f"its weights do not become those of version {order.version}", NEVER)
    if order.before:
        before = replaced(weights, decode(order.before, Limits.of(layout.dim)))
    if state is None or state.layout != layout:
        state = ClientState(layout, weights, torch.zeros_like(weights), rest)
    state = replace(state, weights=weights, rest=rest | buffers, version=order.version)
    settled, reset = _settle(state, order, changed)
    return Synced(settled, before, reset)


def _settle(state: ClientState, order: Order, changed: Sparse | None) -> tuple[ClientState, str]:
    """The residual less what of the last merged upload was kept; and why it had to be given up instead."""
    if not order.settle_number or order.settle_checksum == state.settled:
        return state, ""
    if upload_checksum(state.session, state.uploaded, state.upload) != order.settle_checksum:
        state = replace(state, settled=order.settle_checksum)
        if order.settle_session in state.sessions.split() and order.settle_number < state.uploaded:
            return state, ""  # the server has gone back to before an upload that is settled here: the residual is right
        # An upload was merged that this state does not know of: what it holds may have been delivered already.
        why = f"it does not know its upload of round {order.settle_number}" if bool(state.residual.any()) else ""
        return replace(state, residual=torch.zeros_like(state.residual), upload=b"", report=""), why
    upload = decode(state.upload, Limits.of(state.layout.dim))
    if order.kept:
        kept = upload.indices[unpack(order.kept, upload.size)]
    elif changed is not None and not order.settled:
        kept = changed.indices
    else:
        raise Behind(f"it has not settled its upload of round {order.settle_number}", NEVER)
    merged = Sparse(kept, torch.zeros(len(kept)), upload.dim)
    residual = round.settle(order.method(), state.residual.clone(), upload, merged)
    return replace(state, residual=residual, settled=order.settle_checksum, upload=b"", report=""), ""


def replaced(weights: Tensor, new: Sparse) -> Tensor:
    """``weights`` with the elements of ``new`` in their places."""
    return weights.index_copy(0, new.indices, new.values.to(weights))
