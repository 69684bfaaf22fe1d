"""What rounding takes from a value stays where it was taken: with a client on the way up, with the server going down.

Whole runs of rounds, coordinate by coordinate, with step sizes that change and clients that come and go.

Shapes: N clients, D weights; gradients and delivered [D] of each client and round.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradsift
from gradsift import FewBits, LocalSteps, Method, densify, round
from gradsift.round import Participation
from gradsift.server import ERROR, Server
from gradsift.server_step import SGD, Momentum
from gradsift.sparse import kept
from tests.examples import examples
from tests.sparsify.cases import ALL

CLIENTS, DIM, ROUNDS = 4, 24, 12
SIZES = torch.tensor([4.0, 2.0, 1.0, 1.0], dtype=torch.float64)
KINDS = [FewBits(bits, stochastic) for bits in (1, 2, 3, 4, 8) for stochastic in (False, True)]
few = pytest.mark.parametrize("kind", KINDS, ids=str)


class History(NamedTuple):
    """A run: for each client the rounds that it took part in, with what it computed and delivered; and the server's."""

    clients: list[list[tuple[Tensor, Tensor]]]  # (gradient, delivered) [D]
    residual: Tensor  # [N, D]
    merged: list[tuple[float, Tensor]]  # (lr, B)
    delivered: list[Tensor]  # [D] the share-weighted sum of what arrived
    sent: list[Tensor]
    server: Server
    start: Tensor


def falling(number: int) -> float:
    """A step size that changes in every round, and is far from a power of two."""
    return 0.7 / (1 + 0.3 * number)


def run(sparsifier: str, seed: int, *, decay: float = 1.0, **slots: Any) -> History:
    local = LocalSteps(1, residual_decay=decay)
    controller = gradsift.controller("fixed", k=5)
    method = Method.of(sparsifier=sparsifier, controller=controller, local=local, lr=falling, seed=seed, **slots)
    source = np.random.default_rng(seed)
    start = torch.from_numpy(source.standard_normal(DIM))
    server, residual = round.start(method, start), torch.zeros(CLIENTS, DIM, dtype=torch.float64)
    history = History([[] for _ in range(CLIENTS)], residual, [], [], [], server, start)
    for _ in range(ROUNDS):
        present = np.flatnonzero(source.random(CLIENTS) < 0.6)
        present = present if len(present) else np.array([source.integers(CLIENTS)])
        # Columns of very different size: some elements wait for many rounds.
        gradient = torch.from_numpy(source.standard_normal((len(present), DIM)) * np.geomspace(1e-3, 1, DIM))
        plan, rows, share = round.plan(method, server), residual[present], SIZES[present] / SIZES[present].sum()
        method.local.accumulate(rows, server.weights, plan.lr, lambda total, *_, found=gradient: total.add_(found))
        upload = round.contribute(method, plan, rows)
        participation = Participation(np.isin(np.arange(CLIENTS), present))
        outcome = round.merge(method, server, plan, upload, share, participation)
        arrived = densify(upload.with_values(upload.values * kept(upload, outcome.merged))).clone()
        residual[present] = round.settle(method, rows, upload, outcome.merged)
        for row, client in enumerate(present):
            history.clients[client].append((gradient[row], arrived[row]))
        history.merged.append((plan.lr, densify(outcome.merged)))
        history.delivered.append(share @ arrived)
        history.sent.append(densify(outcome.sent))
        server = outcome.server
    return history._replace(server=server)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0.0, atol=1e-12)


@few
@pytest.mark.parametrize("sparsifier", [name for name in ALL if name != "fedavg"])
@given(seed=st.integers(0, 2**32))
@examples(4)
def test_computed_is_delivered_plus_residual(sparsifier: str, kind: FewBits, seed: int) -> None:
    done = run(sparsifier, seed, values=kind, down_values=kind)
    for client, rounds in enumerate(done.clients):
        computed = sum((gradient for gradient, _ in rounds), torch.zeros(DIM).double())
        delivered = sum((arrived for _, arrived in rounds), torch.zeros(DIM).double())
        close(delivered + done.residual[client], computed)
    for (_, merged), delivered in zip(done.merged, done.delivered, strict=True):
        close(merged, delivered)
    assert float(done.residual.abs().max()) > 0


@few
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
@given(seed=st.integers(0, 2**32))
@examples(4)
def test_a_residual_decays_by_the_round(decay: float, kind: FewBits, seed: int) -> None:
    """What was computed or delivered t rounds of the client ago counts decay^t."""
    done = run("fab-top-k", seed, decay=decay, values=kind)
    for client, rounds in enumerate(done.clients):
        left = torch.zeros(DIM, dtype=torch.float64)
        for ago, (gradient, arrived) in enumerate(reversed(rounds)):
            left += decay**ago * (gradient - arrived)
        close(done.residual[client], left)


@few
@pytest.mark.parametrize("sparsifier", [name for name in ALL if name != "fedavg"])
@pytest.mark.parametrize("optimizer", [SGD(), SGD(0.5), Momentum(0.9, nesterov=True)], ids=str)
@given(seed=st.integers(0, 2**32))
@examples(2)
def test_what_is_merged_is_sent_or_remembered(
    optimizer: gradsift.ServerOptimizer, sparsifier: str, kind: FewBits, seed: int
) -> None:
    done = run(sparsifier, seed, values="exact", down_values=kind, server=optimizer)
    merged = sum((lr * vector for lr, vector in done.merged), torch.zeros(DIM).double())
    sent = sum(done.sent, torch.zeros(DIM).double())
    close(sent + done.server.memory[ERROR], merged)
    if isinstance(optimizer, SGD):
        close(done.start - optimizer.rate * sent, done.server.weights)


@pytest.mark.parametrize("down_values", ["few-bits", "int8", "bfloat16"])
@given(seed=st.integers(0, 2**32))
@examples(10)
def test_from_clients_to_weights_nothing_is_lost(down_values: str, seed: int) -> None:
    """Without an optimizer: the weights have moved by all that was delivered, but for what the server still has."""
    done = run("fab-top-k", seed, values="few-bits", down_values=down_values)
    delivered = zip(done.merged, done.delivered, strict=True)
    whole = sum((lr * arrived for (lr, _), arrived in delivered), torch.zeros(DIM).double())
    torch.testing.assert_close(done.start - done.server.weights + done.server.memory[ERROR], whole, rtol=0, atol=1e-12)


def test_rounding_does_take_something() -> None:
    """Else these tests would prove little: the server's memory is far from empty, and more so with fewer bits."""
    left = {}
    for kind in (FewBits(1), FewBits(3), FewBits(8)):
        done = run("send-all", 0, down_values=kind)
        left[kind.bits] = float(done.server.memory[ERROR].abs().max())
    assert left[1] > left[3] > left[8] > 0


@pytest.mark.parametrize("stochastic", [False, True])
def test_the_memory_does_not_grow(stochastic: bool) -> None:
    """Error feedback: what is left is about one rounding error, however many rounds there were."""
    method = Method.of(
        sparsifier="send-all",
        controller=gradsift.controller("fixed", k=1),
        down_values=FewBits(2, stochastic),
        lr=1.0,
    )
    server, source = round.start(method, torch.zeros(DIM)), torch.Generator().manual_seed(0)
    sizes = []
    for _ in range(300):
        plan = round.plan(method, server)
        vector = torch.randn(1, DIM, generator=source)
        uploads = round.contribute(method, plan, vector)
        everyone = Participation(np.ones(1, dtype=bool))
        server = round.merge(method, server, plan, uploads, torch.ones(1), everyone).server
        sizes.append(float(server.memory[ERROR].norm()))
    assert max(sizes[-50:]) < 3 * max(sizes[:50])
