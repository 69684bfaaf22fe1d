"""One round of federated training, as pure functions: they hold all the order there is, and every driver calls them.

The round of the paper's Fig. 3, for a ``Method`` and the state of its ``Server``:

    plan        k and k' from the controller, the step size, how much each client computes
    (clients)   method.local.accumulate: gradients are added to the residuals              (A)
    contribute  what each client sends of its residual                                     step 1
    merge       what the server sends back, its step, the probe at k', price and record    steps 2 and 3
    settle      each client forgets what was sent and kept
    observe     the controller learns from the losses before, after, and at k'             (C), (D), steps 4 and 5

A driver moves the messages, computes gradients and losses, and keeps the states.

Shapes: D weights, N clients of which n take part; residual [n, D], uploads [n, k], share [n].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradsift import check, check_tensors
from gradsift.control import Observation, Proposal, round_k, round_probe_k
from gradsift.control.base import K
from gradsift.control.estimate import estimated_sign
from gradsift.cost import NUMBER_BYTES, Traffic
from gradsift.errors import GradsiftError
from gradsift.method import Method
from gradsift.records.record import Record
from gradsift.sparse import Ragged, Sparse, Whole, densify, kept, nothing
from gradsift.sparsify.base import Round, Sparsifier
from gradsift.values import Exact

Named = dict[str, Tensor]
UsedK = int | tuple[int, ...]  # one number for all clients, or one for each


@dataclass(frozen=True)
class Server:
    """What the server carries from round to round, whichever driver runs it."""

    weights: Tensor  # [D]
    control: Any  # the controller's state
    number: int = 0  # rounds done
    steps: int = 0  # gradients that a client that took part in all rounds has computed
    offset: int = 0  # elements that it has sent
    spent: float = 0.0


class Plan(NamedTuple):
    """A round before it starts."""

    rnd: Round
    proposal: Proposal
    probe_k: UsedK | None
    lr: float
    first: int  # the round in which its clients are drawn: its own, or the first since the last exchange
    steps: int  # gradients that each client computes
    steps_before: int  # and has computed in the rounds before: its minibatches are counted on from there
    exchange: bool  # whether anything is sent at its end
    interval: tuple[float, float] | None  # in which the controller searches

    def for_clients(self, clients: Sequence[int] | NDArray[np.int64]) -> "Plan":
        """The same plan for the clients that take part, where each has a k of its own."""
        if self.rnd.client_k is None:
            return self
        every, probe_k = self.rnd.client_k, self.probe_k
        if max(clients) >= len(every):
            raise GradsiftError(f"the controller proposed k for {len(every)} clients, there is a client {max(clients)}")
        if isinstance(probe_k, tuple):
            probe_k = tuple(probe_k[client] for client in clients)
        return self._replace(rnd=self.rnd.at([every[client] for client in clients]), probe_k=probe_k)


class Attendance(NamedTuple):
    """Who took part in a round, of all clients there are, and what they sent beside elements."""

    took_part: NDArray[np.bool_]  # [N]
    buffers: int = 0  # numbers that travel dense at an exchange, up and down: averaged buffers of the model


class Outcome(NamedTuple):
    """A round after it was merged."""

    server: Server
    merged: Sparse  # B, what the server sends back
    probe: Tensor | None  # [D] the weights as they would be at k'
    change: Tensor | None  # [D] B' - B
    seen: Observation | None  # for ``observe``, without its losses; None: the controller does not learn
    record: Record  # without its losses, and without ``counts``
    counts: Named  # of the record, still on the device: "contribution" [n], "probe_elements" []


def start(method: Method, weights: Tensor) -> Server:
    """The server before the first round."""
    return Server(weights, method.controller.init(len(weights), method.seed))


def plan(method: Method, server: Server) -> Plan:
    """The next round: k and k', rounded, the step size, and who is due to exchange."""
    number, dim, local = server.number + 1, len(server.weights), method.local
    proposal = method.controller.propose(server.control, number)
    used = _rounded(proposal.k, method.seed, number)
    rnd = Round(number, 1, method.seed, server.offset).at(used)
    rnd.validate(dim)
    period = local.period(dim, rnd.k)
    first = number - (number - 1) % period
    lr = method.lr(first)
    check.real(f"lr of round {first}", lr, low=0.0)
    return Plan(
        rnd,
        proposal,
        None if proposal.probe_k is None else _rounded_probe(proposal.probe_k, used, method.seed, number),
        float(lr),
        first,
        local.computations,
        server.steps,
        number % period == 0,
        method.controller.search_interval(server.control),
    )


def _rounded(k: K, seed: int, number: int) -> UsedK:
    if isinstance(k, tuple):
        return tuple(round_k(each, seed, number, client) for client, each in enumerate(k))
    return round_k(k, seed, number)


def _rounded_probe(probe_k: K, used: UsedK, seed: int, number: int) -> UsedK:
    if isinstance(used, int):
        if isinstance(probe_k, tuple):
            raise GradsiftError(f"the controller proposed one k for all clients, and {len(probe_k)} of k'")
        return round_probe_k(probe_k, used, seed, number)
    each = probe_k if isinstance(probe_k, tuple) else (probe_k,) * len(used)
    if len(each) != len(used):
        raise GradsiftError(f"the controller proposed k for {len(used)} clients, and k' for {len(each)}")
    # A client that sends one element sends it at k' too: fewer than one is none.
    return tuple(
        round_probe_k(below, k, seed, number, client) if k > 1 else 1
        for client, (below, k) in enumerate(zip(each, used, strict=True))
    )


def contribute(method: Method, plan: Plan, residual: Tensor) -> Sparse:
    """Step 1: what arrives of each client's upload, [n, k] or [k]; nothing in a round without an exchange.

    A dense upload may be ``residual`` itself: settle after everything else.
    """
    return method.values.rounded(_upload(method, plan, residual))


def encoded_contribution(method: Method, plan: Plan, residual: Tensor) -> bytes:
    """Step 1 of one client [D] as bytes: decoding gives what ``contribute`` gives."""
    return method.values.encode(_upload(method, plan, residual))


def _upload(method: Method, plan: Plan, residual: Tensor) -> Sparse:
    if not plan.exchange:
        return nothing(residual)
    rnd = plan.rnd.at(plan.rnd.k) if residual.dim() == 1 else plan.rnd  # one client has one k
    sent = method.sparsifier.upload(residual, rnd)
    if len(set(rnd.client_k or ())) > 1 and not (method.sparsifier.dense or isinstance(sent, Ragged)):
        raise GradsiftError(
            f"sparsifier {method.sparsifier.name!r} makes all uploads equally long,"
            f" but each client has a k of its own: {list(rnd.client_k or ())}"
        )
    return sent


def merge(
    method: Method, server: Server, plan: Plan, uploads: Sparse, share: Tensor, attendance: Attendance
) -> Outcome:
    """Steps 2 and 3: what the server sends back, its step along that, the same at k', the price and the record."""
    sparsifier, weights, dim = method.sparsifier, server.weights, uploads.dim
    merged = sparsifier.merge(uploads, share, plan.rnd) if uploads.size else nothing(weights)
    merged = merged.to(weights.device)
    after = stepped(weights, merged, plan.lr)
    counts = {"contribution": kept_elements(uploads, merged.to(uploads.values.device))}
    # The probe's own message is no part of theta(k), which is compared with theta(k'); it may be part of the bill.
    traffic = count_traffic(method, attendance, plan, uploads, merged)
    cost = method.cost.round_cost(traffic)
    seen = Observation(plan.proposal, cost, used_k=plan.rnd.k)
    probe = change = None
    if plan.probe_k is not None:
        smaller = plan.rnd.at(plan.probe_k)
        fewer = sparsifier.truncate(uploads, smaller)
        if type(sparsifier).probe is Sparsifier.probe:  # which would truncate again
            probed = sparsifier.merge(fewer, share, smaller).to(weights.device)
        else:
            probed = sparsifier.probe(uploads, share, plan.rnd, plan.probe_k).to(weights.device)
        probe_cost = method.cost.round_cost(count_traffic(method, attendance, plan, fewer, probed))
        seen = seen._replace(probe_cost=probe_cost, used_probe_k=smaller.k)
        change = densify(probed).to(after).sub_(densify(merged))
        probe = after.sub(change, alpha=plan.lr)
        counts["probe_elements"] = change.count_nonzero()
        if method.charge_probe:
            indices = change.nonzero().squeeze(-1)
            message = Sparse(indices, change[indices], dim)
            traffic = count_traffic(method, attendance, plan, uploads, merged, message)
    bill = method.cost.round_cost(traffic)
    done = replace(
        server,
        weights=after,
        number=plan.rnd.number,
        steps=server.steps + plan.steps,
        offset=server.offset + uploads.size,
        spent=server.spent + bill,
    )
    record = _record(plan, done, bill)
    record["up_elements"], record["down_elements"] = uploads.size, merged.size
    record["up_bytes"], record["down_bytes"] = float(traffic.up_bytes.sum()), float(traffic.down_bytes.sum())
    record["clients"] = int(traffic.took_part.sum())
    return Outcome(done, merged, probe, change, seen if method.controller.learns else None, record, counts)


def skip(server: Server, plan: Plan, clients: int) -> tuple[Server, Record]:
    """A round in which nobody took part: it is counted and recorded, and changes nothing else."""
    done = replace(server, number=plan.rnd.number, steps=server.steps + plan.steps)
    record = _record(plan, done, 0.0)
    record["contribution"] = [0] * clients
    return done, record


def settle(method: Method, residual: Tensor, upload: Sparse, merged: Sparse) -> Tensor:
    """The residuals [n, D] or [D] after the round; ``residual`` itself may be changed."""
    return method.sparsifier.settle(residual, upload, merged)


def observe(
    method: Method, server: Server, seen: Observation, losses: Mapping[str, float]
) -> tuple[Server, Observation]:
    """(D): the server after its controller has learned the losses of a round; no losses: nobody could report any."""
    observed = seen._replace(**losses)  # type: ignore[arg-type]  # the three losses, by name
    observed.validate(method.controller.probes)
    return replace(server, control=method.controller.update(server.control, observed)), observed


def note_observation(record: Record, observed: Observation) -> None:
    """Write into the record of a round what the controller was told in it."""
    record["observed"] = observed.proposal.number
    record["loss_before"], record["loss_after"] = observed.loss_before, observed.loss_after
    record["loss_probe"], record["sign"] = observed.loss_probe, estimated_sign(observed)


def note_counts(record: Record, counts: Named, attendance: Attendance) -> None:
    """Write ``Outcome.counts``, which have come from the device by now, into the record of the round."""
    contribution = np.zeros(len(attendance.took_part), dtype=np.int64)
    contribution[attendance.took_part] = counts["contribution"].numpy()
    record["contribution"] = contribution.tolist()
    if "probe_elements" in counts:
        record["probe_elements"] = int(counts["probe_elements"])


def stepped(weights: Tensor, merged: Sparse, lr: float) -> Tensor:
    """Equation (1): the weights after a step of size ``lr`` along the sparse gradient ``merged``."""
    if isinstance(merged, Whole):
        return weights.sub(merged.values, alpha=lr)
    return weights.index_add(0, merged.indices, merged.values.to(weights), alpha=-lr)


def apply(weights: Tensor, merged: Sparse, lr: float) -> Tensor:
    """``stepped``, with its arguments checked."""
    check.real("lr", lr, low=0.0)
    check_tensors.sparse("merged", merged, rows=False)
    if weights.dim() != 1 or weights.shape[0] != merged.dim:
        raise GradsiftError(f"weights must have shape [{merged.dim}], as merged has, got {list(weights.shape)}")
    check_tensors.finite("weights", weights)
    return stepped(weights, merged, lr)


def kept_elements(uploads: Sparse, merged: Sparse) -> Tensor:
    """[n] how many of the elements that the server kept each client sent."""
    if isinstance(uploads, Whole):
        return torch.tensor(merged.size).expand(len(uploads.values))
    return kept(uploads, merged).sum(dim=-1)


def average_buffers(local: Named, share: Tensor) -> Named:
    """The clients' buffers [n, ...] as one: floats averaged by share, the largest of what is counted."""
    return {
        name: torch.tensordot(share, value.to(share.dtype), dims=1).to(value.dtype)
        if value.is_floating_point()
        else value.amax(dim=0)
        for name, value in local.items()
    }


def count_traffic(
    method: Method, attendance: Attendance, plan: Plan, uploads: Sparse, merged: Sparse, probe: Sparse | None = None
) -> Traffic:
    """What the clients sent and received, or would have; an empty message is none at all."""
    took_part = attendance.took_part
    buffers = attendance.buffers if uploads.size else 0
    up: int | NDArray[np.int64] = uploads.size
    if isinstance(uploads, Ragged):
        up = np.zeros(len(took_part), dtype=np.int64)
        up[took_part] = uploads.lengths
    sent = received = None
    if method.encoded_bytes:
        sent = np.zeros(len(took_part))
        sent[took_part] = method.values.encoded_size(uploads) + NUMBER_BYTES * buffers
        received = float(Exact().encoded_size(merged)) + NUMBER_BYTES * buffers
        received += 0.0 if probe is None else float(Exact().encoded_size(probe))
    return Traffic.of(
        uploads.dim,
        up,
        merged.size,
        took_part=took_part,
        dense=method.sparsifier.dense,
        probe=0 if probe is None else probe.size,
        buffers=buffers,
        dense_fallback=method.dense_fallback,
        up_bytes=sent,
        down_bytes=received,
        steps=plan.steps,
    )


def _record(plan: Plan, done: Server, bill: float) -> Record:
    """The record of a round in which nothing was sent."""
    proposed, rnd = plan.proposal.k, plan.rnd
    low, high = plan.interval or (None, None)
    return Record(
        round=rnd.number,
        cost=done.spent,
        round_cost=bill,
        lr=plan.lr,
        k=float(np.mean(proposed)) if isinstance(proposed, tuple) else proposed,
        used_k=rnd.k,
        client_k=None if rnd.client_k is None else list(rnd.client_k),
        probe_k=max(plan.probe_k) if isinstance(plan.probe_k, tuple) else plan.probe_k,
        low=low,
        high=high,
        steps=plan.steps,
        train_loss=None,
        observed=None,
        sign=None,
        loss_before=None,
        loss_after=None,
        loss_probe=None,
        up_elements=0,
        down_elements=0,
        probe_elements=None,
        up_bytes=0.0,
        down_bytes=0.0,
        clients=0,
        contribution=[],
        refused=0,
        resets=0,
        global_loss=None,
        accuracy=None,
    )
