"""The prices that k is planned with are the costs that rounds then have."""

from typing import Any

import numpy as np
import pytest
import torch

import gradsift
from gradsift import Energy, LinkTime, Money, NormalizedTime, WeightedSum, pricing, round
from gradsift.data import load
from gradsift.method import Method
from gradsift.models import model
from gradsift.records.record import Record

LINK = LinkTime(1e4, 1e5, latency=0.02, compute=0.1)
COSTS = [
    NormalizedTime(10),
    LINK,
    Energy(up=3e-6, down=4e-7, compute=0.5),
    Money(up=5e-9, down=5e-9, compute=1e-7),
    WeightedSum((0.5, LINK), (2.0, NormalizedTime(1))),
    LinkTime([1e4] * 20, 1e5, compute=0.1),
    WeightedSum((1.0, LinkTime([1e4] * 10 + [2e4] * 10, 1e5, compute=0.1))),
]


def first_rounds(cost: gradsift.CostModel, k: int, **others: Any) -> list[Record]:
    data = load("digits")
    loss, controller = torch.nn.functional.cross_entropy, gradsift.controller("fixed", k=k)
    made = gradsift.simulate(model("small-cnn", data), loss, data, controller=controller, cost=cost, rounds=2, **others)
    return made.records


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: type(cost).__name__)
@pytest.mark.parametrize("k", [10, 700])
def test_the_price_is_the_cost_of_the_round(cost: gradsift.CostModel, k: int) -> None:
    record = first_rounds(cost, k)[-1]
    method = Method.of(cost=cost)
    prices = pricing.prices(method, 6090, 20)
    assert prices is not None
    assert float(prices.at(np.array(k))) == pytest.approx(record["round_cost"], rel=1e-9)


def test_the_price_of_encoded_bytes_is_near_the_cost() -> None:
    record = first_rounds(LINK, 300, encoded_bytes=True)[-1]
    prices = pricing.prices(Method.of(cost=LINK, encoded_bytes=True), 6090, 20)
    assert prices is not None
    sending = record["round_cost"] - 0.14
    assert float(prices.at(np.array(300.0))) - 0.14 == pytest.approx(sending, rel=0.2)


def test_some_of_the_clients_make_up_for_those_that_are_not_there() -> None:
    """Energy of 5 of 20 clients: all receive, 5 compute and send."""
    cost = Energy(up=2.0, down=1.0, compute=7.0)
    prices = pricing.prices(Method.of(cost=cost), 100, 20, 5)
    assert prices is not None
    assert float(prices.at(np.array(10.0))) == pytest.approx(5 * (7 + 2 * 80) + 20 * 80)


def test_a_cost_that_is_measured_has_no_prices() -> None:
    assert pricing.prices(Method.of(cost="measured-time"), 100, 20) is None


def test_the_first_guess_of_c_grows_with_the_square_root_of_the_local_steps() -> None:
    for steps in (1, 4, 16):
        method = Method.of(cost=LINK, local_steps=steps)
        server = round.priced(method, round.start(method, torch.zeros(6090)), pricing.prices(method, 6090, 20))
        assert round.plan(method, server).proposal.memo["c"] == pytest.approx((6090 * steps) ** 0.5)
