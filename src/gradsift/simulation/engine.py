"""The vectorised driver: the round of the paper's Fig. 3, for all clients at once. It contains no algorithm.

Shapes: N clients, n of them in a round, D weights, b samples a minibatch; residual [N, D].
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradsift import check
from gradsift.control import Controller, Observation, round_k, round_probe_k
from gradsift.control.estimate import estimated_sign
from gradsift.cost import NUMBER_BYTES, CostModel, Traffic
from gradsift.data.federated import FederatedData
from gradsift.draws import rng
from gradsift.errors import GradsiftError, RunError
from gradsift.pairing import check_pair
from gradsift.round import Round
from gradsift.simulation.flat import FlatModel, Loss, Named, chunks
from gradsift.simulation.sampling import Ints, minibatches, participants, probe_samples
from gradsift.simulation.schedule import Schedule
from gradsift.simulation.settings import Settings
from gradsift.sparse import Sparse, difference
from gradsift.sparsify.base import Sparsifier
from gradsift.wire import encoded_size

CHUNK_BYTES = {"cpu": 2**30, "cuda": 2**34}  # activations and gradients of the clients computed together
Record = dict[str, Any]  # one round, as it is written down


class Pending(NamedTuple):
    """A round whose losses are not in yet: what the controller will be told, and the three weights to try."""

    seen: Observation
    before: Tensor
    after: Tensor
    probe: Tensor | None


@dataclass
class State:
    """Everything that a run carries from round to round."""

    number: int  # rounds done
    weights: Tensor  # [D]
    residual: Tensor  # [N, D]
    control: Any  # the controller's state
    spent: float = 0.0
    offset: int = 0  # elements each client has sent
    buffers: Named = field(default_factory=dict)  # moving buffers of the last exchange
    local_buffers: Named = field(default_factory=dict)  # [N, ...] each client's
    pending: Pending | None = None


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
        if device.type not in CHUNK_BYTES:
            raise GradsiftError(f"device must be one of {', '.join(CHUNK_BYTES)}, got {str(device)!r}")
        small = np.flatnonzero(data.size < settings.batch_size)
        if len(small):
            raise GradsiftError(
                f"batch_size {settings.batch_size} is more than the {data.size[small[0]]} samples of client"
                f" {data.label(int(small[0]))} ({len(small)} clients have too few; data.at_least(n) leaves them out)"
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
        if settings.clients_per_chunk is None:
            each = kept + self.flat.dim * torch.empty((), dtype=dtype).element_size()
            settings = replace(
                settings, clients_per_chunk=int(max(1, min(data.num_clients, CHUNK_BYTES[device.type] // each)))
            )
        self.settings = settings
        self._share = torch.from_numpy(data.share)
        self._start = data.start
        self.state = self._initial(device, dtype)

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
                " buffers='average' averages them at every exchange"
            )
        self.flat.choose_way(*self._trial(settings.batch_size))
        return kept

    def _trial(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """[n, b, ...] the first samples of the first two clients."""
        rows = torch.from_numpy(np.stack([start + np.arange(batch_size) for start in self.data.start[:2]]))
        return self.data.x[rows], self.data.y[rows]

    def _initial(self, device: torch.device, dtype: torch.dtype) -> State:
        clients = self.data.num_clients
        control = self.controller.init(dim=self.flat.dim, seed=self.settings.seed)
        buffers = self.flat.buffers()
        return State(
            number=0,
            weights=self.flat.weights(),
            residual=torch.zeros(clients, self.flat.dim, device=device, dtype=dtype),
            control=control,
            buffers=buffers,
            local_buffers={name: value.expand(clients, *value.shape).clone() for name, value in buffers.items()},
        )

    def step(self) -> Record:
        """One round of Fig. 3; returns its record. After an error in it the state is void: go back to a checkpoint."""
        state, settings = self.state, self.settings
        number, seed = state.number + 1, settings.seed
        proposal = self.controller.propose(state.control, number)
        k = round_k(proposal.k, seed, number)
        probe_k = None if proposal.probe_k is None else round_probe_k(proposal.probe_k, k, seed, number)
        rnd = Round(number, k, seed, state.offset)
        rnd.validate(self.flat.dim)
        first = number - (number - 1) % self.sparsifier.period(self.flat.dim, k)  # of a FedAvg period
        lr = float(self.lr(first))
        check.real(f"lr of round {first}", lr, low=0.0)
        present = participants(self.data.num_clients, settings.clients_per_round, seed, first)
        everyone = len(present) == self.data.num_clients
        share = self._share if everyone else self._share[present] / self._share[present].sum()

        # (A): gradients, residuals.
        rows = torch.from_numpy(self._minibatches(present, number)).to(state.weights.device)
        residual = state.residual if everyone else state.residual[present]
        point = self.sparsifier.point(state.weights, residual, lr)
        losses, local = self._add_gradients(residual, point, present, rows, number)
        self._check_finite(losses, residual, present, number)

        # Steps 1 to 3: upload, merge, probe.
        upload = self.sparsifier.choose(residual, rnd)
        merged = self.sparsifier.combine(upload, share, rnd)
        less = probed = None  # what would have been sent up and down at k'
        if probe_k is not None:
            less = self.sparsifier.prefix(upload, rnd, probe_k)
            probed = self.sparsifier.combine(less, share, rnd._replace(k=probe_k))
        change = None if probed is None else difference(probed, merged)
        after = _stepped(state.weights, merged, lr)
        if not bool(torch.isfinite(after).all()):
            raise RunError(f"round {number}: the step leads to weights that are not finite; try a smaller step size")
        probe = None if change is None else _stepped(after, change, lr)
        contributed = _contributed(upload, merged)

        # What it cost, and what the controller learns of it: at once, or of the round before. The probe's own message
        # is no part of theta(k), which is compared with theta(k'); it may be part of the bill.
        traffic = self._traffic(present, upload, merged)
        seen = Observation(proposal, self.cost.round_cost(traffic), used_k=k, used_probe_k=probe_k)
        if less is not None and probed is not None:
            seen = seen._replace(probe_cost=self.cost.round_cost(self._traffic(present, less, probed)))
        if change is not None and settings.charge_probe:
            traffic = self._traffic(present, upload, merged, change)
        bill = self.cost.round_cost(traffic)
        residual = self.sparsifier.forget(residual, upload, merged)  # last: a whole upload is the residual itself
        now: Pending | None = Pending(seen, state.weights, after, probe) if self.controller.learns else None
        answered = state.pending if settings.delay else now
        control, observed = state.control, None
        buffers, local_buffers = self._exchanged(local, present, share, upload)
        if answered is not None:
            observed = self._with_losses(answered, buffers, rows, present, number)
            control = self.controller.update(control, observed)

        if everyone:
            kept = residual
        else:
            kept = state.residual
            kept[present] = residual
        self.state = State(
            number=number,
            weights=after,
            residual=kept,
            control=control,
            spent=state.spent + bill,
            offset=state.offset + upload.size,
            buffers=buffers,
            local_buffers=local_buffers,
            pending=now if settings.delay else None,
        )
        low, high = self.controller.searching(state.control) or (None, None)
        contribution = np.zeros(self.data.num_clients, dtype=np.int64)
        contribution[present] = contributed.cpu().numpy()
        return {
            "round": number,
            "cost": self.state.spent,
            "round_cost": bill,
            "lr": lr,
            "k": proposal.k,
            "used_k": k,
            "probe_k": probe_k,
            "low": low,
            "high": high,
            "train_loss": float(share @ losses.double().cpu()),
            "observed": None if observed is None else observed.proposal.number,
            "sign": None if observed is None else estimated_sign(observed),
            "loss_before": None if observed is None else observed.loss_before,
            "loss_after": None if observed is None else observed.loss_after,
            "loss_probe": None if observed is None else observed.loss_probe,
            "up_elements": upload.size,
            "down_elements": merged.size,
            "probe_elements": None if change is None else change.size,
            "up_bytes": float(traffic.up_bytes.sum()),
            "down_bytes": float(traffic.down_bytes.sum()),
            "clients": len(present),
            "contribution": contribution.tolist(),
            "global_loss": None,
            "accuracy": None,
        }

    def evaluate(self) -> tuple[float, float | None]:
        """The share-weighted loss over all training data, and the accuracy on the test split, at the global weights."""
        data, total = self.data, 0.0
        for part in chunks(len(data.x), self.settings.eval_batch):
            outputs = self.flat.outputs(self.state.weights, self.state.buffers, data.x[part])
            with torch.no_grad():
                total += float(self.flat.loss(outputs, data.y[part])) * (part.stop - part.start)
        if not self._has_accuracy:
            return total / len(data.x), None
        right = 0
        for part in chunks(len(data.test_x), self.settings.eval_batch):
            outputs = self.flat.outputs(self.state.weights, self.state.buffers, data.test_x[part])
            right += int((outputs.argmax(dim=1) == data.test_y[part]).sum())
        return total / len(data.x), right / len(data.test_x)

    def model(self) -> nn.Module:
        """The module with the present global weights."""
        return self.flat.trained(self.state.weights, self.state.buffers)

    def _minibatches(self, present: Ints, number: int) -> Ints:
        """[n, b] rows of the data."""
        drawn = minibatches(self.data.size, self.settings.batch_size, self.settings.seed, number)
        return (self._start[:, None] + drawn)[present]

    def _add_gradients(
        self, residual: Tensor, point: Tensor, present: Ints, rows: Tensor, number: int
    ) -> tuple[Tensor, Named]:
        losses, moved = [], []
        assert self.settings.clients_per_chunk is not None
        with torch.random.fork_rng(devices=[residual.device] if residual.is_cuda else []), torch.enable_grad():
            for part in chunks(len(present), self.settings.clients_per_chunk):
                torch.manual_seed(_dropout_seed(self.settings.seed, number, int(present[part.start])))
                buffers = {name: value[present[part]] for name, value in self.state.local_buffers.items()}
                x, y = self.data.x[rows[part]], self.data.y[rows[part]]
                at = point[part] if point.dim() == 2 else point
                values, after = self.flat.add_gradients(residual[part], at, buffers, x, y)
                losses.append(values)
                moved.append(after)
        return torch.cat(losses), {name: torch.cat([part[name] for part in moved]) for name in self.flat.moving}

    def _check_finite(self, losses: Tensor, residual: Tensor, present: Ints, number: int) -> None:
        good = torch.isfinite(losses) & torch.isfinite(residual).all(dim=1)
        if not bool(good.all()):
            row = int((~good).nonzero()[0])
            value = float(losses[row])
            what = f"loss {value}" if not math.isfinite(value) else "a gradient that is not finite"
            self._refuse(int(present[row]), what, number)

    def _refuse(self, client: int, what: str, number: int) -> NoReturn:
        raise RunError(f"round {number}: client {self.data.label(client)} has {what}; try a smaller step size")

    def _exchanged(self, local: Named, present: Ints, share: Tensor, upload: Sparse) -> tuple[Named, Named]:
        """The moving buffers after the round: averaged over its clients where weights were exchanged, else local."""
        state = self.state
        if not self.flat.moving:
            return {}, {}
        if upload.size == 0:
            kept = {name: value.clone() for name, value in state.local_buffers.items()}
            for name, value in local.items():
                kept[name][present] = value
            return state.buffers, kept
        weight = share.to(state.weights)
        average = {
            name: torch.tensordot(weight, value, dims=1) if value.is_floating_point() else value.amax(dim=0)
            for name, value in local.items()
        }
        clients = self.data.num_clients
        return average, {name: value.expand(clients, *value.shape).clone() for name, value in average.items()}

    def _traffic(self, present: Ints, upload: Sparse, merged: Sparse, probe: Sparse | None = None) -> Traffic:
        """What was sent, or would have been; an empty message is none at all."""
        clients = self.data.num_clients
        took_part = np.zeros(clients, dtype=bool)
        took_part[present] = True
        buffers = sum(self.state.buffers[name].numel() for name in self.flat.moving) if upload.size else 0
        sent = received = None
        if self.settings.encoded_bytes:
            sent = np.zeros(clients)
            sent[present] = _encoded(upload) + NUMBER_BYTES * buffers
            received = np.full(clients, _encoded(merged) + NUMBER_BYTES * buffers)
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

    def _with_losses(self, answered: Pending, buffers: Named, rows: Tensor, present: Ints, number: int) -> Observation:
        """(C): the three losses on one sample (or a few) of each client's minibatch of this round, averaged."""
        batch, samples, seed = self.settings.batch_size, self.settings.probe_samples, self.settings.seed
        picks = probe_samples(self.data.num_clients, batch, samples, seed, number)[present]
        chosen = rows.gather(1, torch.from_numpy(picks).to(rows.device)).reshape(-1)
        x, y = self.data.x[chosen], self.data.y[chosen]

        def average(weights: Tensor) -> float:
            losses = self.flat.sample_losses(self.flat.outputs(weights, buffers, x), y).double().cpu()
            for place in (~torch.isfinite(losses)).nonzero()[:1, 0].tolist():
                self._refuse(int(present[place // samples]), f"loss {float(losses[place])} after the step", number)
            return float(losses.mean())

        return answered.seen._replace(
            loss_before=average(answered.before),
            loss_after=average(answered.after),
            loss_probe=None if answered.probe is None else average(answered.probe),
        )


def _stepped(weights: Tensor, merged: Sparse, lr: float) -> Tensor:
    """``gradsift.apply`` without its checks."""
    return weights.index_add(0, merged.indices, merged.values, alpha=-lr)


def _contributed(upload: Sparse, merged: Sparse) -> Tensor:
    """[n] how many of the kept elements each client sent."""
    kept = torch.zeros(upload.dim, dtype=torch.bool, device=merged.indices.device)
    kept[merged.indices] = True
    return kept[upload.indices].sum(dim=-1)


def _encoded(message: Sparse) -> NDArray[np.int64]:
    """The bytes of a message, or of each row, in the wire format."""
    rows = message.indices.shape[:-1]
    return np.asarray(encoded_size(message)) if message.size else np.zeros(rows, dtype=np.int64)


def _dropout_seed(seed: int, number: int, client: int) -> int:
    return int(rng(seed, "dropout", client=client, number=number).integers(2**63))
