"""The slow obvious twin of the engine: the paper's procedure as a loop over clients, on plain lists, dicts and sets.

It shares with the engine what is not under test here: the keyed draws, the controller and the cost model. Gradients are
ordinary autograd on an ordinary copy of the model, in float64; the sparsifiers are those of ``literal``.
"""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gradsift.control import Controller, Observation, round_k, round_probe_k
from gradsift.cost import CostModel, Traffic
from gradsift.data.federated import FederatedData
from gradsift.round import Round
from gradsift.simulation.flat import Loss
from gradsift.simulation.literal import Message, Vector, procedure
from gradsift.simulation.sampling import minibatch, participants, probe_sample
from gradsift.simulation.schedule import Schedule
from gradsift.simulation.settings import Settings


class Step(NamedTuple):
    """One round, to be compared with the engine's."""

    number: int
    k: float
    used_k: int
    probe_k: int | None
    cost: float
    uploads: dict[int, Message]  # of each client that took part
    merged: Message
    seen: Observation | None
    weights: Vector
    residuals: list[Vector]


def reference_rounds(
    model: nn.Module,
    loss: Loss,
    data: FederatedData,
    sparsifier: str,
    controller: Controller[Any],
    cost: CostModel,
    lr: Schedule,
    settings: Settings,
) -> Iterator[Step]:
    """Run for as long as the caller asks, a ``Step`` a round. Models without buffers and randomness only."""
    model = copy.deepcopy(model).double()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    data = data.to("cpu", torch.float64)
    weights: Vector = parameters_to_vector(trainable).tolist()
    residuals: list[Vector] = [[0.0] * len(weights) for _ in range(data.num_clients)]
    method = procedure(sparsifier, len(weights))
    state = controller.init(dim=len(weights), seed=settings.seed)
    offset, number, late = 0, 0, None

    def loss_at(point: Vector, rows: list[int]) -> Tensor:
        vector_to_parameters(torch.tensor(point, dtype=torch.float64), trainable)
        model.zero_grad()
        value: Tensor = loss(model(data.x[rows]), data.y[rows])
        return value

    def gradient(point: Vector, rows: list[int]) -> Vector:
        loss_at(point, rows).backward()  # type: ignore[no-untyped-call]
        return [g for p in trainable for g in (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).tolist()]

    def step_along(point: Vector, message: Message, size: float) -> Vector:
        moved = list(point)
        for j, b in message.items():
            moved[j] -= size * b
        return moved

    while True:
        number += 1
        proposal = controller.propose(state, number)
        k = round_k(proposal.k, settings.seed, number)
        probe_k = None if proposal.probe_k is None else round_probe_k(proposal.probe_k, k, settings.seed, number)
        rnd = Round(number, k, settings.seed, offset)
        period = max(1, len(weights) // (2 * k)) if sparsifier == "fedavg" else 1
        first = (number - 1) // period * period + 1
        size = lr(first)
        clients = participants(data.num_clients, settings.clients_per_round, settings.seed, first).tolist()
        owned = {i: int(data.size[i]) for i in clients}
        share = [owned[i] / sum(owned.values()) for i in clients]

        batches: dict[int, list[int]] = {}
        uploads: dict[int, Message] = {}
        for i in clients:
            picks = minibatch(owned[i], settings.batch_size, settings.seed, i, number)
            batches[i] = [int(data.start[i]) + int(pick) for pick in picks]
            point = method.point(weights, residuals[i], size)
            residuals[i] = [a + g for a, g in zip(residuals[i], gradient(point, batches[i]), strict=True)]
            uploads[i] = method.upload(residuals[i], rnd)
        sent = list(uploads.values())
        merged = method.merge(sent, share, rnd)
        after = step_along(weights, merged, size)
        probe = None
        change: Message = {}
        would_cost = None
        if probe_k is not None:
            probed = method.probe(sent, share, rnd, probe_k)
            change = {j: probed.get(j, 0.0) - merged.get(j, 0.0) for j in sorted(probed.keys() | merged.keys())}
            change = {j: d for j, d in change.items() if d != 0}
            probe = step_along(after, change, size)
            up = min(probe_k, len(sent[0]))
            would_cost = cost.round_cost(_traffic(data, clients, len(weights), up, len(probed), method.dense))
        for i in clients:
            residuals[i] = method.settle(residuals[i], uploads[i], merged)

        traffic = _traffic(data, clients, len(weights), len(sent[0]), len(merged), method.dense)
        seen = Observation(proposal, cost.round_cost(traffic), would_cost, used_k=k, used_probe_k=probe_k)
        charged = len(change) if settings.charge_probe else 0
        billed = _traffic(data, clients, len(weights), len(sent[0]), len(merged), method.dense, charged)
        now = (seen, weights, after, probe)
        answered = late if settings.delay else now
        observed = None
        if controller.learns and answered is not None:
            told, *points = answered
            losses: list[float | None] = []
            for trial in points:
                if trial is None:
                    losses.append(None)
                    continue
                values = [
                    loss_at(trial, [batches[i][int(pick)]]).item()
                    for i in clients
                    for pick in probe_sample(settings.batch_size, settings.probe_samples, settings.seed, i, number)
                ]
                losses.append(sum(values) / len(values))
            observed = told._replace(loss_before=losses[0], loss_after=losses[1], loss_probe=losses[2])
            state = controller.update(state, observed)
        late = now
        weights = after
        offset += len(sent[0])
        yield Step(
            number, proposal.k, k, probe_k, cost.round_cost(billed), uploads, merged, observed, weights, residuals
        )


def _traffic(
    data: FederatedData, clients: list[int], dim: int, up: int, down: int, dense: bool, probe: int = 0
) -> Traffic:
    took_part = np.isin(np.arange(data.num_clients), clients)
    return Traffic.of(dim, up, down, took_part=took_part, dense=dense, probe=probe)
