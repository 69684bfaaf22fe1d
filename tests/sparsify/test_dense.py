"""FedAvg is textbook FedAvg, by either clock; send-all is plain SGD on the pooled data (Section V-A, items 4 and 5).

Client i has C_i rows of a least-squares problem: the loss is the mean of (x w - y)^2 / 2 over them.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradsift
from gradsift import LocalComputation, LocalSteps, Method, round
from gradsift.round import Participation
from tests.examples import examples
from tests.sparsify.cases import ALL

LR = 0.05


class Client(NamedTuple):
    x: Tensor  # [C_i, D]
    y: Tensor  # [C_i]

    def gradient(self, weights: Tensor) -> Tensor:
        return self.x.T @ (self.x @ weights - self.y) / len(self.y)


class Federation(NamedTuple):
    clients: list[Client]
    share: Tensor  # C_i / C


@st.composite
def federations(draw: st.DrawFn, max_dim: int = 10) -> Federation:
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    dim = draw(st.integers(1, max_dim))
    source = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    clients = [
        Client(*(torch.randn(*shape, generator=source, dtype=torch.float64) for shape in ((size, dim), (size,))))
        for size in sizes
    ]
    return Federation(clients, torch.tensor(sizes, dtype=torch.float64) / sum(sizes))


class Trace(NamedTuple):
    """After a round."""

    weights: Tensor  # [D]
    points: list[Tensor]  # [N, D] or [D] where the clients took their gradients, one a local step
    sent: int  # elements of each upload


def run(method: Method, problem: Federation, rounds: int) -> list[Trace]:
    """The round as every driver has it, with the problem's gradients."""
    clients, dim = len(problem.clients), problem.clients[0].x.shape[1]
    server = round.start(method, torch.zeros(dim, dtype=torch.float64))
    residual, everyone = torch.zeros(clients, dim, dtype=torch.float64), Participation(np.ones(clients, dtype=bool))
    trace = []
    for _ in range(rounds):
        plan = round.plan(method, server)
        points: list[Tensor] = []

        def add_gradients(total: Tensor, point: Tensor, step: int, points: list[Tensor] = points) -> None:
            assert step == len(points)
            points.append(point.clone())
            at = [row.clone() for row in point.expand_as(total)]  # where in memory a row starts must not change a bit
            total += torch.stack([client.gradient(w) for client, w in zip(problem.clients, at, strict=True)])

        method.local.accumulate(residual, server.weights, plan.lr, add_gradients)
        upload = round.contribute(method, plan, residual)
        outcome = round.merge(method, server, plan, upload, problem.share, everyone)
        residual = round.settle(method, residual, upload, outcome.merged)
        server = outcome.server
        trace.append(Trace(server.weights, points, upload.size))
    return trace


def method(sparsifier: str, k: int = 1, local: LocalComputation | None = None) -> Method:
    return Method.of(sparsifier=sparsifier, controller=gradsift.controller("fixed", k=k), local=local, lr=LR)


@given(problem=federations(), data=st.data())
@examples(40)
def test_fedavg_is_textbook_fedavg(problem: Federation, data: st.DataObject) -> None:
    """McMahan et al.: everyone starts from the average, takes local steps, and the weights are averaged by size."""
    dim = problem.clients[0].x.shape[1]
    k = data.draw(st.integers(1, dim))
    period = max(1, dim // (2 * k))
    average = torch.zeros(dim, dtype=torch.float64)
    local = [average.clone() for _ in problem.clients]
    for number, (weights, points, sent) in enumerate(run(method("fedavg", k), problem, 12), start=1):
        torch.testing.assert_close(points[0].expand(len(local), -1), torch.stack(local), rtol=1e-9, atol=1e-12)
        local = [w - LR * client.gradient(w) for w, client in zip(local, problem.clients, strict=True)]
        if number % period == 0:
            average = (problem.share[:, None] * torch.stack(local)).sum(0)
            local = [average.clone() for _ in problem.clients]
        torch.testing.assert_close(weights, average, rtol=1e-9, atol=1e-12)
        assert sent == (0 if number % period else dim)


@given(problem=federations(), steps=st.integers(1, 5))
@examples(40)
def test_local_steps_and_whole_vectors_are_textbook_fedavg(problem: Federation, steps: int) -> None:
    """The same training as FedAvg's by the paper's clock, with one round an exchange instead of one a local step."""
    average = torch.zeros(problem.clients[0].x.shape[1], dtype=torch.float64)
    for weights, points, sent in run(method("send-all", local=LocalSteps(steps)), problem, 6):
        local = [average.clone() for _ in problem.clients]
        assert len(points) == steps
        for point in points:
            torch.testing.assert_close(point.expand(len(local), -1), torch.stack(local), rtol=1e-9, atol=1e-12)
            local = [w - LR * client.gradient(w) for w, client in zip(local, problem.clients, strict=True)]
        average = (problem.share[:, None] * torch.stack(local)).sum(0)
        torch.testing.assert_close(weights, average, rtol=1e-9, atol=1e-12)
        assert sent == len(average)


@given(problem=federations(max_dim=12), data=st.data())
@examples(30)
def test_local_steps_give_the_weights_of_fedavg_at_its_exchanges(problem: Federation, data: st.DataObject) -> None:
    dim = problem.clients[0].x.shape[1]
    k = data.draw(st.integers(1, dim))
    period = max(1, dim // (2 * k))
    slow = run(method("fedavg", k), problem, 3 * period)[period - 1 :: period]
    fast = run(method("send-all", local=LocalSteps(period)), problem, 3)
    for left, right in zip(slow, fast, strict=True):
        torch.testing.assert_close(left.weights, right.weights, rtol=1e-12, atol=1e-14)


@given(dim=st.integers(1, 60), data=st.data())
@examples(80)
def test_fedavg_exchanges_whole_vectors_at_the_end_of_each_period(dim: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, dim))
    period = max(1, int(dim / (2 * k)))
    fedavg, share = method("fedavg", k), torch.tensor([0.5, 0.5])
    assert fedavg.local.period(dim, k) == period
    server, everyone = round.start(fedavg, torch.zeros(dim)), Participation(np.ones(2, dtype=bool))
    for number in range(1, 2 * period + 2):
        plan = round.plan(fedavg, server)
        upload = round.contribute(fedavg, plan, torch.ones(2, dim))
        outcome = round.merge(fedavg, server, plan, upload, share, everyone)
        server, size = outcome.server, 0 if number % period else dim
        assert plan.exchange == (number % period == 0)
        assert upload.indices.shape == upload.values.shape == (2, size)
        assert outcome.merged.size == size
        assert plan.period_start == 1 + (number - 1) // period * period


def test_fedavg_has_the_traffic_of_k_elements_with_their_indices() -> None:
    """The period of the paper's experiments, D = 444,062 and k = 1000: 2k numbers a round on average, within 1%."""
    period = gradsift.sparsifier("fedavg").local.period(444_062, 1000)
    assert period == 222
    assert 444_062 / period == pytest.approx(2000, rel=0.01)


@pytest.mark.parametrize("name", [name for name in ALL if name != "fedavg"])
def test_only_fedavg_has_a_period(name: str) -> None:
    assert gradsift.sparsifier(name).local.period(100, 3) == 1


@given(problem=federations(), data=st.data())
@examples(40)
def test_send_all_is_sgd_on_the_pooled_gradient(problem: Federation, data: st.DataObject) -> None:
    dim = problem.clients[0].x.shape[1]
    pooled = Client(torch.cat([c.x for c in problem.clients]), torch.cat([c.y for c in problem.clients]))
    expected = torch.zeros(dim, dtype=torch.float64)
    k = data.draw(st.integers(1, dim))  # plays no part
    for weights, points, sent in run(method("send-all", k), problem, 10):
        torch.testing.assert_close(points[0], expected, rtol=1e-9, atol=1e-12)  # one point for all
        expected = expected - LR * pooled.gradient(expected)
        torch.testing.assert_close(weights, expected, rtol=1e-9, atol=1e-12)
        assert sent == dim


@given(problem=federations())
@examples(20)
def test_fedavg_of_period_one_is_send_all(problem: Federation) -> None:
    dim = problem.clients[0].x.shape[1]
    runs = [run(method(name, dim), problem, 6) for name in ("fedavg", "send-all")]
    for left, right in zip(*runs, strict=True):
        assert torch.equal(left.weights, right.weights)
