"""One round of federated training as pure functions, which every driver calls in this order.

The round of the paper's Fig. 3, for a ``Method`` and the state of its ``Server``:

    (priced     what rounds cost at any k, before the first, for a controller that plans)
    plan        k and k' from the controller, the step size, whether the clients upload
    (clients)   method.local.accumulate adds gradients to the residuals                    (A)
    contribute  the elements that each client uploads                                      step 1
    merge       the server's aggregate, its step, the probe at k', the cost, the record    steps 2 and 3
    settle      each client subtracts from its residual what was sent and kept
    observe     the controller learns from the losses before, after, and at k'             (C), (D), steps 4 and 5

A driver moves the messages, computes gradients and losses, and keeps the states.

Shapes: D weights, N clients of which n take part; residual [n, D], uploads [n, k], share [n].
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradsift import check, contract, weighing
from gradsift.control import Observation, Proposal
from gradsift.control.estimate import estimated_sign
from gradsift.control.law import Prices
from gradsift.control.rounding import UsedK, rounded, rounded_probe
from gradsift.cost import NUMBER_BYTES, Traffic, checked_cost
from gradsift.errors import GradsiftError
from gradsift.method import Method
from gradsift.records.record import Record, empty_record
from gradsift.server import Server, advance, initial_memory
from gradsift.sparse import Ragged, Sparse, Whole, densify, kept, nothing
from gradsift.sparsify.base import Round, Sparsifier
from gradsift.values import Exact

Named = dict[str, Tensor]


class Plan(NamedTuple):
    """What the server decides before a round."""

    rnd: Round
    proposal: Proposal  # the controller's k and k' before rounding
    probe_k: UsedK | None  # k' after rounding; None if the controller does not probe
    lr: float
    period_start: int  # the first round after the last exchange, whose number decides the clients and the step size
    steps: int  # gradients that each client computes in this round
    steps_before: int  # ``Server.steps`` before this round; the numbers of its minibatches continue from there
    exchange: bool  # whether the clients upload at the end of this round
    search_interval: tuple[float, float] | None  # the controller's, for the record

    def for_clients(self, clients: Sequence[int] | NDArray[np.int64]) -> "Plan":
        """The plan for these clients only: if k differs between clients, it keeps the k of these, in this order."""
        if self.rnd.client_k is None:
            return self
        all_k, probe_k = self.rnd.client_k, self.probe_k
        if max(clients) >= len(all_k):
            raise GradsiftError(f"the controller proposed k for {len(all_k)} clients, not for client {max(clients)}")
        if isinstance(probe_k, tuple):
            probe_k = tuple(probe_k[client] for client in clients)
        return self._replace(rnd=self.rnd.at([all_k[client] for client in clients]), probe_k=probe_k)


class Participation(NamedTuple):
    """Which of all clients took part in a round, and what they exchanged besides gradient elements."""

    took_part: NDArray[np.bool_]  # [N]
    buffers: int = 0  # elements of the model's averaged buffers, which travel dense in both directions
    seconds: float | None = None  # that the round took, if the driver measures time


class Outcome(NamedTuple):
    """The result of ``merge``."""

    server: Server
    merged: Sparse  # B, the aggregate of the uploads
    sent: Sparse  # what the server sends back: B, or the rounded update if ``method.plain_step`` is not set
    probe_weights: Tensor | None  # [D] the weights as a round at k' would have left them; None without a probe
    probe_change: Tensor | None  # [D] B' - B, or else what it changes in the weights; None without a probe
    observation: Observation | None  # for ``observe``, still without losses; None if the controller does not learn
    record: Record  # still without losses and ``counts``
    counts: Named  # columns of the record that are still on the device: "contribution" [n], "probe_elements" []


def start(method: Method, weights: Tensor) -> Server:
    """The server before the first round."""
    control = method.controller.init(len(weights), method.seed)
    return Server(weights, control, memory=initial_memory(method, weights))


def priced(method: Method, server: Server, prices: Prices | None) -> Server:
    """The server whose controller knows the ``prices`` of rounds; None if they can only be measured.

    For a controller that plans, such as the default: call it after ``start`` with ``gradsift.pricing.prices``.
    """
    if prices is not None:
        prices.validate()
    return replace(server, control=method.controller.priced(server.control, prices))


def plan(method: Method, server: Server) -> Plan:
    """The plan of the next round: k and k', rounded, the step size, and whether the clients upload."""
    number, dim, local = server.number + 1, len(server.weights), method.local
    proposal = Proposal.plain(method.controller.propose(server.control, number))
    k = rounded(proposal.k, method.seed, number)
    rnd = Round(number, 1, method.seed, server.offset).at(k)
    rnd.validate(dim)
    period = local.period(dim, rnd.k)
    check.integer(f"the period of local computation {local.name!r}", period, 1)
    period_start = number - (number - 1) % period
    lr = method.lr(period_start)
    check.real(f"lr of round {period_start}", lr, low=0.0)
    return Plan(
        rnd,
        proposal,
        None if proposal.probe_k is None else rounded_probe(proposal.probe_k, k, method.seed, number),
        float(lr),
        period_start,
        local.computations,
        server.steps,
        number % period == 0,
        method.controller.search_interval(server.control),
    )


def contribute(method: Method, plan: Plan, residual: Tensor) -> Sparse:
    """Step 1: each client's upload, [n, k] or [k], as the server receives it; empty in a round without an exchange.

    A dense upload may share memory with ``residual``, so call ``settle`` only after ``merge``.
    """
    upload = _upload(method, plan, residual)
    received = method.values.rounded(upload)
    contract.check_rounded(method, plan.rnd, upload, received)
    return received


def encoded_contribution(method: Method, plan: Plan, residual: Tensor) -> bytes:
    """Step 1 for one client [D]: its upload as bytes, which decode to the result of ``contribute``."""
    return method.values.encode(_upload(method, plan, residual))


def _upload(method: Method, plan: Plan, residual: Tensor) -> Sparse:
    if not plan.exchange:
        return nothing(residual)
    rnd = plan.rnd.at(plan.rnd.k) if residual.dim() == 1 else plan.rnd  # a single client has a single k
    upload = method.sparsifier.upload(residual, rnd)
    contract.check_upload(method, rnd, residual, upload)
    if len(set(rnd.client_k or ())) > 1 and not (method.sparsifier.dense or isinstance(upload, Ragged)):
        raise GradsiftError(
            f"sparsifier {method.sparsifier.name!r} makes all uploads equally long,"
            f" but each client has a k of its own: {list(rnd.client_k or ())}"
        )
    return upload


def merge(
    method: Method,
    server: Server,
    plan: Plan,
    uploads: Sparse,
    share: Tensor,
    participation: Participation,
    mass: Tensor | None = None,
) -> Outcome:
    """Steps 2 and 3: aggregate the uploads, step, do the same for the probe at k', price and record the round.

    ``mass`` [n] is the sum of the absolute values of each residual before the upload, which a controller that weighs
    needs.
    Nothing is read back from a CUDA device, except the size of the probe's message if ``method.charge_probe`` is set.
    """
    if mass is None and method.controller.weighs:
        raise GradsiftError(
            f"controller {method.controller.name!r} needs to know what waits: call merge with"
            " mass=gradsift.weighing.residual_mass(residual), of each client before its upload (docs/extending.md)"
        )
    weights = server.weights
    merged = nothing(weights)
    if uploads.size:
        merged = method.sparsifier.merge(uploads, share, plan.rnd)
        contract.check_merged(method, plan.rnd, uploads, merged)
    merged = merged.to(weights.device)
    after, sent = advance(method, server, merged, plan.lr)
    counts = {"contribution": kept_elements(uploads, merged.to(uploads.values.device))}
    if mass is not None and uploads.size:
        counts["waiting"] = weighing.waiting(uploads, merged.to(uploads.values.device), share, mass)
    traffic = count_traffic(method, plan, participation, uploads, sent)
    cost = checked_cost(method.cost, traffic)
    # theta(k) excludes the probe's message, because it is compared with theta(k').
    fraction = float(participation.took_part.mean())
    observation = Observation(plan.proposal, cost, used_k=plan.rnd.k, took_part=fraction)
    probe_weights = change = None
    if plan.probe_k is not None:
        smaller = plan.rnd.at(plan.probe_k)
        truncated, probed = _probe(method.sparsifier, uploads, share, plan.rnd, smaller)
        probed = probed.to(weights.device)
        not_made = participation._replace(seconds=None)  # so nobody knows how long it would have taken
        at_probe, probe_sent = advance(method, server, probed, plan.lr)
        probe_cost = checked_cost(method.cost, count_traffic(method, plan, not_made, truncated, probe_sent))
        observation = observation._replace(probe_cost=probe_cost, used_probe_k=smaller.k)
        if method.plain_step:
            change = densify(probed).to(weights).sub_(densify(merged))
            probe_weights = after.weights.sub(change, alpha=plan.lr)
        else:
            probe_weights = at_probe.weights
            change = after.weights - probe_weights
        counts["probe_elements"] = change.count_nonzero()
        if method.charge_probe:
            indices = change.nonzero().squeeze(-1)
            message = Sparse(indices, change[indices], uploads.dim)
            traffic = count_traffic(method, plan, participation, uploads, sent, message)
            cost = checked_cost(method.cost, traffic)
    done = replace(
        after,
        number=plan.rnd.number,
        steps=server.steps + plan.steps,
        offset=server.offset + uploads.size,
        spent=server.spent + cost,
    )
    record = _record(plan, done, cost)
    record["up_elements"], record["down_elements"] = uploads.size, merged.size
    record["up_bytes"], record["down_bytes"] = float(traffic.up_bytes.sum()), float(traffic.down_bytes.sum())
    record["clients"] = int(traffic.took_part.sum())
    learned = observation if method.controller.learns or method.controller.weighs else None
    return Outcome(done, merged, sent, probe_weights, change, learned, record, counts)


def _probe(sparsifier: Sparsifier, uploads: Sparse, share: Tensor, rnd: Round, smaller: Round) -> tuple[Sparse, Sparse]:
    """The uploads as they would be in the ``smaller`` round at k', and B', their aggregate."""
    truncated = sparsifier.truncate(uploads, smaller)
    if type(sparsifier).probe is Sparsifier.probe:  # the default, which would truncate a second time
        return truncated, sparsifier.merge(truncated, share, smaller)
    return truncated, sparsifier.probe(uploads, share, rnd, smaller.sizes)


def skip(server: Server, plan: Plan, clients: int, cost: float = 0.0) -> tuple[Server, Record]:
    """The server and the record after a round in which no client took part: only counters and the cost advance."""
    done = replace(server, number=plan.rnd.number, steps=server.steps + plan.steps, spent=server.spent + cost)
    record = _record(plan, done, cost)
    record["contribution"] = [0] * clients
    return done, record


def settle(method: Method, residual: Tensor, upload: Sparse, merged: Sparse) -> Tensor:
    """The residuals [n, D] or [D] minus what was sent and kept. ``residual`` may be changed: use the result."""
    return method.sparsifier.settle(residual, upload, merged)


def observe(
    method: Method, server: Server, observation: Observation, seen: Mapping[str, float]
) -> tuple[Server, Observation]:
    """(D): the server after its controller has learned what was ``seen`` of a round, and the observation with it.

    ``seen`` has the losses, if any client could report them, and ``waiting`` and ``agreement``, if they are known.
    """
    observed = observation.seen(seen)
    observed.validate(method.controller.probes)
    return replace(server, control=method.controller.update(server.control, observed)), observed


def note_observation(record: Record, observed: Observation) -> None:
    """Enter into the record of a round the observation that the controller learned from in that round."""
    record["observed"] = observed.proposal.number
    record["loss_before"], record["loss_after"] = observed.loss_before, observed.loss_after
    record["loss_probe"], record["sign"] = observed.loss_probe, estimated_sign(observed)
    record["waiting"], record["agreement"] = observed.waiting, observed.agreement


def note_counts(record: Record, counts: Named, participation: Participation) -> None:
    """Enter ``Outcome.counts``, by now copied to the host, into the record of the round."""
    contribution = np.zeros(len(participation.took_part), dtype=np.int64)
    contribution[participation.took_part] = counts["contribution"].numpy()
    record["contribution"] = contribution.tolist()
    if "probe_elements" in counts:
        record["probe_elements"] = int(counts["probe_elements"])


def kept_elements(uploads: Sparse, merged: Sparse) -> Tensor:
    """[n] how many elements of each client's upload the server kept."""
    if isinstance(uploads, Whole):
        return torch.tensor(merged.size).expand(len(uploads.values))
    return kept(uploads, merged).sum(dim=-1)


def average_buffers(local: Named, share: Tensor) -> Named:
    """The clients' buffers [n, ...] combined: the share-weighted mean, or the maximum of integer counters."""
    return {
        name: torch.tensordot(share, value.to(share.dtype), dims=1).to(value.dtype)
        if value.is_floating_point()
        else value.amax(dim=0)
        for name, value in local.items()
    }


def count_traffic(
    method: Method,
    plan: Plan,
    participation: Participation,
    uploads: Sparse,
    sent: Sparse,
    probe: Sparse | None = None,
) -> Traffic:
    """The traffic of a round in which the server sends ``sent``, and the probe's message where it is charged."""
    took_part = participation.took_part
    buffers = participation.buffers if uploads.size else 0
    up: int | NDArray[np.int64] = uploads.size
    if isinstance(uploads, Ragged):
        up = np.zeros(len(took_part), dtype=np.int64)
        up[took_part] = uploads.lengths
    up_bytes = down_bytes = None
    if method.encoded_bytes:
        up_bytes = np.zeros(len(took_part))
        up_bytes[took_part] = method.values.encoded_size(uploads) + NUMBER_BYTES * buffers
        down_bytes = float(method.down_values.encoded_size(sent)) + NUMBER_BYTES * buffers
        down_bytes += 0.0 if probe is None else float(Exact().encoded_size(probe))
    return Traffic.of(
        uploads.dim,
        up,
        sent.size,
        took_part=took_part,
        dense=method.sparsifier.dense,
        probe=0 if probe is None else probe.size,
        buffers=buffers,
        dense_fallback=method.dense_fallback,
        up_bytes=up_bytes,
        down_bytes=down_bytes,
        steps=plan.steps,
        seconds=participation.seconds,
    )


def _record(plan: Plan, done: Server, cost: float) -> Record:
    """The record of a round in which nothing was sent."""
    k, rnd = plan.proposal.k, plan.rnd
    record = empty_record()
    record["round"], record["cost"], record["round_cost"] = rnd.number, done.spent, cost
    record["lr"], record["steps"] = plan.lr, plan.steps
    record["k"], record["used_k"] = float(np.mean(k)) if isinstance(k, tuple) else k, rnd.k
    record["client_k"] = None if rnd.client_k is None else list(rnd.client_k)
    record["probe_k"] = max(plan.probe_k) if isinstance(plan.probe_k, tuple) else plan.probe_k
    record["low"], record["high"] = plan.search_interval or (None, None)
    record["c"] = plan.proposal.memo.get("c")
    return record
