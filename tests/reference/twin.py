"""The slow obvious twin of the engine: a loop over clients, ordinary autograd, and a method of plain lists and dicts.

It runs the same round as the engine (``gradsift.round``), in float64, and shares with it the keyed draws, the
controller, the cost model and the prices. Sparsifiers, local steps, values of few bits, the server's error memory and
its optimizer are those of this folder. Everything that the engine does for speed it does not do: batching clients,
keeping residuals in one tensor, sorting on the device, overlapping rounds.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gradsift import pricing, round
from gradsift.data.federated import FederatedData
from gradsift.local import LocalSteps
from gradsift.method import Method
from gradsift.records.record import Record
from gradsift.round import Participation, Plan
from gradsift.sampling import minibatch, participants, probe_sample
from gradsift.simulation.losses import Loss
from gradsift.simulation.settings import Settings
from gradsift.simulation.state import Pending
from gradsift.sparse import Sparse, stack
from gradsift.values import FewBits, ValueType
from tests.reference import server as literal_server
from tests.reference.few_bits import LiteralFewBits
from tests.reference.literal import Literal
from tests.reference.local import LiteralSteps


class Step(NamedTuple):
    """One round, to be compared with the engine's."""

    record: Record
    uploads: dict[int, Sparse]  # of each client that took part
    merged: Sparse
    weights: Tensor  # [D]
    memory: dict[str, Tensor]  # [D] each, the server's
    residuals: list[Tensor]  # [D] of each client


def reference_rounds(
    model: nn.Module, loss: Loss, data: FederatedData, method: Method, settings: Settings
) -> Iterator[Step]:
    """Run for as long as the caller asks, a ``Step`` a round. Models without buffers and randomness only."""
    twin = _Twin(model, loss, data.to("cpu", torch.float64), method, settings)
    late: Pending | None = None
    while True:
        plan = round.plan(twin.method, twin.server)
        step, now = twin.round(plan)
        answered, late = late if settings.delay else now, now
        if answered is not None:
            twin.observe(plan, answered, step.record)
        yield step


def _literal(method: Method) -> Method:
    """The method with the parts of this folder; those that have no twin here stay."""
    literal = replace(method, sparsifier=Literal(method.sparsifier.name), values=_values(method.values))
    literal = replace(literal, down_values=_values(method.down_values))
    return replace(literal, local=LiteralSteps(method.local)) if isinstance(method.local, LocalSteps) else literal


def _values(values: ValueType) -> ValueType:
    return LiteralFewBits(values.bits, values.stochastic) if isinstance(values, FewBits) else values


class _Twin:
    def __init__(self, model: nn.Module, loss: Loss, data: FederatedData, method: Method, settings: Settings) -> None:
        self.model, self.loss, self.data, self.settings = copy.deepcopy(model).double(), loss, data, settings
        self.method = _literal(method)
        self.trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.server = round.start(self.method, parameters_to_vector(self.trainable).detach().clone())
        if method.controller.plans:
            prices = pricing.prices(method, len(self.server.weights), data.num_clients, settings.clients_per_round)
            self.server = round.priced(self.method, self.server, prices)
        self.residuals = [torch.zeros_like(self.server.weights) for _ in range(data.num_clients)]

    def round(self, plan: Plan) -> tuple[Step, Pending | None]:
        """Up to where the losses are taken."""
        method, server, present = self.method, self.server, self._present(plan)
        uploads: dict[int, Sparse] = {}
        for i in present:

            def add_gradients(total: Tensor, point: Tensor, step: int, i: int = i) -> None:
                total += self._gradient(point, self._rows(i, plan, step))

            method.local.accumulate(self.residuals[i], server.weights, plan.lr, add_gradients)
            uploads[i] = round.contribute(method, plan.for_clients([i]), self.residuals[i])
        size = torch.tensor([int(self.data.size[i]) for i in present], dtype=torch.float64)
        participation = Participation(np.isin(np.arange(self.data.num_clients), present))
        sent, plan = stack(list(uploads.values())), plan.for_clients(present)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(round, "advance", literal_server.advance)
            outcome = round.merge(method, server, plan, sent, size / size.sum(), participation)
        round.note_counts(outcome.record, outcome.counts, participation)
        held = {i: self.residuals[i].tolist() for i in present}
        for i in present:
            self.residuals[i] = round.settle(method, self.residuals[i], uploads[i], outcome.merged)
        self.server = outcome.server
        now = None
        if outcome.observation is not None:
            seen = self._weighed(held, uploads, outcome.merged) if method.controller.weighs else {}
            observation = outcome.observation.seen(seen)
            now = Pending(observation, server.weights, outcome.server.weights, outcome.probe_weights)
        after = outcome.server
        return Step(outcome.record, uploads, outcome.merged, after.weights, after.memory, self.residuals), now

    def _weighed(self, held: dict[int, list[float]], uploads: dict[int, Sparse], merged: Sparse) -> dict[str, float]:
        """What waits and whether the clients agree, element by element; ``held`` before they settled."""
        total = sum(int(self.data.size[i]) for i in held)
        step = dict(zip(merged.indices.tolist(), merged.values.tolist(), strict=True))
        before = sent = projected = 0.0
        for i, residual in held.items():
            share = int(self.data.size[i]) / total
            before += share * sum(abs(value) for value in residual)
            elements = zip(uploads[i].indices.tolist(), uploads[i].values.tolist(), strict=True)
            sent += share * sum(abs(value) for index, value in elements if index in step)
            left = self.residuals[i].tolist()
            projected += share * sum(left[index] * value for index, value in step.items())
        squared = sum(value * value for value in step.values())
        return {"waiting": max(0.0, (before - sent) / sent), "agreement": (squared + projected) / squared}

    def observe(self, plan: Plan, answered: Pending, record: Record) -> None:
        """The three losses on samples of this round's minibatches, and what the controller makes of all it is told."""
        losses = self._losses(plan, answered) if self.method.controller.learns else {}
        self.server, observed = round.observe(self.method, self.server, answered.observation, losses)
        round.note_observation(record, observed)

    def _losses(self, plan: Plan, answered: Pending) -> dict[str, float]:
        rows: list[int] = []
        for i in self._present(plan):
            batch = self._rows(i, plan, 0)
            picks = probe_sample(len(batch), self.settings.probe_samples, self.method.seed, i, plan.steps_before + 1)
            rows += [batch[int(pick)] for pick in picks]
        at = {"loss_before": answered.before, "loss_after": answered.after, "loss_probe": answered.probe}
        return {
            name: sum(self._loss(point, [row]).item() for row in rows) / len(rows)
            for name, point in at.items()
            if point is not None
        }

    def _present(self, plan: Plan) -> list[int]:
        per_round = self.settings.clients_per_round
        drawn: list[int] = participants(self.data.num_clients, per_round, self.method.seed, plan.period_start).tolist()
        return drawn

    def _rows(self, client: int, plan: Plan, step: int) -> list[int]:
        """The rows of the data in one client's minibatch of a local step."""
        number = plan.steps_before + 1 + step
        size = int(self.data.size[client])
        picks = minibatch(size, self.settings.batch_size, self.method.seed, client, number)
        return [int(self.data.start[client]) + int(pick) for pick in picks]

    def _loss(self, point: Tensor, rows: list[int]) -> Tensor:
        vector_to_parameters(point, self.trainable)
        self.model.zero_grad()
        value: Tensor = self.loss(self.model(self.data.x[rows]), self.data.y[rows])
        return value

    def _gradient(self, point: Tensor, rows: list[int]) -> Tensor:
        self._loss(point, rows).backward()  # type: ignore[no-untyped-call]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.trainable]
        return torch.cat([part.reshape(-1) for part in parts])
