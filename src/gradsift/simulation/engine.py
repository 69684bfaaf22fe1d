"""The vectorised driver: the round of the paper's Fig. 3, for all clients at once. It contains no algorithm.

On a CUDA device nothing here waits for the device, except where a number is needed to go on: a round is queued whole,
and read back while the next one's gradients run.

Shapes: N clients, n of them in a round, D weights, b samples a minibatch; residual [N, D].
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradsift import check, sparse
from gradsift.control import Controller, Observation, Proposal, round_k, round_probe_k
from gradsift.control.estimate import estimated_sign
from gradsift.cost import NUMBER_BYTES, CostModel, Traffic
from gradsift.data.federated import FederatedData
from gradsift.draws import rng
from gradsift.errors import GradsiftError, RunError
from gradsift.pairing import check_pair
from gradsift.round import Round
from gradsift.simulation import memory
from gradsift.simulation.flat import FlatModel, Loss, Named, chunks
from gradsift.simulation.sampling import Ints, minibatches, participants, probe_samples
from gradsift.simulation.schedule import Schedule
from gradsift.simulation.settings import Settings
from gradsift.simulation.state import Pending, Readings, State
from gradsift.sparse import Sparse, Whole, concatenate, densify, everything, members
from gradsift.sparsify.base import Sparsifier
from gradsift.wire import encoded_size

DEVICES = ("cpu", "cuda")
VMAP_KEEPS = 2  # times the activations of a plain pass
Record = dict[str, Any]  # one round, as it is written down


@dataclass(frozen=True)
class Clients:
    """Those of one round."""

    present: Ints
    index: Tensor | None  # the same on the device; None: everyone
    share: Tensor  # float64, on the CPU
    weight: Tensor  # share, on the device


@dataclass
class Begun:
    """A round that waits for its readings: what its record will hold, and what the controller will be told."""

    record: Record
    clients: Clients
    readings: Readings
    answered: Observation | None  # without its losses


class Engine:
    """A run: ``step`` makes one round, ``evaluate`` looks at where it stands; ``state`` is all there is to save."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: FederatedData,
        sparsifier: Sparsifier,
        controller: Controller[Any],
        cost: CostModel,
        lr: Schedule,
        settings: Settings,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        check_pair(sparsifier, controller)
        if not isinstance(cost, CostModel):
            raise GradsiftError(f"not a cost model: {cost!r}")
        check.real("lr of round 1", lr(1), low=0.0)
        if device.type not in DEVICES:
            raise GradsiftError(f"device must be one of {', '.join(DEVICES)}, got {str(device)!r}")
        small = np.flatnonzero(data.size < settings.batch_size)
        if len(small):
            raise GradsiftError(
                f"batch_size {settings.batch_size} is more than the {data.size[small[0]]} samples of client"
                f" {data.label(int(small[0]))} ({len(small)} clients have too few): take a smaller one"
                " (--batch-size), or leave these clients out (data.at_least(n))"
            )
        if settings.clients_per_round is not None and settings.clients_per_round > data.num_clients:
            raise GradsiftError(
                f"clients_per_round is {settings.clients_per_round}, there are {data.num_clients} clients"
            )
        self.sparsifier, self.controller, self.cost, self.lr = sparsifier, controller, cost, lr
        self.data = data.to(device, dtype)
        self.flat = FlatModel(model, loss, device, dtype)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
            kept = self._try_model(settings)
        each = kept + self.flat.dim * dtype.itemsize
        if settings.clients_per_chunk is None:
            fitting = memory.chunk_bytes(device) // each
            settings = replace(settings, clients_per_chunk=int(max(1, min(data.num_clients, fitting))))
        self.settings = settings
        self._chunk = settings.clients_per_chunk or 1
        self.device = device
        self.working_on = 0  # the round that an error belongs to
        self._begun: Begun | None = None
        self._done: Record | None = None  # finished while the next round was begun
        self._start = data.start
        everyone, share = np.arange(data.num_clients), torch.from_numpy(data.share)
        self._everyone = Clients(everyone, None, share, share.to(device, dtype))
        self._streams = memory.must_stream(self._memory_needs(kept), device)
        # What must be known before the gradients: who takes part, or how many elements leave while they pass by.
        self._needs_k_first = self._streams or type(sparsifier).period is not Sparsifier.period
        self.state = self._initial(dtype)

    def _try_model(self, settings: Settings) -> int:
        """One minibatch through the model, so that what cannot work fails now; the bytes it kept for the gradient."""
        rows = slice(0, settings.batch_size)
        classes = self.data.classes if self.data.labelled else None
        outputs, kept = self.flat.probe_batch(self.data.x[rows], self.data.y[rows], classes)
        is_logits = isinstance(outputs, Tensor) and outputs.dim() == 2 and self.data.labelled
        self._has_accuracy = is_logits and outputs.shape[1] > 1 and len(self.data.test_y) > 0
        if self.flat.moving and settings.buffers == "refuse":
            raise GradsiftError(
                f"buffers {', '.join(self.flat.moving)} change in training and are not gradients;"
                " buffers 'average' averages them at every exchange (--buffers average)"
            )
        self.flat.choose_way(*self._trial(settings.batch_size))
        return kept

    def _trial(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """[n, b, ...] the first samples of the first two clients."""
        rows = torch.from_numpy(np.stack([start + np.arange(batch_size) for start in self.data.start[:2]]))
        return self.data.x[rows], self.data.y[rows]

    def _memory_needs(self, kept: int) -> memory.Needs:
        """Of a model that keeps so many bytes of a minibatch for its gradient."""
        flat, settings, dense = self.flat, self.settings, self.sparsifier.dense
        first = self.controller.propose(self.controller.init(dim=flat.dim, seed=settings.seed), 1)
        present = settings.clients_per_round or self.data.num_clients
        activations = kept if flat.is_shared else VMAP_KEEPS * kept
        return memory.Needs(
            self.data.num_clients,
            flat.dim,
            k=0 if dense else min(flat.dim, round_k(first.k, settings.seed, 1)),
            dtype=flat.dtype,
            most=0 if dense else math.ceil(min(flat.dim, self.controller.largest_k(flat.dim))),
            present=present,
            activations=min(self._chunk, present) * (activations + flat.dim * flat.dtype.itemsize),
            losses=present * settings.probe_samples * kept // settings.batch_size if self.controller.learns else 0,
            buffers=sum(value.nbytes for value in flat.buffers().values()),
        )

    def _initial(self, dtype: torch.dtype) -> State:
        clients = self.data.num_clients
        control = self.controller.init(dim=self.flat.dim, seed=self.settings.seed)
        buffers = self.flat.buffers()
        return State(
            number=0,
            weights=self.flat.weights(),
            residual=torch.zeros(clients, self.flat.dim, device="cpu" if self._streams else self.device, dtype=dtype),
            control=control,
            buffers=buffers,
            local_buffers={name: value.expand(clients, *value.shape).clone() for name, value in buffers.items()},
        )

    def step(self) -> Record:
        """One whole round of Fig. 3; returns its record. After an error the state is void: go back to a checkpoint."""
        self.begin()
        return self.finish()

    def begin(self) -> Record | None:
        """One round of Fig. 3 up to where the controller waits for the losses, which ``finish`` reads.

        A round that was begun and not finished is finished here, while this one's gradients run (step 4 of Fig. 3
        allows it), and its record is returned. Only where k must be known before the gradients, and the round before
        holds what the controller learns from, is that one finished first.
        """
        state, settings = self.state, self.settings
        number = first = state.number + 1
        self._done, self.working_on = None, number
        proposal = None
        if self._needs_k_first:
            if self._begun is not None and self._begun.answered is not None:
                self._catch_up(number)
            proposal = self._propose(number)
            first -= (number - 1) % self.sparsifier.period(self.flat.dim, round_k(proposal.k, settings.seed, number))
        lr = float(self.lr(first))
        check.real(f"lr of round {first}", lr, low=0.0)
        clients = self._clients(participants(self.data.num_clients, settings.clients_per_round, settings.seed, first))
        rows = self._to_device(self._minibatches(clients.present, number))

        # (A): gradients, residuals; step 1: uploads.
        if self._streams:
            assert proposal is not None  # k is needed first
            rnd, residual = self._round(proposal, number), state.residual
            upload, gradients, local = self._streamed(clients, rows, lr, rnd)
        else:
            residual = state.residual if clients.index is None else state.residual[clients.index]
            point = self.sparsifier.point(state.weights, residual, lr)
            gradients, local = self._add_gradients(residual, point, clients.present, rows, number)
            del point  # as large as the residuals, maybe
            if proposal is None:
                proposal = self._propose(number)
            if not sparse.queued(residual):
                self._check_finite(gradients, clients.present, number)
            rnd = self._round(proposal, number)
            upload = self.sparsifier.choose(residual, rnd)
        probe_k = None
        if proposal.probe_k is not None:
            probe_k = round_probe_k(proposal.probe_k, rnd.k, settings.seed, number)

        # Steps 2 and 3: merge, probe. What is sent of the probe is B' - B.
        merged = self.sparsifier.combine(upload, clients.weight, rnd).to(self.device)
        after = _stepped(state.weights, merged, lr)
        gradients["weights"] = torch.linalg.vector_norm(after, torch.inf)
        if not sparse.queued(after):
            self._check_weights(gradients, number)
        less = probed = probe = change = None
        if probe_k is not None:
            less = self.sparsifier.prefix(upload, rnd, probe_k)
            probed = self.sparsifier.combine(less, clients.weight, rnd._replace(k=probe_k)).to(self.device)
            change = densify(probed).to(after).sub_(densify(merged))
            probe = after.sub(change, alpha=lr)
        readings = gradients | {"contributed": _contributed(upload, merged.to(upload.values.device))}
        if change is not None:
            readings["probe_elements"] = change.count_nonzero()

        # What it cost, and what the controller learns of it: at once, or of the round before. The probe's own message
        # is no part of theta(k), which is compared with theta(k'); it may be part of the bill.
        traffic = self._traffic(clients, upload, merged)
        seen = Observation(proposal, self.cost.round_cost(traffic), used_k=rnd.k, used_probe_k=probe_k)
        if less is not None and probed is not None:
            seen = seen._replace(probe_cost=self.cost.round_cost(self._traffic(clients, less, probed)))
        if change is not None and settings.charge_probe:
            indices = change.nonzero().squeeze(-1)
            traffic = self._traffic(clients, upload, merged, Sparse(indices, change[indices], upload.dim))
        bill = self.cost.round_cost(traffic)
        buffers, local_buffers = self._exchanged(local, clients, upload)
        self._settle(residual, upload, merged, clients)  # last: a whole upload is the residual itself

        now = Pending(seen, state.weights, after, probe) if self.controller.learns else None
        answered = state.pending if settings.delay else now
        if answered is not None:
            readings |= self._losses(answered, buffers, rows, clients, number)
        low, high = self.controller.searching(state.control) or (None, None)
        record = {
            "round": number,
            "cost": state.spent + bill,
            "round_cost": bill,
            "lr": lr,
            "k": proposal.k,
            "used_k": rnd.k,
            "probe_k": probe_k,
            "low": low,
            "high": high,
            "train_loss": None,
            "observed": None,
            "sign": None,
            "loss_before": None,
            "loss_after": None,
            "loss_probe": None,
            "up_elements": upload.size,
            "down_elements": merged.size,
            "probe_elements": None,
            "up_bytes": float(traffic.up_bytes.sum()),
            "down_bytes": float(traffic.down_bytes.sum()),
            "clients": len(clients.present),
            "contribution": None,
            "global_loss": None,
            "accuracy": None,
        }
        self._begun = Begun(record, clients, Readings(readings), None if answered is None else answered.seen)
        self.state = replace(
            state,
            number=number,
            weights=after,
            spent=state.spent + bill,
            offset=state.offset + upload.size,
            buffers=buffers,
            local_buffers=local_buffers,
            pending=now if settings.delay else None,
        )
        return self._done

    def finish(self) -> Record:
        """Read back the round that was begun, and tell the controller; returns its record."""
        if self._begun is None:
            raise RunError("no round was begun: there is none to finish")
        return self._finish(self._begun)

    def _catch_up(self, number: int) -> None:
        """Finish the round before ``number``, if that is still to do."""
        if self._begun is not None:
            self._finish(self._begun)
        self.working_on = number

    def _finish(self, begun: Begun) -> Record:
        record, clients, values = begun.record, begun.clients, begun.readings.read()
        self.working_on = number = record["round"]
        self._check_finite(values, clients.present, number)
        self._check_weights(values, number)
        contribution = np.zeros(self.data.num_clients, dtype=np.int64)
        contribution[clients.present] = values["contributed"].numpy()
        record["contribution"] = contribution.tolist()
        record["train_loss"] = float(clients.share @ values["losses"].double())
        if "probe_elements" in values:
            record["probe_elements"] = int(values["probe_elements"])
        if begun.answered is not None:
            names = ("loss_before", "loss_after", "loss_probe")
            losses: Record = {name: self._mean(values[name], clients, number) for name in names if name in values}
            observed = begun.answered._replace(**losses)
            self.state.control = self.controller.update(self.state.control, observed)
            record |= losses | {"observed": observed.proposal.number, "sign": estimated_sign(observed)}
        self._begun, self._done = None, record
        return record

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
        data, state, size = self.data, self.state, self.settings.eval_batch
        losses, right = [], []
        for part in chunks(len(data.x), size):
            outputs = self.flat.outputs(state.weights, state.buffers, data.x[part])
            with torch.no_grad():
                losses.append(self.flat.loss(outputs, data.y[part]).double() * (part.stop - part.start))
        if self._has_accuracy:
            for part in chunks(len(data.test_x), size):
                outputs = self.flat.outputs(state.weights, state.buffers, data.test_x[part])
                right.append((outputs.argmax(dim=1) == data.test_y[part]).sum())
        loss = float(torch.stack(losses).sum()) / len(data.x)
        return loss, int(torch.stack(right).sum()) / len(data.test_x) if right else None

    def model(self) -> nn.Module:
        """The module with the present global weights."""
        return self.flat.trained(self.state.weights, self.state.buffers)

    def _propose(self, number: int) -> Proposal:
        return self.controller.propose(self.state.control, number)

    def _round(self, proposal: Proposal, number: int) -> Round:
        rnd = Round(number, round_k(proposal.k, self.settings.seed, number), self.settings.seed, self.state.offset)
        rnd.validate(self.flat.dim)
        return rnd

    def _clients(self, present: Ints) -> Clients:
        everyone = self._everyone
        if len(present) == len(everyone.present):
            return everyone
        share = everyone.share[present] / everyone.share[present].sum()
        return Clients(present, self._to_device(present), share, self._to_device(share).to(everyone.weight.dtype))

    def _to_device(self, values: Ints | Tensor) -> Tensor:
        """On the device, without waiting for it."""
        return torch.as_tensor(values).to(self.device, non_blocking=True)

    def _minibatches(self, present: Ints, number: int) -> Ints:
        """[n, b] rows of the data."""
        drawn = minibatches(self.data.size, self.settings.batch_size, self.settings.seed, number)
        return (self._start[:, None] + drawn)[present]

    def _add_gradients(
        self, residual: Tensor, point: Tensor, present: Ints, rows: Tensor, number: int
    ) -> tuple[Named, Named]:
        """Each client's losses and the size of its largest element after; its moving buffers.

        The round before is finished when they are queued, and so before anything of this one is looked at.
        """
        losses, moved = [], []
        with torch.random.fork_rng(devices=[residual.device] if residual.is_cuda else []), torch.enable_grad():
            for part in chunks(len(present), self._chunk):
                _seed(residual.device, _dropout_seed(self.settings.seed, number, int(present[part.start])))
                buffers = {name: value[present[part]] for name, value in self.state.local_buffers.items()}
                x, y = self.data.x[rows[part]], self.data.y[rows[part]]
                at = point[part] if point.dim() == 2 else point
                values, after = self.flat.add_gradients(residual[part], at, buffers, x, y)
                losses.append(values)
                moved.append(after)
        gradients = {"losses": torch.cat(losses), "largest": torch.maximum(residual.amax(1), -residual.amin(1))}
        local = {name: torch.cat([part[name] for part in moved]) for name in self.flat.moving}
        self._catch_up(number)
        return gradients, local

    def _streamed(self, clients: Clients, rows: Tensor, lr: float, rnd: Round) -> tuple[Sparse, Named, Named]:
        """Gradients and uploads of residuals in the host's memory, a chunk of clients at a time on the device."""
        held, uploads, gradients, moved = self.state.residual, [], [], []
        merged_on, whole = self._merged_on(rnd, clients), False
        for part in self._parts(clients):
            who, place = clients.present[part], _place(clients, part)
            residual = held[place].to(self.device, copy=True)
            point = self.sparsifier.point(self.state.weights, residual, lr)
            values, after = self._add_gradients(residual, point, who, rows[part], rnd.number)
            held[place] = residual.cpu()
            self._check_finite(values, who, rnd.number)
            chosen = self.sparsifier.choose(residual, rnd)
            whole = isinstance(chosen, Whole)
            if not whole:
                uploads.append(chosen.to(merged_on))
            gradients.append(values)
            moved.append(after)
        joined = {name: torch.cat([values[name] for values in gradients]) for name in gradients[0]}
        local = {name: torch.cat([after[name] for after in moved]) for name in self.flat.moving}
        # Whole vectors are as large as all residuals: they stay where those are.
        upload = everything(held if clients.index is None else held[clients.present]) if whole else concatenate(uploads)
        return upload, joined, local

    def _merged_on(self, rnd: Round, clients: Clients) -> torch.device:
        """Where the uploads of a round are merged: on the device if all of them take a small part of it."""
        uploads = memory.upload_bytes(len(clients.present), rnd.k, self.state.weights.dtype)
        return self.device if uploads <= memory.free_bytes(self.device) // 2 else torch.device("cpu")

    def _parts(self, clients: Clients) -> Iterator[slice]:
        return chunks(len(clients.present), self._chunk)

    def _settle(self, residual: Tensor, upload: Sparse, merged: Sparse, clients: Clients) -> None:
        """Forget what was sent and kept, in ``state.residual``."""
        held = self.state.residual
        if self._streams:
            upload, merged = upload.to(held.device), merged.to(held.device)
            for part in self._parts(clients):
                place = _place(clients, part)
                held[place] = self.sparsifier.forget(held[place], upload.rows(part), merged)
            return
        self.sparsifier.forget(residual, upload, merged)
        if clients.index is not None:
            held.index_copy_(0, clients.index, residual)

    def _check_finite(self, gradients: Named, present: Ints, number: int) -> None:
        losses, largest = gradients["losses"], gradients["largest"]
        good = torch.isfinite(losses) & torch.isfinite(largest)
        if not bool(good.all()):
            row = int((~good).nonzero()[0])
            value = float(losses[row])
            what = f"loss {value}" if not math.isfinite(value) else "a gradient that is not finite"
            self._refuse(int(present[row]), what, number)

    @staticmethod
    def _check_weights(values: Named, number: int) -> None:
        if not math.isfinite(float(values["weights"])):
            raise RunError(f"round {number}: the step leads to weights that are not finite; try a smaller step size")

    def _refuse(self, client: int, what: str, number: int) -> NoReturn:
        raise RunError(f"round {number}: client {self.data.label(client)} has {what}; try a smaller step size")

    def _exchanged(self, local: Named, clients: Clients, upload: Sparse) -> tuple[Named, Named]:
        """The moving buffers after the round: averaged over its clients where weights were exchanged, else local."""
        state = self.state
        if not self.flat.moving:
            return {}, {}
        if upload.size == 0:
            kept = {name: value.clone() for name, value in state.local_buffers.items()}
            for name, value in local.items():
                kept[name][clients.present] = value
            return state.buffers, kept
        average = {
            name: torch.tensordot(clients.weight, value, dims=1) if value.is_floating_point() else value.amax(dim=0)
            for name, value in local.items()
        }
        total = self.data.num_clients
        return average, {name: value.expand(total, *value.shape).clone() for name, value in average.items()}

    def _traffic(self, clients: Clients, upload: Sparse, merged: Sparse, probe: Sparse | None = None) -> Traffic:
        """What was sent, or would have been; an empty message is none at all."""
        total, present = self.data.num_clients, clients.present
        took_part = np.zeros(total, dtype=bool)
        took_part[present] = True
        buffers = sum(self.state.buffers[name].numel() for name in self.flat.moving) if upload.size else 0
        sent = received = None
        if self.settings.encoded_bytes:
            sent = np.zeros(total)
            sent[present] = _encoded(upload) + NUMBER_BYTES * buffers
            received = np.full(total, _encoded(merged) + NUMBER_BYTES * buffers)
            received += 0 if probe is None else _encoded(probe)
        return Traffic.of(
            self.flat.dim,
            upload.size,
            merged.size,
            took_part=took_part,
            dense=self.sparsifier.dense,
            probe=0 if probe is None else probe.size,
            buffers=buffers,
            dense_fallback=self.settings.dense_fallback,
            up_bytes=sent,
            down_bytes=received,
        )

    def _losses(self, answered: Pending, buffers: Named, rows: Tensor, clients: Clients, number: int) -> Named:
        """(C): the three losses on one sample (or a few) of each client's minibatch of this round."""
        batch, samples, seed = self.settings.batch_size, self.settings.probe_samples, self.settings.seed
        picks = probe_samples(self.data.num_clients, batch, samples, seed, number)[clients.present]
        chosen = rows.gather(1, self._to_device(picks)).reshape(-1)
        x, y = self.data.x[chosen], self.data.y[chosen]
        weights = {"loss_before": answered.before, "loss_after": answered.after, "loss_probe": answered.probe}
        return {
            name: self.flat.sample_losses(self.flat.outputs(at, buffers, x), y)
            for name, at in weights.items()
            if at is not None
        }

    def _mean(self, losses: Tensor, clients: Clients, number: int) -> float:
        mean = float(losses.double().mean())
        if not math.isfinite(mean):
            for place in (~torch.isfinite(losses)).nonzero()[:1, 0].tolist():
                client = int(clients.present[place // self.settings.probe_samples])
                self._refuse(client, f"loss {float(losses[place])} after the step", number)
        return mean


def _place(clients: Clients, part: slice) -> slice | Ints:
    """Where some of the clients are in the residuals: a slice, which needs no copy, if all take part."""
    return part if clients.index is None else clients.present[part]


def _stepped(weights: Tensor, merged: Sparse, lr: float) -> Tensor:
    """``gradsift.apply`` without its checks."""
    if isinstance(merged, Whole):
        return weights.sub(merged.values, alpha=lr)
    return weights.index_add(0, merged.indices, merged.values, alpha=-lr)


def _contributed(upload: Sparse, merged: Sparse) -> Tensor:
    """[n] how many of the kept elements each client sent."""
    kept = members(merged.indices, upload.dim)
    if isinstance(upload, Whole):  # all of them
        return kept.sum().expand(len(upload.values))
    return kept[upload.indices].sum(dim=-1)


def _encoded(message: Sparse) -> NDArray[np.int64]:
    """The bytes of a message, or of each row, in the wire format."""
    rows = message.indices.shape[:-1]
    return np.asarray(encoded_size(message)) if message.size else np.zeros(rows, dtype=np.int64)


def _seed(device: torch.device, seed: int) -> None:
    """What ``torch.manual_seed`` does for the CPU and this device; it keeps a stack trace for every other kind."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)  # a tensor's device has a number


def _dropout_seed(seed: int, number: int, client: int) -> int:
    return int(rng(seed, "dropout", client=client, number=number).integers(2**63))
