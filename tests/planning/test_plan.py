"""A plan is the best by the law, adds up, and follows the link as it should."""

import json
import math
import warnings
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gradsift
from gradsift import GradsiftError, LinkTime, Plan, Traffic
from gradsift.control import law
from gradsift.cost import checked_cost
from gradsift.local import PeriodicAveraging
from gradsift.pricing import expected_traffic
from gradsift.wire import expected_size

LINK: dict[str, Any] = {"up_mbit": 10, "down_mbit": 50, "latency": 0.03, "compute": 0.2, "clients": 20}
rates = st.floats(1e-3, 1e3)
links = st.fixed_dictionaries(
    {"up_mbit": rates, "down_mbit": rates, "latency": st.floats(0, 1), "compute": st.floats(0, 1)}
)


def planned(model: Any = 444_062, **more: Any) -> Plan:
    return gradsift.plan(model, **{**LINK, **more})


def bytes_an_element(encoded: bool, dim: int, k: int) -> float:
    return expected_size(dim, k) if encoded else 8.0 * k


@settings(max_examples=15)  # a plan takes a tenth of a second
@given(dim=st.integers(1, 3000), link=links, encoded=st.booleans())
def test_the_planned_k_is_the_best_of_all(dim: int, link: dict[str, float], encoded: bool) -> None:
    plan = planned(dim, **link, encoded_bytes=encoded, k_min=1)
    up, down = link["up_mbit"] * 125_000, link["down_mbit"] * 125_000

    def seconds(size: float) -> float:
        return link["compute"] + 2 * link["latency"] + size / up + size / down

    c = math.sqrt(dim)
    times = [seconds(bytes_an_element(encoded, dim, k)) * (1 + c / k) ** 0.7 for k in range(1, dim + 1)]
    best = min(*times, seconds(4 * dim)) if dim > 1 else min(times[0], seconds(4))
    assert plan.planned.rounds * plan.planned.seconds == pytest.approx(best, rel=1e-6)
    assert plan.dense == (seconds(4 * dim) <= min(times) * (1 + 1e-12))
    if not plan.dense:
        assert times[plan.k - 1] == pytest.approx(min(times), rel=1e-6)
        assert plan.planned.rounds == law.slowdown(plan.k, c)


@settings(max_examples=15)  # a plan takes a tenth of a second
@given(dim=st.integers(2, 10**9), link=links, factor=st.floats(1, 100))
def test_a_slower_link_sends_less_and_slower_computation_more(dim: int, link: dict[str, float], factor: float) -> None:
    k = planned(dim, **link).k
    slow = {**link, "up_mbit": link["up_mbit"] / factor, "down_mbit": link["down_mbit"] / factor}
    assert planned(dim, **slow).k <= math.ceil(k * 1.001)  # the search is exact to a thousandth
    assert planned(dim, **{**link, "compute": link["compute"] * factor}).k >= math.floor(k * 0.999)


@settings(max_examples=15)  # a plan takes a tenth of a second
@given(dim=st.integers(1, 10**8), link=links, power=st.integers(-8, 8))
def test_only_the_ratio_of_the_times_matters(dim: int, link: dict[str, float], power: int) -> None:
    factor = 2.0**power
    times = {name: value * factor if name in ("latency", "compute") else value / factor for name, value in link.items()}
    one, other = planned(dim, **link), planned(dim, **times)
    assert (one.k, one.dense) == (other.k, other.dense)
    assert one.planned.relative == pytest.approx(other.planned.relative)
    assert one.planned.seconds * factor == pytest.approx(other.planned.seconds)
    assert [wrong.loss for wrong in one.wrong] == pytest.approx([wrong.loss for wrong in other.wrong])


@settings(max_examples=15)  # a plan takes a tenth of a second
@given(dim=st.integers(1, 10**8), link=links, encoded=st.booleans(), steps=st.integers(1, 1000))
def test_every_prediction_adds_up(dim: int, link: dict[str, float], encoded: bool, steps: int) -> None:
    plan = planned(dim, **link, encoded_bytes=encoded, fedavg_steps=steps, rounds=100)
    assert plan.everything.relative == 1
    assert plan.planned.relative <= 1
    for way in (plan.planned, plan.everything, plan.fedavg, plan.fedavg_same_traffic):
        assert way.seconds == pytest.approx(way.computing + way.sending + way.receiving + way.latency)
        assert way.relative == pytest.approx(way.rounds * way.seconds / plan.everything.seconds)
        assert way.total == pytest.approx(100 * way.rounds * way.seconds)
        assert way.up_bytes <= 4 * dim or way is plan.planned
    for way in (plan.fedavg, plan.fedavg_same_traffic):
        assert way.rounds * way.gradients == pytest.approx(1)  # its best case: R0 gradients in all
    assert plan.fedavg.gradients == steps
    assert all(wrong.loss >= 1 - 1e-6 for wrong in plan.wrong)


def test_the_numbers_of_a_plan_by_hand() -> None:
    plan = gradsift.plan(10_000, up_mbit=0.8, down_mbit=8, compute=1, clients=3, encoded_bytes=False, k_max=100)
    k = plan.k
    assert plan.cost == LinkTime(up_bandwidth=1e5, down_bandwidth=1e6, latency=0.0, compute=1.0)
    assert plan.c == 100
    assert plan.planned.seconds == pytest.approx(1 + 8 * k / 1e5 + 8 * k / 1e6)
    assert plan.planned.rounds == pytest.approx((1 + 100 / k) ** 0.7)
    assert plan.everything.seconds == pytest.approx(1 + 0.4 + 0.04)
    assert plan.fedavg.seconds == pytest.approx(20 + 0.4 + 0.04)
    assert plan.fedavg.relative == pytest.approx((20 + 0.44) / 20 / 1.44)
    assert k == 100  # the largest allowed
    assert plan.planned.total is None


@pytest.mark.parametrize("dim", [1000, 444_062])
def test_fedavg_with_the_same_traffic_has_the_period_of_the_paper(dim: int) -> None:
    plan = planned(dim, up_mbit=1, down_mbit=5, encoded_bytes=False)
    assert plan.fedavg_same_traffic.gradients == PeriodicAveraging().period(dim, plan.k)


def test_the_price_is_that_of_the_cost_model() -> None:
    plan = planned()
    for clients in (1, 20):
        traffic = expected_traffic(444_062, plan.k, clients=clients)
        assert checked_cost(plan.cost, traffic) == plan.planned.seconds
    plain = expected_traffic(1000, 12.5, clients=2, encoded_bytes=False)
    assert plain.up_bytes.tolist() == Traffic.of(1000, 12.5, 12.5, clients=2).up_bytes.tolist() == [100, 100]
    small = expected_traffic(1000, 50, clients=1, values=gradsift.value_type("int8"))
    assert small.up_bytes[0] < small.down_bytes[0] == expected_size(1000, 50)


def test_a_module_is_its_trainable_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.LayerNorm(50))
    model[1].requires_grad_(False)
    assert planned(model) == planned(5050)


def test_running_statistics_are_counted_in_every_message() -> None:
    plain, normed = (torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.BatchNorm1d(50)) for _ in range(2))
    plain[1] = torch.nn.BatchNorm1d(50, track_running_stats=False)
    one, other = planned(plain), planned(normed)
    assert (one.buffers, other.buffers) == (0, 101)  # a mean and a variance for each feature, and a counter
    assert other.everything.up_bytes == one.everything.up_bytes + 4 * 101
    assert other.price(40) > one.price(40)
    assert "buffers" not in str(one)


def test_a_plan_at_the_smallest_k_says_so() -> None:
    slow = planned(10**9, up_mbit=1, down_mbit=1)
    assert slow.k == slow.k_min == 6325
    assert "k is the smallest that is allowed, sqrt(D)/5, below which training may stall; the law alone" in str(slow)
    assert "smallest that is allowed; the law alone would take" in str(planned(k_min=planned().k * 2))
    for plan in (planned(), planned(k_max=planned().k // 2), planned(up_mbit=1e5, down_mbit=1e5)):
        assert "allowed" not in str(plan)


@pytest.mark.parametrize("extreme", [{"up_mbit": 1e-310}, {"compute": 1e308}])
def test_a_time_without_end_is_refused_without_a_warning(extreme: dict[str, float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(GradsiftError, match="the cost of a round"):
            planned(**extreme)


def test_bounds_of_k_are_kept() -> None:
    free = planned().k
    assert planned(k_max=free // 2).k == free // 2
    assert planned(k_min=free * 2).k == free * 2
    assert not planned(444_062, up_mbit=1e5, down_mbit=1e5, k_max=444_061).dense
    assert planned(444_062, up_mbit=1e5, down_mbit=1e5).dense


def test_a_plan_becomes_json_and_text() -> None:
    plan = planned(np.int64(444_062), clients=np.int64(20), compute=np.float32(0.25))
    again = json.loads(json.dumps(asdict(plan)))
    assert again["k"] == plan.k
    assert again["planned"]["relative"] == plan.planned.relative
    said = str(plan)
    for words in (
        f"k = {plan.k:,}",
        "send everything",
        "FedAvg, 20 steps",
        "FedAvg, same traffic",
        "best case",
        "guess",
    ):
        assert words in said
    assert " R0" in said
    assert " R0 " not in str(planned(rounds=1000)).splitlines()[11]
    assert "faster than any k" in str(planned(up_mbit=1e5, down_mbit=1e5))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"up_mbit": 0}, "up_mbit must be above 0, got 0"),
        ({"down_mbit": math.inf}, "down_mbit must be a finite number, got inf"),
        ({"latency": -1}, "latency must be at least 0, got -1"),
        ({"compute": "fast"}, "compute must be a finite number, got 'fast'"),
        ({"clients": 0}, "clients must be at least 1, got 0"),
        ({"encoded_bytes": 1}, "encoded_bytes must be True or False, got 1"),
        ({"rounds": 0}, "rounds must be above 0, got 0"),
        ({"local_steps": 1.5}, "local_steps must be an integer, got 1.5"),
        ({"k_max": 444_063}, r"k_max must be in \[1, 444062\], got 444063"),
        ({"k_min": 10, "k_max": 9}, r"k_min must be in \[1, 9\], got 10"),
        ({"model": 0}, "number of trainable weights of the model must be at least 1, got 0"),
        ({"model": torch.nn.ReLU()}, "number of trainable weights of the model must be at least 1, got 0"),
        ({"model": 10**400}, "must be at most 1,000,000,000,000,000, got 1000"),
        ({"model": torch.nn.LazyLinear(3)}, "weights without a size yet: call it on a batch first"),
        ({"model": "resnet"}, "number of trainable weights of the model must be an integer, got 'resnet'"),
    ],
)
def test_bad_inputs_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(GradsiftError, match=message):
        planned(**wrong)


def test_local_steps_and_bits_by_hand() -> None:
    plan = planned(10**6, local_steps=16, bits=(2, 4))
    assert (plan.local_steps, plan.bits, plan.planned.gradients) == (16, (2, 4), 16)
    assert plan.planned.computing == pytest.approx(16 * plan.compute)
    assert plan.planned.rounds == pytest.approx((1 + 4 * plan.c / plan.k) ** 0.7 / 16)
    assert plan.planned.up_bytes == expected_size(10**6, plan.k, bits=2)
    assert plan.planned.down_bytes == expected_size(10**6, plan.k, bits=4)
    assert all(wrong.loss >= 1 - 1e-6 for wrong in plan.wrong)
    assert plan.planned.relative < planned(10**6).planned.relative
    assert planned(10**6, bits=8).bits == (8, 8)
    assert "16 local steps are worth as many gradients" in str(plan)


@pytest.mark.parametrize("bits", [0, 9, (2, 4, 4), (2, 31), "2"])
def test_wrong_bits_are_refused_by_value(bits: Any) -> None:
    with pytest.raises(GradsiftError, match="bits must be 1 to 8, or 32"):
        planned(1000, bits=bits)
    with pytest.raises(GradsiftError, match="need encoded_bytes"):
        planned(1000, bits=(2, 4), encoded_bytes=False)
