"""The vectorised driver: the rounds of ``gradsift.round`` for all clients at once, on one device.

On a CUDA device nothing here waits for the device, except where a number is needed to go on: a round is queued whole,
and read back while the next one's gradients run.

Shapes: N clients, n of them in a round, D weights, b samples a minibatch; residual [N, D].
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from gradsift import round, sparse
from gradsift.control import Observation
from gradsift.data.federated import FederatedData
from gradsift.errors import GradsiftError, RunError
from gradsift.method import Method
from gradsift.records.record import Record
from gradsift.round import Plan
from gradsift.sampling import Ints, participants
from gradsift.simulation import memory
from gradsift.simulation.clients import Clients
from gradsift.simulation.flat import FlatModel, Loss, Named, chunks
from gradsift.simulation.local_work import Computed, LocalWork, Rows, in_order, joined
from gradsift.simulation.settings import Settings
from gradsift.simulation.state import Pending, Readings, State
from gradsift.sparse import Sparse, concatenate, everything

DEVICES = ("cpu", "cuda")


@dataclass
class Begun:
    """A round that waits for its readings: what its record will hold, and what the controller will be told."""

    record: Record
    clients: Clients
    readings: Readings
    answered: Observation | None  # without its losses
    owner: Ints | None = None  # whose samples the losses are of


class Contribution(NamedTuple):
    """What the clients of a round have computed and sent."""

    plan: Plan
    upload: Sparse
    residual: Tensor  # [n, D] before it is settled; of residuals in the host's memory, all of them
    computed: Computed


class Engine:
    """A run: ``step`` makes one round, ``evaluate`` looks at where it stands; ``state`` is all there is to save."""

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
        if device.type not in DEVICES:
            raise GradsiftError(f"device must be one of {', '.join(DEVICES)}, got {str(device)!r}")
        if settings.clients_per_round is not None and settings.clients_per_round > data.num_clients:
            raise GradsiftError(
                f"clients_per_round is {settings.clients_per_round}, there are {data.num_clients} clients"
            )
        self.method, self.device = method, device
        self.data = data.to(device, dtype)
        self.flat = FlatModel(model, loss, device, dtype)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
            kept = self._try_model(settings)
        if settings.clients_per_chunk is None:
            fitting = memory.chunk_bytes(device) // (kept + self.flat.dim * dtype.itemsize)
            settings = replace(settings, clients_per_chunk=int(max(1, min(data.num_clients, fitting))))
        self.settings = settings
        self._chunk = settings.clients_per_chunk or 1
        self._work = LocalWork(self.flat, self.data, method)
        self.working_on = 0  # the round that an error belongs to
        self._begun: Begun | None = None
        self._done: Record | None = None  # finished while the next round was begun
        buffers = sum(value.numel() for value in self.flat.buffers().values())
        self._everyone = Clients.everyone(self.data, settings.batch_size, buffers, dtype)
        self._streams = memory.must_stream(memory.needs(self.flat, self.data, method, settings, kept), device)
        self.state = self._initial(dtype)
        round.plan(method, self.state.server).for_clients(self._everyone.present)  # what cannot work fails now

    def _try_model(self, settings: Settings) -> int:
        """Minibatches through the model, so that what cannot work fails now; the bytes one kept for the gradient."""
        classes = self.data.classes if self.data.labelled else None
        sizes = np.minimum(self.data.size, settings.batch_size)
        for size in dict.fromkeys((int(sizes.min()), settings.batch_size)):
            outputs, kept = self.flat.probe_batch(self.data.x[:size], self.data.y[:size], classes)
        is_logits = isinstance(outputs, Tensor) and outputs.dim() == 2 and self.data.labelled
        self._has_accuracy = is_logits and outputs.shape[1] > 1 and len(self.data.test_y) > 0
        if self.flat.moving and settings.buffers == "refuse":
            raise GradsiftError(
                f"buffers {', '.join(self.flat.moving)} change in training and are not gradients;"
                " buffers 'average' averages them at every exchange (--buffers average)"
            )
        # The first samples of the first two clients, as many of each as both have.
        first = np.arange(min(settings.batch_size, *self.data.size[:2]))
        trial = torch.from_numpy(np.stack([start + first for start in self.data.start[:2]]))
        self.flat.choose_way(self.data.x[trial], self.data.y[trial])
        return kept

    def _initial(self, dtype: torch.dtype) -> State:
        clients, buffers = self.data.num_clients, self.flat.buffers()
        return State(
            server=round.start(self.method, self.flat.weights()),
            residual=torch.zeros(clients, self.flat.dim, device="cpu" if self._streams else self.device, dtype=dtype),
            buffers=buffers,
            local_buffers={name: value.expand(clients, *value.shape).clone() for name, value in buffers.items()},
        )

    def step(self) -> Record:
        """One whole round; returns its record. After an error the state is void: go back to a checkpoint."""
        self.begin()
        return self.finish()

    def begin(self) -> Record | None:
        """One round up to where the controller waits for the losses, which ``finish`` reads.

        A round that was begun and not finished is finished here, while this one's gradients run (step 4 of Fig. 3
        allows it), and its record is returned.
        """
        self._done, self.working_on = None, self.state.server.number + 1
        plan = self._early_plan()
        clients = self._clients(self.working_on if plan is None else plan.period_start)
        rows = self._rows(clients)
        if self._streams and plan is not None:
            work = self._streamed(clients, rows, plan)
        else:
            work = self._contribute(clients, rows, plan)
        before, plan = self.state.server, work.plan
        outcome = round.merge(self.method, before, plan, work.upload, clients.weight, clients.participation)
        readings = outcome.counts | {"losses": work.computed.losses, "largest": work.computed.largest}
        readings["weights"] = torch.linalg.vector_norm(outcome.server.weights, torch.inf)
        if not sparse.queued(readings["weights"]):
            self._check_weights(readings)
        buffers, local_buffers = self._exchange_buffers(work, clients)
        self._settle(work, outcome.merged, clients)  # last: a dense upload is the residual itself

        now = None
        if outcome.observation is not None:
            now = Pending(outcome.observation, before.weights, outcome.server.weights, outcome.probe_weights)
        answered = self.state.pending if self.settings.delay else now
        owner = None
        if answered is not None:
            # Late losses are taken with the buffers that the clients have before this round's exchange.
            held = self.state.buffers if self.settings.delay else buffers
            losses, owner = self._losses(answered, held, rows(0), clients)
            readings |= losses
        seen = None if answered is None else answered.seen
        self._begun = Begun(outcome.record, clients, Readings(readings), seen, owner)
        self.state = State(
            outcome.server, self.state.residual, buffers, local_buffers, now if self.settings.delay else None
        )
        return self._done

    def finish(self) -> Record:
        """Read back the round that was begun, and tell the controller; returns its record."""
        if self._begun is None:
            raise RunError("no round was begun: there is none to finish")
        return self._finish(self._begun)

    def _early_plan(self) -> Plan | None:
        """The plan, where it is needed before the gradients: for them, or for uploads made while residuals pass by.

        Elsewhere it is made when the gradients are queued, so that the round before is read while they run. Here that
        round is finished first, if the controller learns from it.
        """
        if not (self._streams or self.method.local.needs_plan):
            return None
        if self._begun is not None and self._begun.answered is not None:
            self._catch_up()
        return round.plan(self.method, self.state.server)

    def _catch_up(self) -> None:
        """Finish the round before, if that is still to do."""
        number = self.working_on
        if self._begun is not None:
            self._finish(self._begun)
        self.working_on = number

    def _contribute(self, clients: Clients, rows: Rows, plan: Plan | None) -> Contribution:
        """Gradients and uploads of all clients at once."""
        state, lr = self.state, None if plan is None else plan.lr
        residual = state.residual if clients.index is None else state.residual[clients.index]
        parts, results = list(clients.parts(self._chunk)), []
        for part in parts:
            own = residual[part]
            results.append(self._work.add(own, state, clients, part, rows, lr))
            if not isinstance(part, slice):  # then it is a copy
                residual[part] = own
        computed = joined(parts, results, len(clients.present))
        self._catch_up()  # while the gradients run
        if plan is None:
            plan = round.plan(self.method, self.state.server)
        plan = plan.for_clients(clients.present)
        if not sparse.queued(residual):
            self._check_finite(computed.losses, computed.largest, clients.present)
        return Contribution(plan, round.contribute(self.method, plan, residual), residual, computed)

    def _streamed(self, clients: Clients, rows: Rows, plan: Plan) -> Contribution:
        """Gradients and uploads of residuals in the host's memory, a part of the clients at a time on the device."""
        held, uploads, results = self.state.residual, [], []
        merged_on, parts = self._merged_on(plan, clients), list(clients.parts(self._chunk))
        for part in parts:
            place, who = clients.place(part), clients.present[part]
            residual = held[place].to(self.device, copy=True)
            computed = self._work.add(residual, self.state, clients, part, rows, plan.lr)
            self._catch_up()
            held[place] = residual.cpu()
            self._check_finite(computed.losses, computed.largest, who)
            sent = round.contribute(self.method, plan.for_clients(who), residual)
            results.append(computed)
            if sent.values is not residual:
                uploads.append(sent.to(merged_on))
        if uploads:
            upload, order = concatenate(uploads), in_order(parts, len(clients.present))
            upload = upload if order is None else upload.rows(order)
        else:  # all that there is: it stays where the residuals are
            upload = everything(held if clients.index is None else held[clients.present])
        computed = joined(parts, results, len(clients.present))
        return Contribution(plan.for_clients(clients.present), upload, held, computed)

    def _merged_on(self, plan: Plan, clients: Clients) -> torch.device:
        """Where the uploads of a round are merged: on the device if all of them take a small part of it."""
        size = self.flat.dim if self.method.sparsifier.dense else plan.rnd.k
        uploads = memory.upload_bytes(len(clients.present), size, self.state.server.weights.dtype)
        return self.device if uploads <= memory.free_bytes(self.device) // 2 else torch.device("cpu")

    def _settle(self, work: Contribution, merged: Sparse, clients: Clients) -> None:
        """Forget what was sent and kept, in ``state.residual``."""
        held = self.state.residual
        if not self._streams:
            settled = round.settle(self.method, work.residual, work.upload, merged)
            if clients.index is not None:
                held.index_copy_(0, clients.index, settled)
            else:
                self.state.residual = settled
            return
        upload, merged = work.upload.to(held.device), merged.to(held.device)
        for part in chunks(len(clients.present), self._chunk):
            place = clients.place(part)
            held[place] = round.settle(self.method, held[place], upload.rows(part), merged)

    def _exchange_buffers(self, work: Contribution, clients: Clients) -> tuple[Named, Named]:
        """The moving buffers after the round: averaged over its clients where weights were exchanged, else local."""
        state = self.state
        if not self.flat.moving:
            return {}, {}
        if not work.plan.exchange:
            kept = {name: value.clone() for name, value in state.local_buffers.items()}
            for name, value in work.computed.buffers.items():
                kept[name][clients.present] = value
            return state.buffers, kept
        average = round.average_buffers(work.computed.buffers, clients.weight)
        total = self.data.num_clients
        return average, {name: value.expand(total, *value.shape).clone() for name, value in average.items()}

    def _losses(self, answered: Pending, buffers: Named, rows: Tensor, clients: Clients) -> tuple[Named, Ints]:
        """(C): the three losses on one sample (or a few) of each client's minibatch, and whose samples they are."""
        samples, seed = self.settings.probe_samples, self.method.seed
        chosen, owner = clients.probe_rows(rows, self.data.num_clients, samples, seed, self.state.server.steps + 1)
        x, y = self.data.x[chosen], self.data.y[chosen]
        weights = {"loss_before": answered.before, "loss_after": answered.after, "loss_probe": answered.probe}
        losses = {
            name: self.flat.sample_losses(self.flat.outputs(at, buffers, x), y)
            for name, at in weights.items()
            if at is not None
        }
        return losses, owner

    def _finish(self, begun: Begun) -> Record:
        record, clients, values = begun.record, begun.clients, begun.readings.read()
        self.working_on = record["round"]
        self._check_finite(values["losses"], values["largest"], clients.present)
        self._check_weights(values)
        round.note_counts(record, values, clients.participation)
        record["train_loss"] = float(clients.share @ values["losses"].double())
        if begun.answered is not None:
            names = ("loss_before", "loss_after", "loss_probe")
            losses = {name: self._mean(values[name], begun) for name in names if name in values}
            self.state.server, observed = round.observe(self.method, self.state.server, begun.answered, losses)
            round.note_observation(record, observed)
        self._begun, self._done = None, record
        return record

    def _mean(self, losses: Tensor, begun: Begun) -> float:
        mean = float(losses.double().mean())
        if not math.isfinite(mean) and begun.owner is not None:
            for place in (~torch.isfinite(losses)).nonzero()[:1, 0].tolist():
                client = int(begun.clients.present[begun.owner[place]])
                self._refuse(client, f"loss {float(losses[place])} after the step")
        return mean

    def _check_finite(self, losses: Tensor, largest: Tensor, clients: Ints) -> None:
        good = torch.isfinite(losses) & torch.isfinite(largest)
        if not bool(good.all()):
            row = int((~good).nonzero()[0])
            value = float(losses[row])
            what = f"loss {value}" if not math.isfinite(value) else "a gradient that is not finite"
            self._refuse(int(clients[row]), what)

    def _check_weights(self, readings: Named) -> None:
        if not math.isfinite(float(readings["weights"])):
            raise RunError(
                f"round {self.working_on}: the step leads to weights that are not finite; try a smaller step size"
            )

    def _refuse(self, client: int, what: str) -> NoReturn:
        name = self.data.label(client)
        raise RunError(f"round {self.working_on}: client {name} has {what}; try a smaller step size")

    def salvage(self) -> Record | None:
        """After an error in a round: the record of the round before it, if that was not returned; else None.

        Raises what was wrong with the round before, if its numbers were not finite: the error may come of that.
        """
        if self._done is None and self._begun is not None and self._begun.record["round"] < self.working_on:
            try:
                self._finish(self._begun)
            except RunError:
                raise
            except Exception:  # the first error is the one to tell
                return None
        return self._done

    def evaluate(self) -> tuple[float, float | None]:
        """The share-weighted loss over all training data, and the accuracy on the test split, at the global weights."""
        data, size = self.data, self.settings.eval_batch
        weights, buffers, losses, right = self.state.server.weights, self.state.buffers, [], []
        for part in chunks(len(data.x), size):
            outputs = self.flat.outputs(weights, buffers, data.x[part])
            with torch.no_grad():
                losses.append(self.flat.loss(outputs, data.y[part]).double() * (part.stop - part.start))
        if self._has_accuracy:
            for part in chunks(len(data.test_x), size):
                outputs = self.flat.outputs(weights, buffers, data.test_x[part])
                right.append((outputs.argmax(dim=1) == data.test_y[part]).sum())
        loss = float(torch.stack(losses).sum()) / len(data.x)
        return loss, int(torch.stack(right).sum()) / len(data.test_x) if right else None

    def model(self) -> nn.Module:
        """The module with the present global weights."""
        return self.flat.trained(self.state.server.weights, self.state.buffers)

    def _clients(self, first: int) -> Clients:
        """The clients of the round, or of the period, that starts at ``first``."""
        per_round, total = self.settings.clients_per_round, self.data.num_clients
        present = participants(total, per_round, self.method.seed, first)
        return self._everyone if len(present) == total else self._everyone.some(present)

    def _rows(self, clients: Clients) -> Rows:
        """The minibatches of each local step of the next round, drawn when they are first asked for."""
        first, drawn = self.state.server.steps + 1, dict[int, Tensor]()

        def rows(step: int) -> Tensor:
            if step not in drawn:
                drawn[step] = clients.rows(self.data, self.settings.batch_size, self.method.seed, first + step)
            return drawn[step]

        return rows
