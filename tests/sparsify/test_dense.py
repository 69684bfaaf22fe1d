"""FedAvg is textbook FedAvg, send-all is plain SGD on the pooled data (Section V-A, items 4 and 5).

Client i has C_i rows of a least-squares problem: the loss is the mean of (x w - y)^2 / 2 over them.
"""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gradsift
from gradsift import Round, Sparsifier
from tests.sparsify.cases import ALL


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


def run(sparsifier: Sparsifier, problem: Federation, k: int, lr: float, rounds: int) -> list[tuple[Tensor, Tensor]]:
    """(weights [D], where each client stands [N, D]) after each round of the three phases."""
    dim = problem.clients[0].x.shape[1]
    weights = torch.zeros(dim, dtype=torch.float64)
    residual = torch.zeros(len(problem.clients), dim, dtype=torch.float64)
    trace = []
    for number in range(1, rounds + 1):
        rnd = Round(number=number, k=k)
        points = sparsifier.point(weights, residual, lr).expand_as(residual)
        residual = residual + torch.stack([c.gradient(w) for c, w in zip(problem.clients, points, strict=True)])
        upload = sparsifier.upload(residual, rnd)
        merged = sparsifier.merge(upload, problem.share, rnd)
        residual = sparsifier.settle(residual, upload, merged)
        weights = gradsift.apply(weights, merged, lr)
        trace.append((weights, sparsifier.point(weights, residual, lr).expand_as(residual)))
    return trace


@given(problem=federations(), data=st.data())
@settings(max_examples=40)
def test_fedavg_is_textbook_fedavg(problem: Federation, data: st.DataObject) -> None:
    """McMahan et al.: everyone starts from the average, takes local steps, and the weights are averaged by size."""
    dim, lr, rounds = problem.clients[0].x.shape[1], 0.05, 12
    k = data.draw(st.integers(1, dim))
    period = max(1, dim // (2 * k))
    average = torch.zeros(dim, dtype=torch.float64)
    local = [average.clone() for _ in problem.clients]
    trace = run(gradsift.sparsifier("fedavg"), problem, k, lr, rounds)
    for number, (weights, points) in enumerate(trace, start=1):
        local = [w - lr * client.gradient(w) for w, client in zip(local, problem.clients, strict=True)]
        if number % period == 0:
            average = (problem.share[:, None] * torch.stack(local)).sum(0)
            local = [average.clone() for _ in problem.clients]
        torch.testing.assert_close(weights, average, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(points, torch.stack(local), rtol=1e-9, atol=1e-12)


@given(dim=st.integers(1, 60), data=st.data())
@settings(max_examples=80)
def test_fedavg_exchanges_whole_vectors_at_the_end_of_each_period(dim: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, dim))
    period = max(1, int(dim / (2 * k)))
    sparsifier = gradsift.sparsifier("fedavg")
    assert sparsifier.period(dim, k) == period
    share = torch.tensor([0.5, 0.5])
    for number in range(1, 2 * period + 2):
        rnd = Round(number=number, k=k)
        upload = sparsifier.upload(torch.ones(2, dim), rnd)
        size = dim if number % period == 0 else 0
        assert upload.indices.shape == upload.values.shape == (2, size)
        assert sparsifier.merge(upload, share, rnd).size == size


def test_fedavg_has_the_traffic_of_k_elements_with_their_indices() -> None:
    """The period of the paper's experiments, D = 444,062 and k = 1000: 2k numbers a round on average, within 1%."""
    period = gradsift.sparsifier("fedavg").period(444_062, 1000)
    assert period == 222
    assert 444_062 / period == pytest.approx(2000, rel=0.01)


@pytest.mark.parametrize("name", [name for name in ALL if name != "fedavg"])
def test_only_fedavg_has_a_period(name: str) -> None:
    assert gradsift.sparsifier(name).period(100, 3) == 1


@given(problem=federations(), data=st.data())
@settings(max_examples=40)
def test_send_all_is_sgd_on_the_pooled_gradient(problem: Federation, data: st.DataObject) -> None:
    dim, lr, rounds = problem.clients[0].x.shape[1], 0.05, 10
    pooled = Client(torch.cat([c.x for c in problem.clients]), torch.cat([c.y for c in problem.clients]))
    expected = torch.zeros(dim, dtype=torch.float64)
    k = data.draw(st.integers(1, dim))  # plays no part
    for weights, points in run(gradsift.sparsifier("send-all"), problem, k, lr, rounds):
        expected = expected - lr * pooled.gradient(expected)
        torch.testing.assert_close(weights, expected, rtol=1e-9, atol=1e-12)
        assert torch.equal(points, weights.expand_as(points))


@given(problem=federations())
@settings(max_examples=20)
def test_fedavg_of_period_one_is_send_all(problem: Federation) -> None:
    dim = problem.clients[0].x.shape[1]
    runs = [run(gradsift.sparsifier(name), problem, dim, 0.05, 6) for name in ("fedavg", "send-all")]
    for (left, _), (right, _) in zip(*runs, strict=True):
        assert torch.equal(left, right)
