"""A k for each client where links differ: nobody waits for a slow link, and fairness holds for unequal k.

Shapes: N clients, uploads [N, k].
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gradsift
from gradsift import LinkTime, Method, pricing, round
from gradsift.control import law
from gradsift.control.law import Prices
from gradsift.control.planned import Planned
from gradsift.pricing import expected_traffic
from gradsift.sparse import kept, top_k
from gradsift.sparsify.base import Round
from gradsift.sparsify.fab_top_k import FabTopK
from tests.examples import examples
from tests.simulation.problems import blobs, mlp

DIM, CLIENTS = 10_000, 6
UP = [1e3, 1e4, 1e4, 1e4, 1e4, 1e4]  # one link is ten times slower


def link(**options: Any) -> LinkTime:
    return LinkTime(**{"up_bandwidth": UP, "down_bandwidth": 1e5, "latency": 0.1, "compute": 0.5, **options})


def prices(cost: gradsift.CostModel, **options: Any) -> Prices:
    found = pricing.prices(Method.of(cost=cost, encoded_bytes=True, **options), DIM, CLIENTS)
    assert found is not None
    return found


def proposed(cost: gradsift.CostModel, **options: Any) -> Any:
    controller = Planned(**options)
    return controller.propose(controller.priced(controller.init(DIM), prices(cost)), 1).k


def seconds(cost: LinkTime, k: tuple[float, ...]) -> list[float]:
    """The time of each client, if it sends its own k and receives the largest."""
    times = [cost.client_costs(expected_traffic(DIM, one, max(k), clients=CLIENTS)) for one in k]
    return [float(times[client][client]) for client in range(CLIENTS)]


def test_equal_links_have_one_k() -> None:
    for cost in (link(up_bandwidth=1e4), link(up_bandwidth=[1e4] * CLIENTS), gradsift.NormalizedTime(10)):
        assert prices(cost).each == ()
        assert isinstance(proposed(cost), float)


def test_the_slow_link_sends_less_and_nobody_waits_for_it() -> None:
    cost = link()
    k = proposed(cost)
    assert k[0] < k[1] / 5
    assert len(set(k[1:])) == 1
    times = seconds(cost, k)
    assert max(times) < 1.02 * min(times)


@pytest.mark.parametrize(
    "options", [{"compute": [2.0, *[0.5] * 5], "up_bandwidth": 1e4}, {"latency": [1.0, *[0.1] * 5]}]
)
def test_a_client_that_is_late_for_another_reason_sends_less_too(options: dict[str, Any]) -> None:
    k = proposed(link(**{"up_bandwidth": 1e4, **options}))
    assert k[0] < min(k[1:])


@given(rates=st.lists(st.floats(1e2, 1e6), min_size=CLIENTS, max_size=CLIENTS))
@examples(20)
def test_unequal_k_cost_no_more_than_one_k_for_all(rates: list[float]) -> None:
    """By the law and the guess of c, whatever the links are."""
    cost, c = link(up_bandwidth=rates), law.guess(DIM)
    one = Prices.of(lambda k: cost.round_cost(expected_traffic(DIM, k, clients=CLIENTS)), DIM)

    def best(table: Prices) -> float:
        k = np.geomspace(law.least_k(DIM), DIM, 400)
        return float((table.at(k) * law.slowdown(k, c)).min())

    assert best(prices(cost)) <= 1.02 * best(one)


def test_bounds_hold_for_every_client() -> None:
    k = proposed(link(), k_min=100, k_max=150)
    assert min(k) >= 100
    assert max(k) <= 150


@pytest.mark.parametrize("ratio", [10, 100, 1000])
@pytest.mark.parametrize("options", [{}, {"k_max": 300}], ids=["free", "bounded"])
def test_the_mean_that_is_learned_from_is_that_of_the_clients(ratio: float, options: dict[str, Any]) -> None:
    """Not a k beyond the largest mean that the links allow, where more would seem to cost nothing."""
    controller, cost = Planned(**options), link(up_bandwidth=[1e5 / ratio] * 2 + [1e5] * 4)
    table = prices(cost)
    proposal = controller.propose(controller.priced(controller.init(DIM), table), 1)
    assert isinstance(proposal.k, tuple)
    assert proposal.memo["mean_k"] == pytest.approx(CLIENTS / sum(1 / k for k in proposal.k))
    if not options:
        c, means = law.guess(DIM), np.array(table.k)
        best = means[np.argmin(np.array(table.cost) * law.slowdown(means, c))]
        assert proposal.memo["mean_k"] == pytest.approx(best, rel=0.25)


def test_other_messages_than_the_largest_elements_stay_equally_long() -> None:
    assert prices(link(), sparsifier="periodic-k").each == ()


@pytest.mark.parametrize("clients_per_round", [None, 3])
def test_a_run_has_a_k_for_each_client_and_resumes(tmp_path: Path, clients_per_round: int | None) -> None:
    cost = LinkTime([40.0, *[400.0] * 5], 4000.0, 0.1, 0.2)
    options: dict[str, Any] = {"cost": cost, "encoded_bytes": True, "lr": 0.3, "clients_per_round": clients_per_round}
    parts = (mlp(), nn.CrossEntropyLoss(), blobs())
    whole = gradsift.simulate(*parts, rounds=12, **options)
    gradsift.simulate(*parts, rounds=5, out=tmp_path / "run", **options)
    resumed = gradsift.simulate(*parts, rounds=12, out=tmp_path / "run", resume=True, **options)
    evaluated = dict.fromkeys(("global_loss", "accuracy"))
    assert [{**record, **evaluated} for record in resumed.records] == [
        {**record, **evaluated} for record in whole.records
    ]
    unequal = [record["client_k"] for record in whole.records if record["client_k"] is not None]
    assert unequal
    assert any(len(set(k)) > 1 for k in unequal)
    assert all(record["waiting"] is not None for record in whole.records)


def test_the_state_is_json() -> None:
    controller = Planned()
    state = controller.priced(controller.init(DIM), prices(link()))
    again = json.loads(json.dumps(state))
    assert controller.propose(again, 3) == controller.propose(state, 3)


@given(data=st.data())
@examples(150)
def test_every_client_has_its_fair_share_at_unequal_k(data: st.DataObject) -> None:
    """Of the k elements sent back, at least min(k_i, floor(k / N)) are among the largest of client i's own."""
    clients, dim = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 40))
    k = data.draw(st.lists(st.integers(1, dim), min_size=clients, max_size=clients))
    source = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    residual = torch.from_numpy(source.standard_normal((clients, dim)) * source.integers(0, 3, (clients, dim)))
    rnd = Round(1, 1).at(k)
    uploads = top_k(residual, list(k))
    merged = FabTopK().merge(uploads, torch.full((clients,), 1 / clients, dtype=torch.float64), rnd)
    for client in range(clients):
        mine = kept(uploads.rows(slice(client, client + 1)), merged) & (uploads.indices[client] < dim)
        assert int(mine.sum()) >= min(k[client], max(k) // clients)


def test_a_round_costs_what_was_planned() -> None:
    """The largest k that is used may be below the one that was planned for, and what is received then smaller."""
    cost = LinkTime([40.0, *[400.0] * 5], 4000.0, 0.1, 0.2)
    made = gradsift.simulate(mlp(), nn.CrossEntropyLoss(), blobs(), cost=cost, rounds=1)
    k = tuple(float(one) for one in made.records[0]["client_k"] or ())
    alone = [cost.client_costs(expected_traffic(57, one, max(k), encoded_bytes=False, clients=6)) for one in k]
    assert made.records[0]["round_cost"] == pytest.approx(max(float(alone[i][i]) for i in range(6)))


def test_one_round_by_hand() -> None:
    method = Method.of(controller=gradsift.controller("fixed", k=3), lr=1.0)
    plan = round.plan(method, round.start(method, torch.zeros(4)))
    plan = plan._replace(rnd=plan.rnd.at((1, 3)))
    upload = round.contribute(method, plan, torch.tensor([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]]))
    assert upload.lengths == [1, 3]
