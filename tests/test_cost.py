"""Costs: every formula by hand, then what holds for all of them."""

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gradsift
from gradsift import (
    CostModel,
    Energy,
    GradsiftError,
    LinkTime,
    MeasuredTime,
    Money,
    NormalizedTime,
    Traffic,
    WeightedSum,
)
from tests.simulation.problems import blobs, mlp

D, K, N = 1000, 50, 4


def sparse(up: Any = K, down: Any = K, **more: Any) -> Traffic:
    return Traffic.of(D, up, down, **{"clients": N, **more})


class TestTraffic:
    def test_a_sparse_element_is_two_numbers_of_four_bytes(self) -> None:
        traffic = sparse(up=50, down=30)
        assert traffic.dim == D
        assert traffic.took_part.tolist() == [True] * N
        assert traffic.up_numbers.tolist() == [100] * N
        assert traffic.down_numbers.tolist() == [60] * N
        assert traffic.up_bytes.tolist() == [400] * N
        assert traffic.down_bytes.tolist() == [240] * N

    def test_a_dense_element_is_one_number(self) -> None:
        traffic = sparse(up=D, down=D, dense=True)
        assert traffic.up_numbers.tolist() == traffic.down_numbers.tolist() == [D] * N
        assert traffic.up_bytes.tolist() == [4 * D] * N

    def test_implied_indices_travel_for_nothing(self) -> None:
        traffic = sparse(up=50, down=30, probe=7, implied_indices=True)
        assert traffic.up_numbers.tolist() == [50] * N
        assert traffic.down_numbers.tolist() == [37] * N

    def test_dense_fallback_takes_the_smaller_message(self) -> None:
        traffic = sparse(up=[1, 499, 501, 1000], down=600, probe=2, dense_fallback=True)
        assert traffic.up_numbers.tolist() == [2, 998, 1000, 1000]
        assert traffic.down_numbers.tolist() == [1004] * N  # the probe is a message of its own
        assert sparse(up=[1, 499, 501, 1000]).up_numbers.tolist() == [2, 998, 1002, 2000]

    def test_the_probe_is_received_by_all_and_sent_by_none(self) -> None:
        traffic = sparse(up=50, down=30, probe=7)
        assert traffic.up_numbers.tolist() == [100] * N
        assert traffic.down_numbers.tolist() == [74] * N

    def test_buffers_travel_dense_both_ways(self) -> None:
        traffic = sparse(up=50, down=30, buffers=6, took_part=[True, True, True, False])
        assert traffic.up_numbers.tolist() == [106, 106, 106, 0]
        assert traffic.down_numbers.tolist() == [66] * N

    def test_absentees_send_nothing_but_receive(self) -> None:
        traffic = sparse(up=50, down=30, took_part=[True, False, True, False], up_bytes=[9, 9, 9, 9])
        assert traffic.up_numbers.tolist() == [100, 0, 100, 0]
        assert traffic.down_numbers.tolist() == [60] * N
        assert traffic.up_bytes.tolist() == [9, 0, 9, 0]
        assert traffic.down_bytes.tolist() == [240] * N

    def test_real_bytes_replace_the_default(self) -> None:
        traffic = sparse(up_bytes=[11, 12, 13, 14], down_bytes=99, probe=7)
        assert traffic.up_bytes.tolist() == [11, 12, 13, 14]
        assert traffic.down_bytes.tolist() == [99] * N
        assert traffic.up_numbers.tolist() == [100] * N

    def test_each_client_may_have_its_own_counts(self) -> None:
        traffic = sparse(up=[1, 2, 3, 4], down=np.array([4, 3, 2, 1]))
        assert traffic.up_numbers.tolist() == [2, 4, 6, 8]
        assert traffic.down_numbers.tolist() == [8, 6, 4, 2]


class TestNormalizedTime:
    """1 + comm_time (k_up + k_down) / D, the paper's clock."""

    clock = NormalizedTime(comm_time=10.0)

    def test_a_sparse_round(self) -> None:
        assert self.clock.round_cost(sparse(up=50, down=30)) == pytest.approx(1 + 10 * 80 / 1000)

    def test_k_equal_to_d_costs_twice_a_dense_round(self) -> None:
        assert self.clock.round_cost(sparse(up=D, down=D)) == pytest.approx(1 + 20)
        assert self.clock.round_cost(sparse(up=D, down=D, dense_fallback=True)) == pytest.approx(1 + 10)

    def test_send_all(self) -> None:
        assert self.clock.round_cost(sparse(up=D, down=D, dense=True)) == pytest.approx(1 + 10)

    def test_fedavg_pays_once_a_period(self) -> None:
        assert self.clock.round_cost(sparse(up=0, down=0, dense=True)) == 1.0
        assert self.clock.round_cost(sparse(up=D, down=D, dense=True)) == pytest.approx(11)

    def test_fedavg_and_fab_cost_the_same_on_average(self) -> None:
        period = D // (2 * K)
        fedavg = (period - 1) * 1.0 + self.clock.round_cost(sparse(up=D, down=D, dense=True))
        assert fedavg == pytest.approx(period * self.clock.round_cost(sparse(up=K, down=K)))

    def test_unidirectional_sends_up_to_k_n_down(self) -> None:
        assert self.clock.round_cost(sparse(up=K, down=K * N)) == pytest.approx(1 + 10 * (50 + 200) / 1000)

    def test_the_probe_is_charged_where_asked(self) -> None:
        assert self.clock.round_cost(sparse(up=50, down=30, probe=20)) == pytest.approx(1 + 10 * 100 / 1000)

    def test_periodic_k_without_indices_pays_half(self) -> None:
        assert self.clock.round_cost(sparse(implied_indices=True)) == pytest.approx(1 + 10 * 50 / 1000)

    def test_the_largest_of_those_that_took_part(self) -> None:
        traffic = sparse(up=[10, 40, 20, 0], down=[5, 5, 90, 500], took_part=[True, True, True, False])
        assert self.clock.round_cost(traffic) == pytest.approx(1 + 10 * 110 / 1000)

    def test_another_computation_time(self) -> None:
        assert NormalizedTime(10.0, comp_time=0.25).round_cost(sparse()) == pytest.approx(0.25 + 1)


class TestLinkTime:
    """compute + latency + bytes up / bandwidth up + latency + bytes down / bandwidth down, of the slowest client."""

    def test_by_hand(self) -> None:
        link = LinkTime(up_bandwidth=100.0, down_bandwidth=400.0, latency=0.05, compute=2.0)
        # 400 bytes up take 4 s, 240 down 0.6 s, two messages 0.1 s.
        assert link.round_cost(sparse(up=50, down=30)) == pytest.approx(2 + 4 + 0.6 + 0.1)

    def test_the_slowest_client(self) -> None:
        link = LinkTime(
            up_bandwidth=[100, 200, 50, 1], down_bandwidth=[400, 10, 400, 1], latency=[0, 0, 1, 9], compute=[1, 1, 3, 9]
        )
        traffic = sparse(up=50, down=30, took_part=[True, True, True, False])
        # 1 + 4 + 0.6; 1 + 2 + 24; 3 + 2 * 1 + 8 + 0.6; the fourth did not take part.
        assert link.round_cost(traffic) == pytest.approx(27.0)

    def test_an_empty_message_costs_no_latency(self) -> None:
        link = LinkTime(100.0, 400.0, latency=0.5, compute=2.0)
        assert link.round_cost(sparse(up=0, down=0, dense=True)) == 2.0
        assert link.round_cost(sparse(up=0, down=30)) == pytest.approx(2 + 0.5 + 0.6)

    def test_real_bytes_count_not_numbers(self) -> None:
        link = LinkTime(100.0, 400.0)
        assert link.round_cost(sparse(up_bytes=200, down_bytes=100)) == pytest.approx(2 + 0.25)


@pytest.mark.parametrize("model", [Energy, Money])
class TestSums:
    """Energy and money are sums over the clients."""

    def test_by_hand(self, model: Any) -> None:
        # Four clients, each 400 bytes up at 0.01, 240 down at 0.02 and 3 for its computation.
        assert model(up=0.01, down=0.02, compute=3.0).round_cost(sparse(up=50, down=30)) == pytest.approx(4 * 11.8)

    def test_absentees_receive_but_neither_send_nor_compute(self, model: Any) -> None:
        traffic = sparse(up=50, down=30, took_part=[True, False, False, True])
        assert model(up=0.01, down=0.02, compute=3.0).round_cost(traffic) == pytest.approx(2 * 7 + 4 * 4.8)

    def test_each_client_may_have_its_own_rates(self, model: Any) -> None:
        cost = model(up=[0.01, 0, 0, 0.1], down=[0, 0.5, 0, 0], compute=[1, 2, 3, 4])
        assert cost.round_cost(sparse(up=50, down=30)) == pytest.approx(4 + 40 + 120 + 10)


def test_a_weighted_sum() -> None:
    link, money = LinkTime(100.0, 400.0), Money(up=0.01, down=0.0)
    traffic = sparse(up=50, down=30)  # 4.6 seconds; 16 of the currency
    assert WeightedSum((0.5, link), (2.0, money)).round_cost(traffic) == pytest.approx(0.5 * 4.6 + 2 * 16)
    nested = WeightedSum((3.0, WeightedSum((0.5, link))), (0, money))
    assert nested.round_cost(traffic) == pytest.approx(1.5 * 4.6)


def test_measured_time_is_what_the_driver_measured() -> None:
    traffic = Traffic.of(D, K, K, clients=N, seconds=3.5)
    both = WeightedSum((2.0, MeasuredTime()), (1.0, Money(up=0.0, down=0.0, compute=1.0)))
    assert MeasuredTime().round_cost(traffic) == 3.5
    assert both.round_cost(traffic) == pytest.approx(7 + N)
    assert (MeasuredTime().waiting_cost(9.0), both.waiting_cost(9.0), Money(1.0, 1.0).waiting_cost(9.0)) == (9, 18, 0)
    assert MeasuredTime().measured
    assert both.measured
    assert not any(model.measured for model in MODELS)
    for model in (MeasuredTime(), both):
        with pytest.raises(GradsiftError, match="cost 'measured-time' needs a driver that measures time, such as Flow"):
            model.round_cost(sparse())


def test_the_simulator_refuses_to_measure() -> None:
    both = WeightedSum((2.0, MeasuredTime()), (1.0, Money(up=0.0, down=0.0)))
    for cost in ("measured-time", both):
        with pytest.raises(GradsiftError, match=r"MeasuredTime.* needs a driver|cost 'measured-time' needs a driver"):
            gradsift.simulate(mlp(), nn.CrossEntropyLoss(), blobs(2), rounds=1, cost=cost)


MODELS: list[CostModel] = [
    NormalizedTime(comm_time=10.0),
    LinkTime(up_bandwidth=[100, 30, 7], down_bandwidth=50.0, latency=[0.1, 0.0, 3.0], compute=1.0),
    Energy(up=[0.1, 0.2, 0.0], down=0.01, compute=2.0),
    Money(up=0.0, down=[0.5, 0.0, 0.1]),
    WeightedSum((0.3, NormalizedTime(2.0)), (1.5, Energy(up=0.1, down=0.2))),
]
COUNTS = st.lists(st.integers(0, D), min_size=3, max_size=3)
PRESENT = st.lists(st.booleans(), min_size=3, max_size=3).filter(any)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@given(up=COUNTS, down=COUNTS, more_up=COUNTS, more_down=COUNTS, took_part=PRESENT, form=st.integers(0, 3))
def test_more_elements_never_cost_less(
    model: CostModel,
    up: list[int],
    down: list[int],
    more_up: list[int],
    more_down: list[int],
    took_part: list[bool],
    form: int,
) -> None:
    """Whoever sends or receives more, in whatever form; and a round has a finite, non-negative price."""
    options = [{}, {"dense": True}, {"implied_indices": True}, {"dense_fallback": True}][form]

    def cost(up: Any, down: Any) -> float:
        return model.round_cost(Traffic.of(D, up, down, took_part=took_part, **options))

    larger = cost(np.maximum(up, more_up), np.maximum(down, more_down))
    assert type(larger) is float
    assert 0 <= cost(up, down) <= larger < math.inf


@given(
    up=COUNTS,
    down=COUNTS,
    took_part=PRESENT,
    bandwidths=st.tuples(*[st.floats(1e-3, 1e9)] * 2),
    times=st.tuples(*[st.floats(0, 1e3)] * 2),
    unit=st.floats(1e-6, 1e6),
)
def test_link_time_has_the_units_of_its_options(
    up: list[int],
    down: list[int],
    took_part: list[bool],
    bandwidths: tuple[float, float],
    times: tuple[float, float],
    unit: float,
) -> None:
    traffic = Traffic.of(D, up, down, took_part=took_part)
    seconds = LinkTime(*bandwidths, *times).round_cost(traffic)
    # Milliseconds for seconds: times grow, bandwidths (bytes a unit of time) shrink.
    slow, fast = (tuple(b * by for b in bandwidths) for by in (1 / unit, unit))
    other = LinkTime(slow[0], slow[1], times[0] * unit, times[1] * unit).round_cost(traffic)
    assert other == pytest.approx(seconds * unit)
    # Kilobytes for bytes, in traffic and bandwidth alike.
    scaled = traffic._replace(up_bytes=traffic.up_bytes * unit, down_bytes=traffic.down_bytes * unit)
    assert LinkTime(fast[0], fast[1], *times).round_cost(scaled) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"dim": math.nan}, "dim must be an integer, got nan"),
        ({"dim": "10"}, "dim must be an integer, got '10'"),
        ({"clients": None}, "traffic needs took_part, or the number of clients"),
        ({"clients": 0}, "clients must be at least 1, got 0"),
        ({"clients": -2}, "clients must be at least 1, got -2"),
        ({"clients": "4"}, "clients must be an integer, got '4'"),
        ({"clients": 3, "took_part": [True, False]}, "took_part must have one entry per client, 3, got 2"),
        ({"took_part": []}, "took_part must be a list with at least one True, got []"),
        (
            {"took_part": [False] * 4},
            "took_part must be a list with at least one True, got [False, False, False, False]",
        ),
        ({"took_part": [[True]]}, "took_part must be a list with at least one True, got [[True]]"),
        ({"took_part": [0, 2, 3, 7]}, "took_part must be True or False for each client, got [0, 2, 3, 7]"),
        ({"up": 1001}, "a message has at most 1000 elements, got 1001"),
        ({"down": [0, 0, 0, 1001]}, "a message has at most 1000 elements, got 1001"),
        ({"probe": 1001}, "a message has at most 1000 elements, got 1001"),
        ({"up": -1}, "up must be finite and not negative, got -1"),
        ({"up": math.nan}, "up must be finite and not negative, got nan"),
        ({"down": math.inf}, "down must be finite and not negative, got inf"),
        ({"probe": -1}, "probe must be finite and not negative, got -1"),
        ({"buffers": -1}, "buffers must be finite and not negative, got -1"),
        ({"up": [1, 2]}, "up must be one or 4 numbers, got shape [2]"),
        ({"down": [[1, 2, 3, 4]]}, "down must be one or 4 numbers, got shape [1, 4]"),
        ({"up": "fifty"}, "up must be one number or one per client, got 'fifty'"),
        ({"up": "50"}, "up must be one number or one per client, got '50'"),
        ({"down": None}, "down must be one number or one per client, got None"),
        ({"up_bytes": -3}, "up_bytes must be finite and not negative, got -3"),
        ({"down_bytes": math.nan}, "down_bytes must be finite and not negative, got nan"),
        ({"seconds": -1.0}, "seconds must be at least 0, got -1.0"),
        ({"seconds": math.nan}, "seconds must be a finite number, got nan"),
        ({"up_bytes": [1, 2, 3]}, "up_bytes must be one or 4 numbers, got shape [3]"),
    ],
)
def test_bad_traffic_is_refused_by_value(change: dict[str, Any], message: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(message)):
        Traffic.of(**{"dim": D, "up": K, "down": K, "clients": N, **change})


def test_bad_counts_are_refused_of_absentees_too() -> None:
    with pytest.raises(GradsiftError, match="up must be finite and not negative"):
        sparse(up=[1, 2, 3, math.nan], took_part=[True, True, True, False])


NOT_RATES = [-1.0, math.nan, math.inf, "7", None, [[1.0]]]


@pytest.mark.parametrize(
    ("model", "options", "bad"),
    [
        (NormalizedTime, {"comm_time": 1.0, "comp_time": 1.0}, [*NOT_RATES, [1.0, 2.0], True]),
        (
            LinkTime,
            {"up_bandwidth": 1.0, "down_bandwidth": 1.0, "latency": 1.0, "compute": 1.0},
            [*NOT_RATES, [1.0, -1.0], [1.0, math.nan]],
        ),
        (Energy, {"up": 1.0, "down": 1.0, "compute": 1.0}, [*NOT_RATES, [1.0, -1.0]]),
        (Money, {"up": 1.0, "down": 1.0, "compute": 1.0}, [*NOT_RATES, [1.0, -1.0]]),
    ],
)
def test_bad_rates_are_refused_by_name_and_value(model: Any, options: dict[str, Any], bad: list[Any]) -> None:
    for option in options:
        for value in bad:
            with pytest.raises(GradsiftError, match=rf"^{option} must be .* got {re.escape(repr(value))}"):
                model(**{**options, option: value})


def test_a_bandwidth_of_zero_is_refused() -> None:
    for option in ("up_bandwidth", "down_bandwidth"):
        for value in (0.0, [1.0, 0.0], []):
            with pytest.raises(GradsiftError, match=rf"{option} must be finite and positive.*{re.escape(repr(value))}"):
                LinkTime(**{"up_bandwidth": 1.0, "down_bandwidth": 1.0, option: value})


@pytest.mark.parametrize(
    "model", [LinkTime([1.0, 2.0], 1.0), LinkTime(1.0, 1.0, latency=[1.0]), Energy(1.0, [1.0]), Money(1.0, 1.0, [1.0])]
)
def test_rates_for_other_clients_are_refused(model: CostModel) -> None:
    with pytest.raises(GradsiftError, match=r"is given for \d clients, the round has 4"):
        model.round_cost(sparse())


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ((), "a weighted sum needs at least one"),
        ((NormalizedTime(1.0),), "each term must be a pair (weight, cost), got NormalizedTime"),
        (((1.0, "time"),), "each term must be a pair (weight, cost), got (1.0, 'time')"),
        (((-1.0, NormalizedTime(1.0)),), "a weight must be at least 0, got -1.0"),
        (((math.nan, NormalizedTime(1.0)),), "a weight must be a finite number, got nan"),
        ((("2", NormalizedTime(1.0)),), "a weight must be a finite number, got '2'"),
    ],
)
def test_bad_terms_are_refused_by_value(terms: tuple[Any, ...], message: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(message)):
        WeightedSum(*terms)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_every_gradient_of_a_round_is_paid_for(steps: int) -> None:
    """Local steps cost computation; the messages are the same."""
    models: list[tuple[CostModel, float]] = [
        (NormalizedTime(comm_time=10, comp_time=1.5), 1.5),
        (LinkTime(up_bandwidth=10.0, down_bandwidth=20.0, latency=0.1, compute=0.25), 0.25),
        (Energy(up=1.0, down=2.0, compute=3.0), 2 * 3.0),  # two of the three clients took part
        (Money(up=1.0, down=2.0, compute=0.5), 2 * 0.5),
        (
            WeightedSum(
                (2.0, Money(up=1.0, down=2.0, compute=0.5)),
            ),
            2 * 2 * 0.5,
        ),
    ]
    once, often = (Traffic.of(100, up=5, down=6, took_part=[True, False, True], steps=number) for number in (1, steps))
    assert repr(often._replace(steps=1)) == repr(once)
    for model, gradient in models:
        assert model.round_cost(often) == pytest.approx(model.round_cost(once) + (steps - 1) * gradient)


def test_the_slowest_client_is_the_slowest_with_all_its_gradients() -> None:
    model = LinkTime(up_bandwidth=[1.0, 1e9], down_bandwidth=1e9, compute=[0.0, 1.0])
    assert model.round_cost(Traffic.of(100, up=1, down=0, clients=2)) == pytest.approx(8.0)
    assert model.round_cost(Traffic.of(100, up=1, down=0, clients=2, steps=20)) == pytest.approx(20.0)


@pytest.mark.parametrize("steps", [0, -1, 1.5, math.nan, True, None, "2"])
def test_a_round_of_no_gradients_is_refused(steps: Any) -> None:
    with pytest.raises(GradsiftError, match=f"steps must be .*, got {steps!r}"):
        Traffic.of(100, up=1, down=1, clients=2, steps=steps)


def test_costs_have_names() -> None:
    models: dict[str, CostModel] = {
        "normalized-time": NormalizedTime(comm_time=3),
        "link-time": LinkTime(up_bandwidth=10.0, down_bandwidth=[1.0, 2.0], latency=0.5),
        "energy": Energy(up=1, down=2),
        "money": Money(up=1, down=2, compute=3),
        "measured-time": MeasuredTime(),
    }
    assert set(models) <= set(gradsift.cost_models())
    for name, model in models.items():
        assert model.name == name
        options = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}  # type: ignore[arg-type]
        assert gradsift.cost_model(name, **options) == model
    with pytest.raises(GradsiftError, match="unknown cost 'enrgy'; did you mean 'energy'"):
        gradsift.cost_model("enrgy")
    with pytest.raises(GradsiftError, match="cost 'money' needs the options up, down"):
        gradsift.cost_model("money")
    with pytest.raises(GradsiftError, match="must be a subclass of CostModel"):
        gradsift.register_cost_model("no cost")(dict)
