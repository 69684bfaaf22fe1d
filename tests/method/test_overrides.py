"""What an extender overrides is what runs: in the simulator and on Flower, for every slot, found by its name.

Every class here is registered for one test only. Flower is the in-process grid, whose clients find their parts by name
as those of another machine do.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

import gradsift
from gradsift import (
    Controller,
    GradsiftError,
    Money,
    Observation,
    Proposal,
    Round,
    Sparse,
    Sparsifier,
    Traffic,
    round_k,
)
from gradsift.control.extended_sign import ExtendedSign
from gradsift.control.fixed import Fixed
from gradsift.control.planned import Planned
from gradsift.cost import CostModel
from gradsift.flower import SparseStrategy
from gradsift.local import AddGradients, LocalComputation, LocalSteps, OneGradient, PeriodicAveraging
from gradsift.records.record import Record
from gradsift.server_step import SGD, Momentum, ServerOptimizer
from gradsift.sparse import nothing
from gradsift.sparsify.base import TopKUpload
from gradsift.sparsify.fab_top_k import FabTopK
from gradsift.sparsify.periodic_k import PeriodicK
from gradsift.sparsify.send_all import SendAll
from gradsift.values import Exact, FewBits, Int8, ValueType
from tests.method.drivers import CLIENTS, DRIVERS, ROUNDS, Run, assert_same_run, on_simulator, without_bytes
from tests.registered import REGISTRIES, own_names
from tests.simulation.problems import blobs, mlp

pytestmark = pytest.mark.slow  # many runs

DIM = 57
drivers = pytest.mark.parametrize("driver", DRIVERS)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with own_names():
        yield


# 1. Every method that a class may override is called, and calling the one above it gives the same run to the bit.


class Overridable(NamedTuple):
    """A method of a class in a slot, and the drivers that call it."""

    slot: str
    base: type[Any]
    method: str
    options: dict[str, Any]  # of the class
    others: dict[str, Any]  # other slots
    drivers: Sequence[str] = ("simulator", "flower")


FIXED = Fixed(9)
TABLE: list[Overridable] = [
    *(
        Overridable("sparsifier", base, method, {}, {})
        for base in (FabTopK, PeriodicK)
        for method in ("upload", "merge", "probe", "truncate", "settle")
    ),
    *(
        Overridable("sparsifier", SendAll, method, {}, {"controller": FIXED})
        for method in ("upload", "merge", "settle")
    ),
    Overridable("sparsifier", FabTopK, "upload_size", {}, {}, ["flower"]),  # to know how much a client may send
    Overridable("sparsifier", PeriodicK, "coordinates", {}, {}),
    *(Overridable("controller", ExtendedSign, m, {}, {}) for m in ("init", "propose", "update", "search_interval")),
    *(Overridable("controller", Planned, m, {}, {}) for m in ("init", "propose", "update", "priced")),
    Overridable("controller", ExtendedSign, "largest_k", {}, {}, ["simulator"]),  # to make room for it
    *(
        Overridable("local", base, method, options, {"sparsifier": SendAll(), "controller": FIXED})
        for base, options in ((OneGradient, {}), (LocalSteps, {"steps": 2}), (PeriodicAveraging, {}))
        for method in ("accumulate", "period", "computations")
    ),
    *(Overridable("values", base, "rounded", {}, {"controller": FIXED}) for base in (Exact, Int8)),
    *(Overridable("values", base, "encode", {}, {}, ["flower"]) for base in (Exact, Int8)),
    *(Overridable("values", base, "encoded_size", {}, {}) for base in (Exact, Int8)),
    *(Overridable("values", FewBits, method, {}, {}) for method in ("rounded", "encoded_size")),
    *(Overridable("values", base, "expected_size", {}, {"controller": "planned"}) for base in (Exact, FewBits)),
    *(Overridable("down_values", base, "rounded", {}, {"controller": FIXED}) for base in (Int8, FewBits)),
    *(Overridable("down_values", base, "encoded_size", {}, {}) for base in (Int8, FewBits)),
    Overridable("down_values", FewBits, "expected_size", {}, {"controller": "planned"}),
    *(Overridable("server", Momentum, method, {}, {}) for method in ("init", "step")),
    Overridable("server", SGD, "step", {"rate": 0.5}, {}),
    *(Overridable("cost", Money, method, {"up": 1.0, "down": 2.0}, {}) for method in ("round_cost", "measured")),
    Overridable("cost", Money, "client_costs", {"up": 1.0, "down": 2.0}, {"controller": "planned"}),
]
CASES = [
    pytest.param(case, driver, id=f"{case.slot} {case.base.__name__}.{case.method} {driver}")
    for case in TABLE
    for driver in case.drivers
]


def overriding(base: type[Any], method: str, calls: list[str]) -> type[Any]:
    """A class that keeps account of the calls of one method, and does what its base does."""
    above = getattr(base, method)
    if isinstance(above, property):

        def read(self: Any) -> Any:
            calls.append(method)
            return above.__get__(self)

        return type("Own", (base,), {method: property(read)})

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(method)
        return above(self, *arguments, **options)

    return type("Own", (base,), {method: call})


@pytest.mark.parametrize(("case", "driver"), CASES)
def test_a_method_that_is_overridden_is_the_one_that_is_called(case: Overridable, driver: str) -> None:
    calls: list[str] = []
    registry = REGISTRIES[case.slot.removeprefix("down_")]
    own = registry.register("own")(overriding(case.base, case.method, calls))
    base = registry.make(case.base.name, **case.options)
    expected = DRIVERS[driver](**case.others, **{case.slot: base})
    assert calls == []
    runs = [DRIVERS[driver](**case.others, **{case.slot: own(**case.options)})]
    assert len(calls) >= 1
    if not case.options:
        calls.clear()
        runs.append(DRIVERS[driver](**case.others, **{case.slot: "own"}))
        assert len(calls) >= 1
    if case.method == "rounded":  # what one's own class has rounded is sent exactly, which may take more bytes
        expected, *runs = (Run(without_costs(records), weights) for records, weights in (expected, *runs))
    for run in runs:
        assert_same_run(run, expected)


def without_costs(records: list[Record]) -> list[Record]:
    return [{**record, "cost": 0.0, "round_cost": 0.0} for record in without_bytes(records)]


def test_the_table_has_every_method_that_there_is_to_override() -> None:
    """All that a base class names, but for what only says what it is."""
    bases = {"sparsifier": Sparsifier, "controller": Controller, "local": LocalComputation, "values": ValueType}
    for slot, base in {**bases, "server": ServerOptimizer, "cost": CostModel}.items():
        named = {name for name, value in vars(base).items() if not name.startswith("_") and not _says(value)}
        # What a round costs that nobody answers is in tests/flower/test_measured_time.py: all do here.
        assert named - {"waiting_cost"} == {case.method for case in TABLE if case.slot == slot}


def _says(value: object) -> bool:
    return isinstance(value, str | bool | LocalComputation) or value is None


# 2. And it has its effect.


@drivers
def test_what_is_uploaded_is_what_upload_says(driver: str) -> None:
    @gradsift.register_sparsifier("own")
    class First(TopKUpload):
        """The first k elements, whatever they are."""

        def upload(self, residual: Tensor, rnd: Round) -> Sparse:
            indices = torch.arange(rnd.k).expand(*residual.shape[:-1], -1)
            return Sparse(indices, residual.gather(-1, indices), residual.shape[-1])

        def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
            del rnd
            return gradsift.weighted_sum(uploads, share)

    run = DRIVERS[driver](sparsifier="own", controller=Fixed(5))
    start = torch.cat([p.detach().reshape(-1) for p in mlp().double().parameters()])
    moved = (run.weights != start).nonzero().squeeze(-1).tolist()
    assert moved == [0, 1, 2, 3, 4]
    assert all(record["contribution"] == [5] * CLIENTS for record in run.records)


@drivers
def test_what_is_merged_is_what_merge_says(driver: str) -> None:
    @gradsift.register_sparsifier("own")
    class Nothing(FabTopK):
        """Keeps nothing."""

        def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
            del share, rnd
            return nothing(uploads.values.new_zeros(uploads.dim))

    run = DRIVERS[driver](sparsifier="own", controller=Fixed(5))
    assert all(record["down_elements"] == 0 and record["up_elements"] == 5 for record in run.records)
    assert torch.equal(run.weights, torch.cat([p.detach().reshape(-1) for p in mlp().double().parameters()]))


@drivers
def test_the_probe_is_what_probe_says(driver: str) -> None:
    @gradsift.register_sparsifier("own")
    class Same(FabTopK):
        """At k' the same as at k."""

        def probe(self, uploads: Sparse, share: Tensor, rnd: Round, probe_k: int | Sequence[int]) -> Sparse:
            del probe_k
            return self.merge(uploads, share, rnd)

    run = DRIVERS[driver](sparsifier="own")
    assert all(record["probe_elements"] == 0 for record in run.records)
    assert all(record["loss_probe"] == record["loss_after"] is not None for record in run.records)


@drivers
def test_what_a_smaller_k_would_send_is_what_truncate_says(driver: str) -> None:
    """The probe is merged from it, and priced by it."""

    @gradsift.register_sparsifier("own")
    class One(FabTopK):
        """At any k' one element."""

        def truncate(self, uploads: Sparse, rnd: Round) -> Sparse:
            return super().truncate(uploads, rnd.at(1))

    @gradsift.register_cost_model("own")
    class Elements(CostModel):
        """Elements that the clients sent."""

        def round_cost(self, traffic: Traffic) -> float:
            return float(traffic.up_numbers.sum()) / 2

    seen: list[Observation] = []

    @gradsift.register_controller("own")
    class Told(ExtendedSign):
        """Keeps what it was told."""

        def update(self, state: Any, seen_now: Observation) -> Any:
            seen.append(seen_now)
            return super().update(state, seen_now)

    DRIVERS[driver](sparsifier="own", controller="own", cost="own")
    assert len(seen) == ROUNDS
    assert {each.probe_cost for each in seen} == {CLIENTS}
    assert all(each.cost == CLIENTS * (each.used_k or 0) for each in seen)


@drivers
def test_what_is_forgotten_is_what_settle_says(driver: str) -> None:
    @gradsift.register_sparsifier("own")
    class Forgets(FabTopK):
        """All of it: no error feedback."""

        def settle(self, residual: Tensor, upload: Sparse, merged: Sparse) -> Tensor:
            del upload, merged
            return residual.zero_()

    def run(sparsifier: str) -> Run:
        return DRIVERS[driver](sparsifier=sparsifier, controller=Fixed(5))

    own, base = run("own"), run("fab-top-k")
    assert not torch.equal(own.weights, base.weights)
    # Without feedback a client sends its newest gradient: the first round is the same, and the second is not.
    assert own.records[0] == base.records[0]


@dataclass(frozen=True)
class Halving(Controller[dict[str, float]]):
    """Half as many elements after every round that it hears of."""

    first: float = 32.0
    learns: ClassVar[bool] = True

    def init(self, dim: int, seed: int = 0) -> dict[str, float]:
        del seed
        return {"k": min(self.first, dim)}

    def propose(self, state: dict[str, float], number: int) -> Proposal:
        return Proposal(number, state["k"])

    def update(self, state: dict[str, float], seen: Observation) -> dict[str, float]:
        del seen
        return {"k": max(1.0, state["k"] / 2)}

    def search_interval(self, state: dict[str, float]) -> tuple[float, float] | None:
        return 1.0, state["k"]


@drivers
def test_k_is_what_a_controller_of_ones_own_says(driver: str) -> None:
    gradsift.register_controller("halving")(Halving)
    run = DRIVERS[driver](controller="halving")
    assert [record["used_k"] for record in run.records] == [32, 16, 8, 4, 2]
    assert [record["high"] for record in run.records] == [32, 16, 8, 4, 2]
    assert all(record["observed"] == record["round"] for record in run.records)


@drivers
def test_a_k_for_each_client_is_what_a_controller_says(driver: str) -> None:
    @gradsift.register_controller("own")
    class Different(Halving):
        """Client i sends i + 1.5 elements, as they are rounded for it."""

        def propose(self, state: dict[str, float], number: int) -> Proposal:
            del state
            return Proposal(number, tuple(1.5 + client for client in range(CLIENTS)))

    run = DRIVERS[driver](controller="own", seed=3)
    for record in run.records:
        expected = [round_k(1.5 + client, 3, record["round"], client) for client in range(CLIENTS)]
        assert record["client_k"] == expected
        assert record["up_elements"] == max(expected)


@drivers
def test_the_bill_is_what_a_cost_of_ones_own_says(driver: str) -> None:
    @gradsift.register_cost_model("own")
    @dataclass(frozen=True)
    class PerClient(CostModel):
        """So much for each client that took part."""

        price: float = 3.0

        def round_cost(self, traffic: Traffic) -> float:
            return self.price * float(traffic.took_part.sum())

    run = DRIVERS[driver](cost="own", controller=Fixed(5))
    assert [record["round_cost"] for record in run.records] == [3.0 * CLIENTS] * ROUNDS
    run = DRIVERS[driver](cost=gradsift.cost_model("own", price=0.5), controller=Fixed(5))
    assert run.records[-1]["cost"] == 0.5 * CLIENTS * ROUNDS


@drivers
def test_gradients_are_taken_where_a_local_computation_of_ones_own_says(driver: str) -> None:
    points: list[Tensor] = []

    @gradsift.register_local_computation("own")
    @dataclass(frozen=True)
    class LookAhead(LocalComputation):
        """A gradient ``far`` steps down the first one."""

        far: float = 1.0

        @property
        def computations(self) -> int:
            return 2

        def accumulate(self, residual: Tensor, weights: Tensor, lr: float, add_gradients: AddGradients) -> None:
            first = residual.new_zeros(residual.shape)
            add_gradients(first, weights, 0)
            points.append(weights - self.far * lr * first)
            add_gradients(residual, points[-1], 1)

    near = DRIVERS[driver](local=gradsift.local_computation("own", far=0.0), controller=Fixed(DIM))
    asked = len(points)
    assert asked >= ROUNDS
    far = DRIVERS[driver](local="own", controller=Fixed(DIM))
    assert not torch.equal(near.weights, far.weights)
    assert all(record["steps"] == 2 for record in [*near.records, *far.records])
    # On Flower a client has weights of its own, here one row or vector for each.
    assert {point.shape[-1] for point in points} == {DIM}


@drivers
def test_values_arrive_as_a_value_type_of_ones_own_says(driver: str) -> None:
    @gradsift.register_value_type("own")
    class Quarters(ValueType):
        """Whole multiples of a quarter."""

        def rounded(self, message: Sparse) -> Sparse:
            return message.with_values((message.values * 4).round() / 4)

    run = DRIVERS[driver](values="own", controller=Fixed(DIM), sparsifier="unidirectional-top-k", lr=1.0)
    start = torch.cat([p.detach().reshape(-1) for p in mlp().double().parameters()])
    share = torch.from_numpy(blobs(CLIENTS).share)
    # What the weights moved by is a sum of quarters, each times the share of its client.
    unit = (run.weights - start) * 4 * len(blobs(CLIENTS).x)
    assert torch.allclose(unit, unit.round(), atol=1e-6)
    assert float(unit.abs().max()) > 1
    assert torch.allclose(share * len(blobs(CLIENTS).x), (share * len(blobs(CLIENTS).x)).round())
    exact = DRIVERS[driver](values="exact", controller=Fixed(DIM), sparsifier="unidirectional-top-k", lr=1.0)
    assert not torch.equal(run.weights, exact.weights)


@drivers
def test_all_five_at_once(driver: str) -> None:
    """Each registered, and found by its name."""

    @gradsift.register_sparsifier("own")
    class OwnSparsifier(FabTopK):
        """As FAB-top-k."""

    @gradsift.register_local_computation("own")
    class OwnLocal(OneGradient):
        """As one gradient."""

    @gradsift.register_value_type("own")
    class OwnValues(Int8):
        """As int8."""

    @gradsift.register_controller("own")
    class OwnController(ExtendedSign):
        """As extended-sign."""

    @gradsift.register_cost_model("own")
    @dataclass(frozen=True)
    class OwnCost(Money):
        """As money, with prices."""

        up: float = 1.0
        down: float = 2.0

    run = DRIVERS[driver](**dict.fromkeys(("sparsifier", "local", "values", "controller", "cost"), "own"))
    assert_same_run(run, DRIVERS[driver](values="int8", cost=Money(up=1.0, down=2.0)))


@drivers
def test_a_sparsifier_that_takes_no_notice_of_each_clients_k_is_refused(driver: str) -> None:
    """Not on Flower, where a client is told no other k than its own."""

    @gradsift.register_sparsifier("own")
    class Alike(FabTopK):
        """Every client sends as many as the one that sends most."""

        def upload(self, residual: Tensor, rnd: Round) -> Sparse:
            return super().upload(residual, rnd.at(rnd.k))

    @gradsift.register_controller("own")
    class Different(Halving):
        """Client i sends i + 1 elements."""

        def propose(self, state: dict[str, float], number: int) -> Proposal:
            del state
            return Proposal(number, tuple(float(client + 1) for client in range(CLIENTS)))

    if driver == "flower":
        run = DRIVERS[driver](sparsifier="own", controller="own")
        assert all(record["client_k"] == [1, 2, 3, 4] for record in run.records)
        assert all(sum(record["contribution"]) <= 10 for record in run.records)
    else:
        message = r"'own' makes all uploads equally long, but each client has a k of its own: \[1, 2, 3, 4\]"
        with pytest.raises(GradsiftError, match=message):
            DRIVERS[driver](sparsifier="own", controller="own")


# 3. On Flower a client makes its parts from names and options: what it could not make, or not so, is refused.


class Inherits(FabTopK):
    """Has the name of FAB-top-k, by which a client would find FAB-top-k."""


@dataclass(frozen=True)
class Wants(FabTopK):
    """With an option that JSON does not have."""

    thing: Any = None


class Keeps(TopKUpload):
    """With an option that is not the field of a dataclass."""

    def __init__(self, power: float = 2.0) -> None:
        self.power = power

    def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        return FabTopK().merge(uploads, share, rnd)


def test_what_clients_would_make_otherwise_is_refused() -> None:
    def refused(named: str, **slots: Any) -> None:
        with pytest.raises(GradsiftError, match=re.escape(named)):
            SparseStrategy(mlp(), **slots)

    refused("Inherits() is not registered: the clients find the sparsifier by its name", sparsifier=Inherits())
    refused("the clients find the values by its name", values=type("Mine", (Int8,), {})())
    refused("the clients find the local by its name", local=type("Mine", (OneGradient,), {})())
    gradsift.register_sparsifier("wants")(Wants)
    gradsift.register_sparsifier("keeps")(Keeps)
    SparseStrategy(mlp(), sparsifier=Wants(thing=[1, 2]))
    refused("the clients cannot make the parts of this method", sparsifier=Wants(thing=object()))
    SparseStrategy(mlp(), sparsifier=Keeps())
    refused("without its options: make them fields of a dataclass", sparsifier=Keeps(3.0))
    # The simulator has no clients elsewhere, and takes them all.
    sparsifiers: list[Sparsifier] = [Inherits(), Wants(thing=object()), Keeps(3.0)]
    for sparsifier in sparsifiers:
        on_simulator(sparsifier=sparsifier, controller=Fixed(5))
