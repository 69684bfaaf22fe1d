"""The functions of ``gradsift.round``, one by one: what each does, and that it changes nothing it was given.

Shapes: D weights, N clients of which n take part; residual [n, D], uploads [n, k], share [n].
"""

import dataclasses
import json
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import gradsift
from gradsift import GradsiftError, LinkTime, LocalSteps, Method, Money, Sparse, densify, round, round_k, round_probe_k
from gradsift.control import K
from gradsift.control.base import Observation, Proposal
from gradsift.cost import CostModel, Traffic
from gradsift.records.record import COLUMNS
from gradsift.round import Outcome, Participation, Plan
from gradsift.server import ERROR, Server, advance, stepped
from gradsift.server_step import SGD, Momentum, ServerOptimizer
from gradsift.sparse import nothing
from gradsift.sparsify import unchecked
from gradsift.weighing import residual_mass
from gradsift.wire import Limits, decode
from tests.examples import examples
from tests.method.controllers import Says
from tests.sparsify.cases import ALL, SPARSE, TABLE, as_dict, as_dicts, assert_same, assert_same_set, shares, unchanged
from tests.sparsify.cases import values as drawn_values

VALUES = gradsift.value_types()


class Keeping(CostModel):
    """The bytes of a round, and the traffic of every price that was asked for."""

    def __init__(self) -> None:
        self.asked: list[Traffic] = []

    def round_cost(self, traffic: Traffic) -> float:
        self.asked.append(traffic)
        return float(traffic.up_bytes.sum() + traffic.down_bytes.sum())


class Case(NamedTuple):
    method: Method
    server: Server
    residual: Tensor  # [n, D]
    share: Tensor
    participation: Participation
    who: NDArray[np.int64]  # [n] of the N clients


@st.composite
def cases(draw: st.DrawFn, /, *, sparsifier: str | None = None, each: bool | None = None, **options: Any) -> Case:
    """A server somewhere in a run, some of whose clients take part in its next round."""
    dim, clients = draw(st.integers(2, 12)), draw(st.integers(1, 5))
    name = sparsifier or draw(st.sampled_from(ALL))
    source = np.random.default_rng(draw(st.integers(0, 2**32)))
    real = st.floats(1, dim).map(float)
    k: K = float(draw(st.integers(1, dim)))
    probe_k: K | None = None
    if not TABLE[name].dense:
        each = draw(st.booleans()) if each is None else each
        ks, probe_ks = (tuple(source.uniform(1, dim, clients).tolist()) for _ in range(2))
        k = ks if each else max(2.0, draw(real))
        if draw(st.booleans()):
            probe_k = probe_ks if each else draw(real)
    says = Says(k, probe_k)
    object.__setattr__(says, "varies", not TABLE[name].dense)
    method = Method.of(sparsifier=name, controller=says, lr=0.5, seed=draw(st.integers(0, 9)), **options)
    who = np.flatnonzero(draw(st.lists(st.booleans(), min_size=clients, max_size=clients)))
    who = who if len(who) else np.arange(clients)
    weights = drawn_values("dyadic", 1, dim, source)[0]
    server = dataclasses.replace(
        round.start(method, weights),
        number=draw(st.integers(0, 30)),
        steps=draw(st.integers(0, 99)),
        offset=draw(st.integers(0, 3 * dim)),
        spent=draw(st.sampled_from([0.0, 12.5])),
    )
    took_part = np.isin(np.arange(clients), who)
    participation = Participation(took_part, draw(st.integers(0, 3)))
    residual = drawn_values("dyadic", len(who), dim, source)
    return Case(method, server, residual, shares("dyadic", len(who), source), participation, who)


def tensors_of(case: Case) -> list[Any]:
    took_part = torch.from_numpy(case.participation.took_part)
    return [case.server.weights, case.residual, case.share, took_part]


def planned(case: Case) -> Plan:
    return round.plan(case.method, case.server).for_clients(case.who)


def merged(case: Case) -> tuple[Plan, Sparse, Outcome]:
    plan = planned(case)
    uploads = round.contribute(case.method, plan, case.residual)
    return plan, uploads, round.merge(case.method, case.server, plan, uploads, case.share, case.participation)


# Start and plan.


def test_a_server_starts_before_its_first_round() -> None:
    weights = torch.arange(5.0)
    server = round.start(Method.of(controller=Says(2.0), seed=7), weights)
    assert server.weights is weights
    assert server == Server(weights, {"dim": 5, "seed": 7, "updates": 0}, 0, 0, 0, 0.0)


@given(case=cases())
@examples(100)
def test_a_plan_is_the_same_however_often_it_is_made(case: Case) -> None:
    state = json.dumps(case.server.control)
    before = dataclasses.replace(case.server)
    with unchanged(*tensors_of(case)):
        first, again = (round.plan(case.method, case.server) for _ in range(2))
    assert first == again
    assert case.server == before
    assert json.dumps(case.server.control) == state
    assert first.rnd.number == case.server.number + 1
    assert (first.rnd.seed, first.rnd.offset) == (case.method.seed, case.server.offset)
    assert (first.steps, first.steps_before) == (1, case.server.steps)


@given(case=cases(each=False))
@examples(100)
def test_one_k_for_all_is_rounded_by_the_rounds_own_draw(case: Case) -> None:
    plan, number, seed = round.plan(case.method, case.server), case.server.number + 1, case.method.seed
    k, probe_k = plan.proposal.k, plan.proposal.probe_k
    assert isinstance(k, float)
    assert plan.rnd.sizes == round_k(k, seed, number)
    if probe_k is None:
        assert plan.probe_k is None
    else:
        assert isinstance(probe_k, float)
        assert plan.probe_k == round_probe_k(probe_k, plan.rnd.k, seed, number)
    assert plan.for_clients(case.who) is plan


@given(case=cases(sparsifier="fab-top-k", each=True))
@examples(200)
def test_a_k_for_each_client_is_rounded_by_a_draw_of_its_own(case: Case) -> None:
    plan, number, seed = round.plan(case.method, case.server), case.server.number + 1, case.method.seed
    k, probe_k, used = plan.proposal.k, plan.proposal.probe_k, plan.rnd.client_k
    assert isinstance(k, tuple)
    assert used == tuple(round_k(each, seed, number, client) for client, each in enumerate(k))
    assert plan.rnd.k == max(used)
    if isinstance(probe_k, tuple):
        assert plan.probe_k == tuple(
            round_probe_k(below, above, seed, number, client) if above > 1 else 1
            for client, (below, above) in enumerate(zip(probe_k, used, strict=True))
        )
    some = plan.for_clients(case.who)
    assert some.rnd.client_k == tuple(used[client] for client in case.who)
    assert some.rnd.k == max(some.rnd.client_k)
    if isinstance(plan.probe_k, tuple):
        assert some.probe_k == tuple(plan.probe_k[client] for client in case.who)
    assert some == plan.for_clients(case.who.tolist())


def test_draws_of_different_clients_are_independent() -> None:
    """100 clients with k = 1.5: about half of them send two elements, another half in another round."""
    method = Method.of(controller=Says((1.5,) * 100))
    server = round.start(method, torch.zeros(4))
    rounds = [round.plan(method, dataclasses.replace(server, number=number)).rnd.client_k for number in range(40)]
    ups = np.array(rounds) - 1.5
    limit = 5 * 2 / math.sqrt(ups.size)  # five standard deviations of the mean of so many signs
    assert abs(np.mean(2 * ups)) < limit
    assert abs(np.mean(4 * ups[:, 1:] * ups[:, :-1])) < limit
    assert abs(np.mean(4 * ups[1:] * ups[:-1])) < limit


def test_one_probe_for_clients_with_k_of_their_own() -> None:
    method = Method.of(controller=Says((4.0, 1.0, 2.0), 3.0))
    plan = round.plan(method, round.start(method, torch.zeros(6)))
    assert plan.rnd.client_k == (4, 1, 2)
    assert plan.probe_k == (3, 1, 1)


@pytest.mark.parametrize(
    ("k", "probe_k", "named"),
    [
        (3.0, (2.0, 1.0), "one k for all clients, but 2 values of k'"),
        ((3.0, 2.0), (2.0,), "k for 2 clients, but k' for 1"),
        (7.0, None, "k must be in [1, 6], got 7"),
        ((3.0, 7.0), None, "k must be in [1, 6], got 7"),
        ((3.0, 0.5), None, "k must be at least 1, got 0.5"),
        (math.nan, None, "k must be a finite number, got nan"),
        (1.0, 1.0, "k = 1 leaves no k' below it to probe"),
    ],
)
def test_proposals_that_make_no_round_are_refused(k: K, probe_k: K | None, named: str) -> None:
    method = Method.of(controller=Says(k, probe_k))
    with pytest.raises(GradsiftError, match=re.escape(named)):
        round.plan(method, round.start(method, torch.zeros(6)))


def test_a_client_without_a_k_is_refused() -> None:
    method = Method.of(controller=Says((3.0, 2.0)))
    plan = round.plan(method, round.start(method, torch.zeros(6)))
    with pytest.raises(GradsiftError, match="proposed k for 2 clients, not for client 2"):
        plan.for_clients([0, 2])


@pytest.mark.parametrize("lr", [-0.1, math.nan, math.inf, "0.1", None])
def test_a_step_size_that_is_none_is_refused_by_its_round(lr: Any) -> None:
    method = Method.of(controller=Says(2.0), lr=lambda number: lr if number == 3 else 0.1)
    server = round.start(method, torch.zeros(6))
    round.plan(method, server)
    with pytest.raises(GradsiftError, match="lr of round 3 must be"):
        round.plan(method, dataclasses.replace(server, number=2))


@pytest.mark.parametrize("k", [1, 2, 3, 7, 14])
def test_inside_a_period_the_step_size_and_the_draw_of_clients_stay(k: int) -> None:
    method = Method.of(sparsifier="fedavg", controller=gradsift.controller("fixed", k=k), lr=lambda number: 1 / number)
    server, period = round.start(method, torch.zeros(14)), max(1, 14 // (2 * k))
    for number in range(1, 3 * period + 1):
        plan = round.plan(method, dataclasses.replace(server, number=number - 1))
        assert plan.period_start == number - (number - 1) % period
        assert plan.lr == 1 / plan.period_start
        assert plan.exchange == (number % period == 0)


def test_local_steps_are_counted_over_the_rounds() -> None:
    method = Method.of(controller=Says(2.0), local=LocalSteps(4))
    server, residual = round.start(method, torch.zeros(6)), torch.ones(1, 6)
    for number in range(1, 4):
        plan = round.plan(method, server)
        assert (plan.steps, plan.steps_before) == (4, 4 * (number - 1))
        uploads = round.contribute(method, plan, residual)
        server = round.merge(method, server, plan, uploads, torch.ones(1), Participation(np.array([True]))).server
    assert server.steps == 12


# Contribute.


@pytest.mark.parametrize("values", VALUES)
@given(data=st.data())
@examples(40)
def test_a_contribution_is_what_arrives_of_an_upload(values: str, data: st.DataObject) -> None:
    case = data.draw(cases(values=values))
    plan = planned(case)
    with unchanged(*tensors_of(case)):
        sent = round.contribute(case.method, plan, case.residual)
    if not plan.exchange:
        assert sent.indices.shape == (len(case.who), 0)
        return
    upload = unchecked(case.method.sparsifier).upload(case.residual, plan.rnd)
    assert as_dicts(sent) == as_dicts(gradsift.value_type(values).rounded(upload))
    # The same, one client at a time, and as bytes.
    for row, client in enumerate(case.who):
        own = round.plan(case.method, case.server).for_clients([client])
        with unchanged(*tensors_of(case)):
            alone = round.contribute(case.method, own, case.residual[row])
            encoded = round.encoded_contribution(case.method, own, case.residual[row])
        assert alone.indices.dim() == 1
        assert as_dict(alone) == as_dicts(sent)[row]
        assert_same_set(decode(encoded, Limits.of(sent.dim)), alone)


# Merge.


@given(case=cases())
@examples(200)
def test_merging_changes_nothing_that_it_was_given(case: Case) -> None:
    plan = planned(case)
    uploads = round.contribute(case.method, plan, case.residual)
    before, state = dataclasses.replace(case.server), json.dumps(case.server.control)
    with unchanged(uploads, *tensors_of(case)):
        first, again = (
            round.merge(case.method, case.server, plan, uploads, case.share, case.participation) for _ in range(2)
        )
        first.server.weights.add_(1.0)  # which are the round's own
        first.server.weights.sub_(1.0)
    assert case.server == before
    assert json.dumps(case.server.control) == state
    assert first.record == again.record
    assert torch.equal(first.server.weights, again.server.weights)


@given(case=cases())
@examples(200)
def test_the_server_steps_along_what_it_sends_back(case: Case) -> None:
    plan, uploads, outcome = merged(case)
    server, sparsifier = outcome.server, case.method.sparsifier
    if plan.exchange:
        expected = sparsifier.merge(uploads, case.share, plan.rnd)
        assert as_dict(outcome.merged) == as_dict(expected)
    else:
        assert outcome.merged.size == 0
    assert torch.equal(server.weights, case.server.weights - plan.lr * densify(outcome.merged))
    assert (server.number, server.steps) == (plan.rnd.number, case.server.steps + plan.steps)
    assert server.offset == case.server.offset + uploads.size
    assert server.spent == case.server.spent + outcome.record["round_cost"]
    assert server.control is case.server.control

    kept = set(outcome.merged.indices.tolist())
    assert outcome.counts["contribution"].tolist() == [len(kept & set(sent)) for sent in as_dicts(uploads)]
    assert (outcome.observation is not None) == case.method.controller.learns


@given(case=cases())
@examples(200)
def test_the_probe_is_the_round_at_a_smaller_k(case: Case) -> None:
    plan, _, outcome = merged(case)
    if plan.probe_k is None:
        assert (outcome.probe_weights, outcome.probe_change, outcome.record["probe_k"]) == (None, None, None)
        return
    assert outcome.probe_weights is not None
    assert outcome.probe_change is not None
    assert outcome.observation is not None
    smaller = plan.rnd.at(plan.probe_k)
    sparsifier = case.method.sparsifier
    fresh = sparsifier.merge(sparsifier.upload(case.residual, smaller), case.share, smaller)
    assert torch.equal(outcome.probe_change, densify(fresh) - densify(outcome.merged))
    assert_same(outcome.probe_weights + 0.0, case.server.weights - plan.lr * densify(fresh) + 0.0)
    assert int(outcome.counts["probe_elements"]) == int(outcome.probe_change.count_nonzero())
    assert outcome.observation.used_k == plan.rnd.k
    assert outcome.observation.used_probe_k == smaller.k == outcome.record["probe_k"]
    # theta(k') is what such a round would have cost.
    at = plan._replace(rnd=smaller, probe_k=None)
    alone = round.merge(
        case.method, case.server, at, sparsifier.upload(case.residual, smaller), case.share, case.participation
    )
    assert outcome.observation.probe_cost == alone.record["round_cost"]
    assert outcome.observation.cost == outcome.record["round_cost"]


@pytest.mark.parametrize("down_values", ["exact", "few-bits", "int8"])
@pytest.mark.parametrize("server", [SGD(0.5), Momentum(0.5), Momentum(0.5, nesterov=True, rate=0.25)], ids=str)
@given(data=st.data())
@examples(40)
def test_the_probe_of_a_rounded_or_optimized_step_is_such_a_round(
    server: ServerOptimizer, down_values: str, data: st.DataObject
) -> None:
    """From the same memory; and the probe leaves no trace in it."""
    options: dict[str, Any] = {"server": server, "down_values": down_values, "values": "few-bits", "cost": Keeping()}
    case = data.draw(cases(encoded_bytes=True, **options))
    with unchanged(*tensors_of(case)):
        _, _, first = merged(case)
    case = case._replace(server=dataclasses.replace(first.server, number=case.server.number))
    with unchanged(*tensors_of(case), *case.server.memory.values()):
        plan, uploads, outcome = merged(case)
    plain = plan._replace(probe_k=None)
    without = round.merge(case.method, case.server, plain, uploads, case.share, case.participation)
    assert torch.equal(outcome.server.weights, without.server.weights)
    assert outcome.server.memory.keys() == without.server.memory.keys()
    for name, value in outcome.server.memory.items():
        assert torch.equal(value, without.server.memory[name])
    if plan.probe_k is None:
        return
    smaller = plan.rnd.at(plan.probe_k)
    truncated = case.method.sparsifier.truncate(uploads, smaller)
    at = plain._replace(rnd=smaller)
    alone = round.merge(case.method, case.server, at, truncated, case.share, case.participation)
    assert outcome.probe_weights is not None
    assert outcome.probe_change is not None
    assert outcome.observation is not None
    assert torch.equal(outcome.probe_weights, alone.server.weights)
    assert torch.equal(outcome.probe_change, outcome.server.weights - outcome.probe_weights)
    assert outcome.observation.probe_cost == alone.record["round_cost"]


@pytest.mark.parametrize("down_values", [name for name in VALUES if name != "exact"])
@given(data=st.data())
@examples(40)
def test_what_is_sent_is_the_rounded_update_and_counted_as_its_bytes(down_values: str, data: st.DataObject) -> None:
    case = data.draw(cases(encoded_bytes=True, down_values=down_values, cost=Keeping()))
    plan, _, outcome = merged(case)
    clients, buffers = len(case.participation.took_part), 4 * case.participation.buffers
    if not plan.exchange:
        assert outcome.sent.size == outcome.record["down_bytes"] == 0
        return
    kind = case.method.down_values
    update = outcome.merged.with_values(outcome.merged.values.to(case.server.weights) * plan.lr)
    assert as_dict(outcome.sent) == as_dict(kind.rounded(update))
    assert outcome.record["down_bytes"] == clients * (len(kind.encode(update)) + buffers)
    assert outcome.record["down_elements"] == outcome.merged.size
    step = case.server.weights - outcome.server.weights
    torch.testing.assert_close(step, densify(outcome.sent).to(step), rtol=0, atol=1e-6)


@given(case=cases())
@examples(100)
def test_a_record_has_every_column_in_order_and_is_json(case: Case) -> None:
    plan, uploads, outcome = merged(case)
    record = outcome.record
    round.note_counts(record, outcome.counts, case.participation)
    assert tuple(record) == COLUMNS
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["round"] == plan.rnd.number
    proposed = plan.proposal.k
    assert record["k"] == (pytest.approx(np.mean(proposed)) if isinstance(proposed, tuple) else proposed)
    assert record["used_k"] == plan.rnd.k
    assert record["client_k"] == (None if plan.rnd.client_k is None else list(plan.rnd.client_k))
    assert (record["low"], record["high"]) == (plan.search_interval or (None, None))
    assert (record["up_elements"], record["down_elements"]) == (uploads.size, outcome.merged.size)
    assert record["clients"] == len(case.who)
    assert len(record["contribution"]) == len(case.participation.took_part)
    assert not np.array(record["contribution"])[~case.participation.took_part].any()
    assert (record["probe_elements"] is None) == (plan.probe_k is None)


# Traffic and prices.


def numbers_of(elements: int, dim: int, dense: bool, fallback: bool) -> int:
    if dense:
        return elements
    return min(2 * elements, dim) if fallback else 2 * elements


@pytest.mark.slow
@pytest.mark.parametrize("charge_probe", [False, True])
@pytest.mark.parametrize("dense_fallback", [False, True])
@given(data=st.data())
@examples(100)
def test_a_round_is_priced_by_what_each_client_sent_and_received(
    charge_probe: bool, dense_fallback: bool, data: st.DataObject
) -> None:
    cost = Keeping()
    case = data.draw(cases(cost=cost, charge_probe=charge_probe, dense_fallback=dense_fallback))
    plan, uploads, outcome = merged(case)
    dim, dense = uploads.dim, case.method.sparsifier.dense
    buffers = case.participation.buffers if plan.exchange else 0

    def numbers(elements: int) -> int:
        return numbers_of(elements, dim, dense, dense_fallback)

    up = [numbers(length) + buffers for length in uploads.lengths]
    down = numbers(outcome.merged.size) + buffers
    clients = len(case.participation.took_part)
    without_probe = 4 * (sum(up) + clients * down)
    assert outcome.observation is None or outcome.observation.cost == without_probe
    bill = without_probe
    if charge_probe and plan.probe_k is not None:
        bill += 4 * clients * numbers(int(outcome.counts["probe_elements"]))
    assert outcome.record["round_cost"] == bill
    assert outcome.record["up_bytes"] == 4 * sum(up)
    assert outcome.record["up_bytes"] + outcome.record["down_bytes"] == bill
    first = cost.asked[0]
    assert first.took_part.tolist() == case.participation.took_part.tolist()
    assert first.up_numbers[case.who].tolist() == up
    assert not first.up_numbers[~case.participation.took_part].any()
    assert first.down_numbers.tolist() == [down] * clients
    assert first.steps == plan.steps


@pytest.mark.slow
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("charge_probe", [False, True])
@given(data=st.data())
@examples(40)
def test_encoded_bytes_are_those_of_the_messages(values: str, charge_probe: bool, data: st.DataObject) -> None:
    case = data.draw(cases(cost=Keeping(), values=values, encoded_bytes=True, charge_probe=charge_probe))
    plan, uploads, outcome = merged(case)
    buffers, clients = 4 * case.participation.buffers, len(case.participation.took_part)
    exact = gradsift.Exact()
    up = down = 0
    if plan.exchange:
        own = [round.plan(case.method, case.server).for_clients([client]) for client in case.who]
        rows = zip(own, case.residual, strict=True)
        up = sum(len(round.encoded_contribution(case.method, plan, row)) + buffers for plan, row in rows)
        down = len(exact.encode(outcome.merged)) + buffers
        if charge_probe and plan.probe_k is not None:
            assert outcome.probe_change is not None
            indices = outcome.probe_change.nonzero().squeeze(-1)
            if len(indices):  # an empty message is not sent
                down += len(exact.encode(Sparse(indices, outcome.probe_change[indices], uploads.dim)))
    assert outcome.record["up_bytes"] == up
    assert outcome.record["down_bytes"] == clients * down
    assert outcome.record["round_cost"] == up + clients * down


def test_each_client_pays_for_its_own_upload() -> None:
    """The slowest client decides: here the one that sends most over the slowest link."""
    cost = LinkTime(up_bandwidth=[8.0, 80.0, 800.0], down_bandwidth=1e12, latency=0.5)
    method = Method.of(controller=Says((1.0, 2.0, 50.0)), cost=cost)
    server, residual = round.start(method, torch.zeros(60)), torch.arange(180.0).view(3, 60)
    everyone = Participation(np.ones(3, dtype=bool))
    plan = round.plan(method, server).for_clients(range(3))
    share = torch.full((3,), 1 / 3)
    outcome = round.merge(method, server, plan, round.contribute(method, plan, residual), share, everyone)
    # 8 bytes an element: 1 s, 0.2 s and 0.5 s, and half a second for each of two messages.
    assert outcome.record["round_cost"] == pytest.approx(2.0)
    assert outcome.record["up_bytes"] == 8 * 53
    assert outcome.record["up_elements"] == 50


def test_a_controller_that_weighs_is_not_left_without_what_waits() -> None:
    method = Method.of()
    server, residual = round.start(method, torch.zeros(60)), torch.arange(120.0).view(2, 60)
    plan, share, both = round.plan(method, server), torch.full((2,), 0.5), Participation(np.ones(2, dtype=bool))
    uploads = round.contribute(method, plan, residual)
    with pytest.raises(GradsiftError, match="'planned' needs to know what waits: call merge with mass="):
        round.merge(method, server, plan, uploads, share, both)
    outcome = round.merge(method, server, plan, uploads, share, both, residual_mass(residual))
    assert float(outcome.counts["waiting"]) > 0


def test_absentees_receive_and_do_not_send() -> None:
    method = Method.of(controller=Says(2.0), cost=Money(up=1.0, down=100.0, compute=1e6))
    server, took_part = round.start(method, torch.zeros(6)), np.array([True, False, False, True])
    plan = round.plan(method, server)
    uploads = round.contribute(method, plan, torch.ones(2, 6))
    outcome = round.merge(method, server, plan, uploads, torch.tensor([0.5, 0.5]), Participation(took_part))
    assert outcome.record["round_cost"] == 2 * 16 + 4 * 16 * 100 + 2e6
    round.note_counts(outcome.record, outcome.counts, Participation(took_part))
    assert outcome.record["contribution"] == [2, 0, 0, 2]


def test_rounds_without_an_exchange_carry_nothing() -> None:
    method = Method.of(sparsifier="fedavg", controller=gradsift.controller("fixed", k=1), cost=Keeping())
    server = round.start(method, torch.zeros(6))
    plan = round.plan(method, server)
    uploads = round.contribute(method, plan, torch.ones(2, 6))
    outcome = round.merge(
        method, server, plan, uploads, torch.tensor([0.5, 0.5]), Participation(np.ones(2, dtype=bool), 9)
    )
    assert not plan.exchange
    assert torch.equal(outcome.server.weights, server.weights)
    assert (outcome.record["round_cost"], outcome.record["up_bytes"], outcome.record["down_bytes"]) == (0, 0, 0)
    assert outcome.server.offset == 0


# Skip, settle, observe.


@given(case=cases())
@examples(60)
def test_a_round_in_which_nobody_took_part_is_counted_and_nothing_else(case: Case) -> None:
    plan = round.plan(case.method, case.server)
    before = dataclasses.replace(case.server)
    with unchanged(*tensors_of(case)):
        done, record = round.skip(case.server, plan, 4)
    assert case.server == before
    counted = dataclasses.replace(case.server, number=plan.rnd.number, steps=case.server.steps + plan.steps)
    assert done == counted
    assert done.weights is case.server.weights
    assert tuple(record) == COLUMNS
    assert json.loads(json.dumps(record)) == record
    assert record["contribution"] == [0, 0, 0, 0]
    assert (record["clients"], record["round_cost"], record["cost"]) == (0, 0.0, case.server.spent)


@given(case=cases())
@examples(100)
def test_settling_is_the_sparsifiers_and_may_be_in_place(case: Case) -> None:
    _, uploads, outcome = merged(case)
    there = torch.zeros(uploads.dim).index_fill(0, outcome.merged.indices, 1.0)
    expected = case.residual - densify(uploads) * there
    kept = Sparse(outcome.merged.indices.clone(), outcome.merged.values.clone(), uploads.dim)
    settled = round.settle(case.method, case.residual, uploads, kept)
    assert torch.equal(settled, expected)


LOSSES = {"loss_before": 3.0, "loss_after": 2.0, "loss_probe": 2.5}


@given(case=cases(sparsifier="fab-top-k"))
@examples(60)
def test_observing_tells_the_controller_and_changes_no_server(case: Case) -> None:
    plan, _, outcome = merged(case)
    assert outcome.observation is not None
    losses = {name: value for name, value in LOSSES.items() if name != "loss_probe" or plan.probe_k is not None}
    before, record = dataclasses.replace(outcome.server), dict(outcome.record)
    after, observed = round.observe(case.method, outcome.server, outcome.observation, losses)
    assert outcome.server == before
    assert outcome.observation.loss_before is None
    assert after.control == {**before.control, "updates": 1}
    assert dataclasses.replace(after, control=None) == dataclasses.replace(before, control=None)
    controller: Any = case.method.controller
    expected: dict[str, Any] = {**outcome.observation._asdict(), **losses}
    assert controller.told[-1] == observed == Observation(**expected)
    assert dict(outcome.record) == record
    round.note_observation(outcome.record, observed)
    assert outcome.record["observed"] == plan.rnd.number
    for name in LOSSES:
        assert outcome.record[name] == losses.get(name)  # type: ignore[literal-required]
    sign = outcome.record["sign"]
    assert sign in ((-1, 0, 1, None) if plan.probe_k is not None else (None,))
    if plan.probe_k is not None and plan.rnd.k == 1:
        assert sign is None  # every client that took part sends one element, at k' too
    assert tuple(outcome.record) == COLUMNS


def test_nobody_could_report_a_loss() -> None:
    says = Says(4.0, 2.0)
    method = Method.of(controller=says)
    seen = Observation(Proposal(1, 4.0, 2.0), 1.0, 0.5, used_k=4, used_probe_k=2)
    _, observed = round.observe(method, round.start(method, torch.zeros(6)), seen, {})
    assert (observed, says.told) == (seen, [seen])


@pytest.mark.parametrize(
    ("losses", "named"),
    [
        (
            {"loss_before": math.nan, "loss_after": 1.0, "loss_probe": 1.0},
            "loss_before must be a finite number, got nan",
        ),
        ({"loss_before": 1.0, "loss_probe": 1.0}, "loss_before needs loss_after"),
        ({"loss_before": 2.0, "loss_after": 1.0}, "the probe is missing"),
    ],
)
def test_losses_that_are_none_are_refused_before_the_controller_hears_of_them(
    losses: dict[str, float], named: str
) -> None:
    says = Says(4.0, 2.0)
    method = Method.of(controller=says)
    with pytest.raises(GradsiftError, match=named):
        round.observe(method, round.start(method, torch.zeros(6)), Observation(Proposal(1, 4.0, 2.0), 1.0, 0.5), losses)
    assert says.told == []


# Buffers, and the other small ones.


@given(clients=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_buffers_are_averaged_and_counts_are_not(clients: int, seed: int) -> None:
    source = np.random.default_rng(seed)
    share = shares("dyadic", clients, source)
    moving = torch.from_numpy(source.integers(-64, 65, (clients, 2, 3)) / 64)
    local = {"mean": moving.float(), "half": moving.half(), "batches": torch.arange(clients) + 5}
    with unchanged(share, *local.values()):
        average = round.average_buffers(local, share)
    expected = (share[:, None, None] * moving).sum(0)
    torch.testing.assert_close(average["mean"], expected.float(), rtol=0, atol=0)
    torch.testing.assert_close(average["half"], expected.half(), rtol=0, atol=0)
    assert int(average["batches"]) == clients + 4
    assert {name: value.dtype for name, value in average.items()} == {n: v.dtype for n, v in local.items()}


@pytest.mark.parametrize("name", SPARSE)
@given(data=st.data())
@examples(40)
def test_kept_elements_are_counted_for_each_client(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(sparsifier=name))
    _, uploads, outcome = merged(case)
    down = set(outcome.merged.indices.tolist())
    found = round.kept_elements(uploads, outcome.merged)
    assert found.tolist() == [len(down & set(sent)) for sent in as_dicts(uploads)]


def test_whole_vectors_are_kept_as_a_whole() -> None:
    uploads = unchecked(gradsift.sparsifier("send-all")).upload(torch.ones(3, 5), gradsift.Round(1, 1))
    merged = gradsift.weighted_sum(uploads, torch.full((3,), 1 / 3))
    assert round.kept_elements(uploads, merged).tolist() == [5, 5, 5]
    assert round.kept_elements(uploads, nothing(torch.ones(5))).tolist() == [0, 0, 0]


@given(case=cases())
@examples(60)
def test_stepping_makes_new_weights(case: Case) -> None:
    _, _, outcome = merged(case)
    step: Callable[..., Tensor]
    for step in (stepped, gradsift.apply):
        with unchanged(case.server.weights, outcome.merged):
            after = step(case.server.weights, outcome.merged, 0.25)
        assert torch.equal(after, case.server.weights - 0.25 * densify(outcome.merged))
        assert after.untyped_storage().data_ptr() != case.server.weights.untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", VALUES)
def test_an_update_may_be_of_another_type_than_the_weights(values: str, dtype: torch.dtype) -> None:
    method, merged = Method.of(down_values=values, server="momentum"), torch.tensor([0.5, -0.3, 0.1], dtype=dtype)
    server, total = round.start(method, torch.zeros(9, dtype=dtype)), torch.zeros(9, dtype=torch.float64)
    for _ in range(3):
        server, sent = advance(method, server, Sparse(torch.tensor([1, 4, 8]), merged, 9), 0.1)
        total += densify(sent)
    assert {vector.dtype for vector in (server.weights, *server.memory.values())} == {dtype}
    wanted = torch.zeros(9, dtype=torch.float64).index_put((torch.tensor([1, 4, 8]),), 0.3 * merged.double())
    torch.testing.assert_close(total + server.memory.get(ERROR, 0.0), wanted, rtol=0, atol=1e-7)
