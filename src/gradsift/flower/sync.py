"""Prepares a client for an order: updates its weights, and settles (subtracts from its residual what was kept)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradsift import round
from gradsift.errors import GradsiftError
from gradsift.flower.client_state import ClientState
from gradsift.flower.layout import Layout, Named, under_prefix
from gradsift.flower.protocol import NEVER, Order, checksum, unpack, upload_checksum
from gradsift.server import taken
from gradsift.sparse import Sparse
from gradsift.wire import Limits, decode


class Behind(Exception):
    """The client cannot follow an order before it receives the changes after ``version``."""

    def __init__(self, why: str, version: int) -> None:
        super().__init__(why)
        self.version = version


class Followed(NamedTuple):
    """The weights of an order's version, and what the client learned on the way there."""

    weights: Tensor
    memory: Named  # of the server's optimizer
    before: Tensor | None = None  # the weights before the last round, if the client has them
    change: Sparse | None = None  # the weights that changed or, if updates are sent, the last update


class Synced(NamedTuple):
    """The result of ``sync``."""

    state: ClientState
    followed: Followed
    reset: str  # why the client discarded its residual; empty if it did not


def sync(state: ClientState | None, order: Order, full: Mapping[str, Tensor] | None, buffers: Named) -> Synced:
    """Update the weights and settle; ``full`` has the full weights if the order has no base."""
    if order.base == NEVER:
        if full is None:
            raise GradsiftError("the order has neither a base version nor full weights")
        layout, non_trainable = Layout.read(order.layout), under_prefix("rest/", full)
        followed = Followed(full["weights"], under_prefix("memory/", full))
    elif state is None:
        raise Behind("it holds no weights", NEVER)
    elif state.version < order.base:
        raise Behind(f"it holds version {state.version}, the order starts from {order.base}", state.version)
    else:
        layout, non_trainable = state.layout, state.non_trainable
        followed = _followed(state, order)
    weights, memory = followed.weights, followed.memory
    if checksum(weights, memory) != order.checksum:
        raise Behind(f"its updated weights differ from version {order.version}", NEVER)
    if order.before:
        followed = followed._replace(before=replaced(weights, decode(order.before, Limits.of(layout.dim))))
    if state is None or state.layout != layout:
        state = ClientState(layout, weights, torch.zeros_like(weights), non_trainable)
    # A client that trained last before the exchange, or is ahead of the server, starts from the server's buffers.
    local = state.local_buffers if order.base != NEVER and state.uploaded > order.last_exchange else {}
    non_trainable = non_trainable | buffers
    state = replace(state, weights=weights, memory=memory, version=order.version)
    state = replace(state, non_trainable=non_trainable, local_buffers=local)
    settled, reset = _settle(state, order, followed.change)
    return Synced(settled, followed, reset)


def _followed(state: ClientState, order: Order) -> Followed:
    """The state's weights with the changes that an order has for them."""
    limits, weights, memory, before = Limits.of(state.layout.dim), state.weights, state.memory, None
    if order.change:
        change = decode(order.change, limits)
        before = weights if state.version == order.version - 1 else None
        return Followed(replaced(weights, change), memory, before, change)
    updates, optimizer = [decode(data, limits) for data in order.updates], order.method().server
    for update in updates[state.version - order.base :]:  # the state may have taken some that the server sends again
        before = weights
        if update.size:  # a round in which nothing was merged makes no step
            weights, memory = taken(optimizer, weights, memory, update)
    return Followed(weights, memory, before, updates[-1] if updates else None)


def _settle(state: ClientState, order: Order, changed: Sparse | None) -> tuple[ClientState, str]:
    """The state after settling the last merged upload, and why the residual was discarded, or ""."""
    if not order.settle_number or order.settle_checksum == state.last_settled:
        return state, ""
    if upload_checksum(state.session, state.uploaded, state.upload) != order.settle_checksum:
        state = replace(state, last_settled=order.settle_checksum)
        if order.settle_session in state.sessions.split() and order.settle_number < state.uploaded:
            return state, ""  # the server went back to a round that is settled here, so the residual is right
        # The server merged an upload that this state does not have: its elements may still be in the residual.
        why = f"it no longer has its upload of round {order.settle_number}" if bool(state.residual.any()) else ""
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
    return replace(state, residual=residual, last_settled=order.settle_checksum, upload=b"", report=""), ""


def replaced(weights: Tensor, elements: Sparse) -> Tensor:
    """``weights`` with the values of ``elements`` in their places."""
    return weights.index_copy(0, elements.indices, elements.values.to(weights))
