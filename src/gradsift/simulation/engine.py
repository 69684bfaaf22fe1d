"""The vectorised driver: the rounds of ``gradsift.round`` for all clients at once, on one device.

On a CUDA device the host queues a complete round without waiting, and reads its numbers back while the gradients of
the next round run. It waits earlier only if the next round depends on those numbers.

Shapes: N clients, n of them in a round, D weights, b samples per minibatch; residual [N, D].
"""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradsift import pricing, round, sparse, weighing
from gradsift.cost import NOT_MEASURED
from gradsift.data.federated import FederatedData
from gradsift.errors import GradsiftError, RunError
from gradsift.method import Method
from gradsift.records.record import Record
from gradsift.round import Plan
from gradsift.sampling import Ints
from gradsift.simulation import finite, memory
from gradsift.simulation.clients import Clients
from gradsift.simulation.flat import FlatModel, Named, chunks
from gradsift.simulation.local_work import LocalWork, Rows, client_order, joined
from gradsift.simulation.losses import Loss
from gradsift.simulation.open_round import Contribution, OpenRound
from gradsift.simulation.settings import Settings
from gradsift.simulation.state import Pending, Readings, State
from gradsift.sparse import Sparse, concatenate, everything

DEVICES = ("cpu", "cuda")
LOSSES = ("loss_before", "loss_after", "loss_probe")


class Engine:
    """A run: ``step`` makes one round, ``evaluate`` measures the global model, ``state`` is what a checkpoint saves."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: FederatedData,
        method: Method,
        settings: Settings,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        if method.cost.measured:
            raise GradsiftError(f"cost {method.cost.name or method.cost!r:.80} {NOT_MEASURED}")
        if device.type not in DEVICES:
            raise GradsiftError(f"device must be one of {', '.join(DEVICES)}, got {str(device)!r}")
        if (per_round := settings.clients_per_round or 1) > data.num_clients:
            raise GradsiftError(f"clients_per_round is {per_round}, but there are {data.num_clients} clients")
        self.method, self.device = method, device
        self.data = data.to(device, dtype)
        self.flat = FlatModel(model, loss, device, dtype)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
            activations = self._try_model(settings)
        if settings.clients_per_chunk is None:
            fitting = memory.chunk_bytes(device) // (activations + self.flat.dim * dtype.itemsize)
            settings = replace(settings, clients_per_chunk=int(max(1, min(data.num_clients, fitting))))
        self.settings = settings
        self._chunk = settings.clients_per_chunk or 1
        self._work = LocalWork(self.flat, self.data, method)
        self.working_on = 0  # the round that an error belongs to
        self._open: OpenRound | None = None
        self._finished: Record | None = None  # of the round before, if ``begin`` has finished it
        buffers = self.flat.buffers()
        numbers = sum(value.numel() for value in buffers.values())
        self._everyone = Clients.everyone(self.data, settings.batch_size, numbers, dtype)
        server = round.start(method, self.flat.weights())
        if method.controller.plans:
            prices = pricing.prices(method, self.flat.dim, data.num_clients, settings.clients_per_round, numbers)
            server = round.priced(method, server, prices)
        first = round.plan(method, server).for_clients(self._everyone.present)  # also to fail early
        needs = memory.needs(self.flat, self.data, method, settings, first.rnd.k, activations)
        self._streams = memory.must_stream(needs, device)
        shape = (data.num_clients, self.flat.dim)
        self.state = State(
            server=server,
            residual=server.weights.new_zeros(shape, device="cpu" if self._streams else device),
            buffers=buffers,
            local_buffers=self._for_all_clients(buffers),
        )

    def _try_model(self, settings: Settings) -> int:
        """Try the model on minibatches, to fail early; returns the bytes of activations of one minibatch."""
        classes = self.data.classes if self.data.labelled else None
        size, least = settings.batch_size, int(self.data.size.min())
        outputs, activations = self.flat.try_batch(self.data.x[:size], self.data.y[:size], classes)
        if least < size:
            try:
                self.flat.try_batch(self.data.x[:least], self.data.y[:least], classes)
            except GradsiftError as problem:  # such as BatchNorm for one sample
                raise GradsiftError(f"{problem}; data.at_least({least + 1}) leaves out such clients") from problem
        is_logits = isinstance(outputs, Tensor) and outputs.dim() == 2 and self.data.labelled
        self._has_accuracy = is_logits and outputs.shape[1] > 1 and len(self.data.test_y) > 0
        if self.flat.moving and settings.buffers == "refuse":
            raise GradsiftError(
                f"buffers {', '.join(self.flat.moving)} change in training and are not trainable;"
                " buffers 'average' averages them at every exchange (--buffers average)"
            )
        # The first samples of the first two clients, equally many of each.
        first = np.arange(min(settings.batch_size, *self.data.size[:2]))
        rows = torch.from_numpy(self.data.start[:2, None] + first)
        self.flat.enable_one_pass(self.data.x[rows], self.data.y[rows])
        return activations

    def step(self) -> Record:
        """Run one complete round and return its record. After an error, resume from a checkpoint."""
        self.begin()
        return self.finish()

    def begin(self) -> Record | None:
        """Queue one round up to the losses for the controller, which ``finish`` reads.

        Finishes the round before, if it is still open, while the gradients of this one run (step 4 of Fig. 3 allows
        it), and returns its record.
        """
        self._finished, self.working_on = None, self.state.server.number + 1
        plan = self._early_plan()
        period_start = self.working_on if plan is None else plan.period_start
        clients = self._everyone.drawn(self.settings.clients_per_round, self.method.seed, period_start)
        rows = self._rows(clients)
        if self._streams and plan is not None:
            work = self._contribute_in_parts(clients, rows, plan)
        else:
            work = self._contribute(clients, rows, plan)
        before, delay = self.state.server, self.settings.delay
        mass = work.computed.mass if self.method.controller.weighs else None
        outcome = round.merge(self.method, before, work.plan, work.upload, clients.weight, clients.participation, mass)
        readings = outcome.counts | {"losses": work.computed.losses, "largest": work.computed.largest}
        readings["weights"] = torch.linalg.vector_norm(outcome.server.weights, torch.inf)
        if not sparse.queued(readings["weights"]):
            finite.check_weights(self.working_on, readings["weights"])
        buffers, local_buffers = self._exchange_buffers(work, clients)
        left = self._settle(work, outcome.merged, clients)  # last: a dense upload is the residual itself
        if left is not None and outcome.merged.size:
            readings["agreement"] = weighing.agreement(left, clients.weight.to(left.device), outcome.merged)
        pending = None
        if outcome.observation is not None:
            pending = Pending(outcome.observation, before.weights, outcome.server.weights, outcome.probe_weights)
        observed = self.state.pending if delay else pending
        observation, loss_clients = None, clients.present[:0]
        if observed is not None:
            observation = observed.observation
        if observed is not None and self.method.controller.learns:
            # With a delay, losses use the buffers from before this round's exchange.
            losses, loss_clients = self._losses(observed, self.state.buffers if delay else buffers, rows(0), clients)
            readings |= losses
        self._open = OpenRound(outcome.record, clients, Readings(readings), observation, loss_clients)
        self.state = State(outcome.server, self.state.residual, buffers, local_buffers, pending if delay else None)
        return self._finished

    def finish(self) -> Record:
        """Read back the open round, update the controller, and return the round's record."""
        if self._open is None:
            raise RunError("no round was begun: call begin() before finish()")
        return self._finish(self._open)

    def _early_plan(self) -> Plan | None:
        """The plan, if gradients depend on it or uploads are made part by part; otherwise None.

        The round before is finished first if the controller learns from it. Without an early plan, it is read while
        the gradients of this round run.
        """
        if not (self._streams or self.method.local.needs_plan):
            return None
        if self._open is not None and self._open.observation is not None:
            self._finish_previous()
        return round.plan(self.method, self.state.server)

    def _finish_previous(self) -> None:
        """Finish the round before, if it is still open."""
        number = self.working_on
        if self._open is not None:
            self._finish(self._open)
        self.working_on = number

    def _contribute(self, clients: Clients, rows: Rows, plan: Plan | None) -> Contribution:
        """Gradients and uploads, with all residuals on the device."""
        state, lr = self.state, None if plan is None else plan.lr
        residual = state.residual if clients.index is None else state.residual[clients.index]
        parts, results = list(clients.parts(self._chunk)), []
        for part in parts:
            part_residual = residual[part]
            results.append(self._work.add(part_residual, state, clients, part, rows, lr))
            if not isinstance(part, slice):  # then part_residual is a copy
                residual[part] = part_residual
        computed = joined(parts, results, len(clients.present))
        self._finish_previous()  # while the gradients run
        if plan is None:
            plan = round.plan(self.method, self.state.server)
        plan = plan.for_clients(clients.present)
        if not sparse.queued(residual):
            self._check_clients(computed.losses, computed.largest, clients.present)
        return Contribution(plan, round.contribute(self.method, plan, residual), residual, computed)

    def _contribute_in_parts(self, clients: Clients, rows: Rows, plan: Plan) -> Contribution:
        """Gradients and uploads, with residuals in the host's memory and a part of them at a time on the device."""
        residuals, parts = self.state.residual, list(clients.parts(self._chunk))
        uploads, results = [], []
        k = self.flat.dim if self.method.sparsifier.dense else plan.rnd.k
        merge_device = memory.merge_device(len(clients.present), k, residuals.dtype, self.device)
        for part in parts:
            place, present = clients.place(part), clients.present[part]
            residual = residuals[place].to(self.device, copy=True)
            computed = self._work.add(residual, self.state, clients, part, rows, plan.lr)
            self._finish_previous()
            residuals[place] = residual.cpu()
            self._check_clients(computed.losses, computed.largest, present)
            upload = round.contribute(self.method, plan.for_clients(present), residual)
            results.append(computed)
            if upload.values is not residual:
                uploads.append(upload.to(merge_device))
        if uploads:
            upload, order = concatenate(uploads), client_order(parts, len(clients.present))
            upload = upload if order is None else upload.rows(order)
        else:  # dense uploads are the residuals themselves, which stay in the host's memory
            upload = everything(residuals if clients.index is None else residuals[clients.present])
        computed = joined(parts, results, len(clients.present))
        return Contribution(plan.for_clients(clients.present), upload, residuals, computed)

    def _settle(self, work: Contribution, merged: Sparse, clients: Clients) -> Tensor | None:
        """Remove from ``state.residual`` what was uploaded and kept; returns [n] what ``weighing`` needs of it."""
        residuals, weighs = self.state.residual, self.method.controller.weighs
        if not self._streams:
            settled = round.settle(self.method, work.residual, work.upload, merged)
            if clients.index is not None:
                residuals.index_copy_(0, clients.index, settled)
            else:
                self.state.residual = settled
            return weighing.left_over(settled, merged) if weighs else None
        upload, merged = work.upload.to(residuals.device), merged.to(residuals.device)
        left = []
        for part in chunks(len(clients.present), self._chunk):
            place = clients.place(part)
            residuals[place] = settled = round.settle(self.method, residuals[place], upload.rows(part), merged)
            if weighs:
                left.append(weighing.left_over(settled, merged))
        return torch.cat(left) if weighs else None

    def _exchange_buffers(self, work: Contribution, clients: Clients) -> tuple[Named, Named]:
        """The moving buffers after the round, global and local: averaged over its clients if it has an exchange."""
        state = self.state
        if not self.flat.moving:
            return {}, {}
        if not work.plan.exchange:
            local = {name: value.clone() for name, value in state.local_buffers.items()}
            for name, value in work.computed.buffers.items():
                local[name][clients.present] = value
            return state.buffers, local
        average = round.average_buffers(work.computed.buffers, clients.weight)
        return average, self._for_all_clients(average)

    def _for_all_clients(self, buffers: Named) -> Named:
        return {name: value.expand(self.data.num_clients, *value.shape).clone() for name, value in buffers.items()}

    def _losses(self, observed: Pending, buffers: Named, rows: Tensor, clients: Clients) -> tuple[Named, Ints]:
        """(C) of Fig. 3: losses on ``probe_samples`` samples of each minibatch, and the clients of these samples."""
        samples, seed = self.settings.probe_samples, self.method.seed
        drawn, owners = clients.probe_rows(rows, self.data.num_clients, samples, seed, self.state.server.steps + 1)
        x, y = self.data.x[drawn], self.data.y[drawn]
        points = zip(LOSSES, (observed.before, observed.after, observed.probe), strict=True)
        losses = {
            name: self.flat.loss.of_samples(self.flat.outputs(weights, buffers, x), y)
            for name, weights in points
            if weights is not None
        }
        return losses, owners

    def _finish(self, opened: OpenRound) -> Record:
        record, clients, values = opened.record, opened.clients, opened.readings.read()
        self.working_on = record["round"]
        self._check_clients(values["losses"], values["largest"], clients.present)
        finite.check_weights(self.working_on, values["weights"])
        round.note_counts(record, values, clients.participation)
        record["train_loss"] = float(clients.share @ values["losses"].double())
        weighed, pending = weighing.weighed(values), self.state.pending
        if opened.observation is not None:
            seen = {
                name: finite.mean_loss(self.working_on, self.data, opened.loss_clients, value)
                for name, value in values.items()
                if name in LOSSES
            }
            seen |= {} if self.settings.delay else weighed
            self.state.server, observed = round.observe(self.method, self.state.server, opened.observation, seen)
            round.note_observation(record, observed)
        if pending is not None:
            self.state.pending = pending._replace(observation=pending.observation.seen(weighed))
        self._open, self._finished = None, record
        return record

    def _check_clients(self, losses: Tensor, largest: Tensor, present: Ints) -> None:
        finite.check_clients(self.working_on, self.data, present, losses, largest)

    def salvage(self) -> Record | None:
        """After an error in a round: the record of the round before, if ``begin`` did not return it; otherwise None.

        Raises ``RunError`` if the numbers of the round before were not finite, which may have caused the error.
        """
        if self._finished is None and self._open is not None and self._open.record["round"] < self.working_on:
            try:
                self._finish(self._open)
            except RunError:
                raise
            except Exception:  # the caller reports the first error
                return None
        return self._finished

    def evaluate(self) -> tuple[float, float | None]:
        """The mean loss over all training data and the accuracy on the test split, at the global weights."""
        data, losses = self.data, []
        for part in chunks(len(data.x), self.settings.eval_batch):
            outputs = self._outputs(data.x[part])
            with torch.no_grad():
                losses.append(self.flat.loss(outputs, data.y[part]).double() * (part.stop - part.start))
        loss = float(torch.stack(losses).sum()) / len(data.x)
        if not self._has_accuracy:
            return loss, None
        correct = [
            (self._outputs(data.test_x[part]).argmax(dim=1) == data.test_y[part]).sum()
            for part in chunks(len(data.test_x), self.settings.eval_batch)
        ]
        return loss, int(torch.stack(correct).sum()) / len(data.test_x)

    def client_loss(self, client: int) -> float:
        """The mean loss over one client's training data at the global weights."""
        rows = self.data.rows(client)
        return float(self.flat.loss(self._outputs(self.data.x[rows]), self.data.y[rows]))

    def _outputs(self, x: Tensor) -> Any:
        return self.flat.outputs(self.state.server.weights, self.state.buffers, x)

    def model(self) -> nn.Module:
        """The module with the present global weights."""
        return self.flat.trained(self.state.server.weights, self.state.buffers)

    def _rows(self, clients: Clients) -> Rows:
        """The minibatches of each local step of the next round, drawn when first used."""
        first, size, seed = self.state.server.steps + 1, self.settings.batch_size, self.method.seed
        return functools.cache(lambda step: clients.rows(self.data, size, seed, first + step))
