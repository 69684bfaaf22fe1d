"""Whole simulated runs with local steps are textbook FedAvg: a loop over clients, torch's own SGD, averaged weights."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import gradsift
from gradsift import LocalSteps
from gradsift.sampling import minibatch
from tests.simulation.problems import blobs, mlp

LR, BATCH, SEED = 0.3, 4, 5
LOSS = nn.CrossEntropyLoss()


def textbook(rounds: int, steps: int) -> list[Tensor]:
    """McMahan et al.: the weights after each round of ``steps`` local steps, on the minibatches of the simulator."""
    data, model = blobs().to("cpu", torch.float64), mlp().double()
    share = torch.from_numpy(data.share)
    average, trace = parameters_to_vector(model.parameters()).detach(), []
    for number in range(rounds):
        ends = []
        for client in range(data.num_clients):
            local = copy.deepcopy(model)
            vector_to_parameters(average.clone(), local.parameters())
            optimizer = torch.optim.SGD(local.parameters(), lr=LR)
            for step in range(steps):
                chosen = minibatch(int(data.size[client]), BATCH, SEED, client, number * steps + 1 + step)
                rows = torch.from_numpy(int(data.start[client]) + chosen)
                optimizer.zero_grad()
                LOSS(local(data.x[rows]), data.y[rows]).backward()
                optimizer.step()
            ends.append(parameters_to_vector(local.parameters()).detach())
        average = (share[:, None] * torch.stack(ends)).sum(0)
        trace.append(average)
    return trace


def simulated(rounds: int, *, sparsifier: str, k: int = 1, local: LocalSteps | None = None) -> gradsift.Result:
    return gradsift.simulate(
        mlp(),
        LOSS,
        blobs(),
        sparsifier=sparsifier,
        controller=gradsift.controller("fixed", k=k),
        local=local,
        lr=LR,
        rounds=rounds,
        batch_size=BATCH,
        seed=SEED,
        dtype=torch.float64,
    )


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_local_steps_over_whole_vectors(steps: int) -> None:
    for rounds, expected in enumerate(textbook(4, steps), start=1):
        run = simulated(rounds, sparsifier="send-all", local=LocalSteps(steps))
        torch.testing.assert_close(run.weights, expected, rtol=1e-9, atol=1e-12)
        assert [record["steps"] for record in run.records] == [steps] * rounds


@pytest.mark.parametrize("k", [2, 5, 20])
def test_fedavg_by_the_papers_clock(k: int) -> None:
    """57 weights: exchanges every 14, 5 and 1 rounds."""
    period = max(1, 57 // (2 * k))
    for exchanges, expected in enumerate(textbook(2, period), start=1):
        run = simulated(exchanges * period, sparsifier="fedavg", k=k)
        torch.testing.assert_close(run.weights, expected, rtol=1e-9, atol=1e-12)
        sent = [record["up_elements"] for record in run.records]
        assert sent == [57 if number % period == 0 else 0 for number in range(1, exchanges * period + 1)]


def test_local_steps_go_with_every_sparsifier() -> None:
    """And move the weights further in a round than one gradient does."""
    for name in gradsift.sparsifiers():
        moved = [
            float((simulated(3, sparsifier=name, k=20, local=LocalSteps(steps)).weights - start()).norm())
            for steps in (1, 4)
        ]
        assert moved[1] > 1.5 * moved[0] > 0


def start() -> Tensor:
    return parameters_to_vector(mlp().double().parameters()).detach()
