"""Methods of the literature, out of slots, against the same methods written with torch's modules and optimizers."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradsift
from gradsift import FewBits, LocalSteps
from gradsift.sampling import participants
from gradsift.server_step import SGD, Momentum
from gradsift.sparse import everything
from tests.simulation import hand
from tests.simulation.problems import blobs, mlp

pytestmark = pytest.mark.slow  # many runs

LOSS = nn.CrossEntropyLoss()
STEPS = 3
LOCAL: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.05},
    "all": {"rate": 0.4, "momentum": 0.7, "weight_decay": 0.05},
}
SERVERS: dict[str, tuple[gradsift.ServerOptimizer, dict[str, Any]]] = {
    "FedAvg": (SGD(), {"lr": 1.0}),
    "FedAvg with a server's rate": (SGD(rate=0.5), {"lr": 0.5}),
    "FedAvgM": (Momentum(0.9), {"lr": 1.0, "momentum": 0.9}),
    "DiLoCo": (Momentum(0.9, nesterov=True, rate=0.7), {"lr": 0.7, "momentum": 0.9, "nesterov": True}),
}


def trained(shared: nn.Module, client: int, first: int, options: dict[str, Any]) -> nn.Module:
    """A client's module after its local steps from the shared weights, with an optimizer that is new in each round."""
    module, chosen = copy.deepcopy(shared), dict(options)
    optimizer = torch.optim.SGD(module.parameters(), lr=hand.LR * chosen.pop("rate", 1.0), **chosen)
    for step in range(first, first + STEPS):
        optimizer.zero_grad()
        x, y = hand.batch(blobs(), client, step)
        LOSS(module(x), y).backward()
        optimizer.step()
    return module


@pytest.mark.parametrize(("clients_per_round", "chunk"), [(None, None), (4, 2)], ids=["all", "some"])
@pytest.mark.parametrize("local", LOCAL)
@pytest.mark.parametrize("server", SERVERS)
def test_it_is_the_textbook(server: str, local: str, clients_per_round: int | None, chunk: int | None) -> None:
    """The difference of the average from the shared weights is the gradient of the outer optimizer."""
    outer, of_torch = SERVERS[server]
    engine = hand.engine(
        *(mlp(), LOSS, blobs(), "send-all"),
        local=LocalSteps(STEPS, **LOCAL[local]),
        server=outer,
        clients_per_round=clients_per_round,
        clients_per_chunk=chunk,
    )
    shared = copy.deepcopy(mlp()).double()
    optimizer = torch.optim.SGD(shared.parameters(), **of_torch)
    for number in range(1, 6):
        clients = participants(6, clients_per_round, 0, number)
        modules = [trained(shared, int(client), 1 + STEPS * (number - 1), LOCAL[local]) for client in clients]
        share = blobs().share[clients] / blobs().share[clients].sum()
        average = hand.average([module.state_dict() for module in modules], share)
        for name, parameter in shared.named_parameters():
            parameter.grad = parameter.detach() - average[name]
        optimizer.step()
        engine.step()
        torch.testing.assert_close(engine.state.server.weights, hand.flat(shared), rtol=0, atol=1e-11)


@pytest.mark.parametrize("decay", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("local", LOCAL)
def test_drifts_go_to_residuals_that_decay(local: str, decay: float) -> None:
    """Of each client that takes part; nothing else changes than what was sent and kept."""
    steps = LocalSteps(STEPS, residual_decay=decay, **LOCAL[local])
    fixed = gradsift.controller("fixed", k=2)
    engine = hand.engine(mlp(), LOSS, blobs(), "fab-top-k", fixed, local=steps, clients_per_round=4)
    shared = copy.deepcopy(mlp()).double()
    for number in range(1, 4):
        before = engine.state.residual.clone()
        hand.put(shared, engine.state.server.weights)
        start, record = hand.flat(shared), engine.step()
        present = participants(6, 4, 0, number).tolist()
        for client in range(6):
            want = before[client]
            if client in present:
                module = trained(shared, client, 1 + STEPS * (number - 1), LOCAL[local])
                want = decay * want + (start - hand.flat(module)) / hand.LR
            changed = (engine.state.residual[client] - want).abs() > 1e-11
            assert int(changed.sum()) == record["contribution"][client]


def test_quantized_sgd_with_error_feedback_both_ways() -> None:
    """DoubleSqueeze (Tang et al., ICML 2019), by hand: both sides round what they have, and keep the error."""
    up, down = FewBits(2), FewBits(3)
    engine = hand.engine(mlp(), LOSS, blobs(), "send-all", values=up, down_values=down)
    weights = hand.flat(mlp().double())
    errors = torch.zeros(6, len(weights), dtype=torch.float64)
    error, module = torch.zeros_like(weights), mlp().double()
    for number in itertools.islice(itertools.count(1), 6):
        hand.put(module, weights)
        total = torch.zeros_like(weights)
        for client, share in enumerate(blobs().share):
            vector = errors[client] + hand.gradient(module, LOSS, *hand.batch(blobs(), client, number))
            sent = rounded(up, vector)
            errors[client] = vector - sent
            total += float(share) * sent
        wanted = error + hand.LR * total
        update = rounded(down, wanted)
        error, weights = wanted - update, weights - update
        engine.step()
        torch.testing.assert_close(engine.state.server.weights, weights, rtol=0, atol=1e-11)
        torch.testing.assert_close(engine.state.server.memory["error"], error, rtol=0, atol=1e-11)
        torch.testing.assert_close(engine.state.residual, errors, rtol=0, atol=1e-11)


def rounded(kind: FewBits, vector: Tensor) -> Tensor:
    return kind.rounded(everything(vector)).values
