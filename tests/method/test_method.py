"""A Method: slots by name or by object, what goes together and what does not, and its description."""

import copy
import dataclasses
import itertools
import json
import math
import pickle
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gradsift
from gradsift import (
    Constant,
    Cosine,
    Energy,
    Exact,
    FewBits,
    GradsiftError,
    LinkTime,
    LocalComputation,
    LocalSteps,
    Method,
    Money,
    NormalizedTime,
    OneGradient,
    StepDecay,
    WeightedSum,
    round,
)
from gradsift.control import unchecked as bare_controller
from gradsift.control.fixed import Fixed
from gradsift.control.planned import Planned
from gradsift.local import AddGradients, PeriodicAveraging
from gradsift.method import SLOTS
from gradsift.server_step import SGD, Momentum
from gradsift.sparsify import unchecked as bare_sparsifier
from gradsift.sparsify.base import TopKUpload
from gradsift.sparsify.fab_top_k import FabTopK
from gradsift.sparsify.fedavg import FedAvg
from gradsift.sparsify.send_all import SendAll
from gradsift.values import Int8
from tests.control.table import TABLE as CONTROLLERS
from tests.local.table import TABLE as LOCAL
from tests.server.table import TABLE as SERVERS
from tests.sparsify.cases import ALL, DENSE, SPARSE
from tests.values.table import TABLE as VALUES

FIXED = gradsift.controller("fixed", k=3)


def test_what_is_left_out() -> None:
    method = Method.of()
    assert method == Method(
        local=OneGradient(),
        sparsifier=FabTopK(),
        values=Exact(),
        controller=Planned(),
        cost=NormalizedTime(comm_time=10),
        lr=Constant(0.01),
        seed=0,
        charge_probe=False,
        dense_fallback=False,
        encoded_bytes=False,
    )


def test_names_and_objects_make_the_same_method() -> None:
    named = Method.of(sparsifier="send-all", controller=FIXED, values="int8", local="one-gradient", lr=0.1)
    made = Method.of(sparsifier=SendAll(), controller=Fixed(3), values=Int8(), local=OneGradient(), lr=Constant(0.1))
    assert named == made


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"local_steps": 1}, {"local": LocalSteps(1)}),
        ({"local_steps": 16}, {"local": LocalSteps(16)}),
        ({"bits": 2}, {"values": FewBits(2), "down_values": FewBits(2), "encoded_bytes": True}),
        ({"bits": (1, 8)}, {"values": FewBits(1), "down_values": FewBits(8), "encoded_bytes": True}),
        ({"bits": [3, 4]}, {"values": FewBits(3), "down_values": FewBits(4), "encoded_bytes": True}),
        ({"bits": (2, 32)}, {"values": FewBits(2), "encoded_bytes": True}),
        ({"bits": (32, 2)}, {"down_values": "few-bits", "encoded_bytes": True}),
        ({"bits": 32}, {"encoded_bytes": True}),
        ({"bits": 32, "encoded_bytes": False}, {}),
        ({"server": "momentum"}, {"server": Momentum(0.9)}),
        (
            {"sparsifier": "send-all", "controller": FIXED, "local_steps": 4, "bits": (4, 32)},
            {"sparsifier": SendAll(), "controller": FIXED, "local": LocalSteps(4)}
            | {"values": FewBits(4), "encoded_bytes": True},
        ),
    ],
    ids=str,
)
def test_short_forms_are_the_long_ones(short: dict[str, Any], long: dict[str, Any]) -> None:
    assert Method.of(**short) == Method.of(**long)


def test_a_step_is_plain_without_rounding_and_optimizer_only() -> None:
    class OwnExact(Exact):
        """A type of one's own, which may round as it likes."""

    assert Method.of().plain_step
    assert Method.of(server=SGD(rate=1), down_values=Exact(), bits=None).plain_step
    assert Method.of(bits=(2, 32)).plain_step
    others: list[dict[str, Any]] = [{"server": SGD(0.5)}, {"server": "momentum"}]
    for options in [*others, {"down_values": "int8"}, {"bits": (32, 2)}]:
        assert not Method.of(**options).plain_step
    assert not Method.of(down_values=OwnExact()).plain_step
    assert not Method.of(server=type("OwnSGD", (SGD,), {})()).plain_step


def test_checks_are_taken_away() -> None:
    """A driver checks once, where data comes in: looking for a NaN in all residuals would make a GPU wait."""
    method = Method.of(sparsifier=gradsift.sparsifier("fab-top-k"), controller=FIXED)
    assert type(method.sparsifier) is FabTopK
    assert type(method.controller) is Fixed
    direct = Method(OneGradient(), gradsift.sparsifier("fab-top-k"), Exact(), FIXED, Money(1, 1), Constant(1))
    assert (type(direct.sparsifier), type(direct.controller)) == (FabTopK, Fixed)
    replaced = dataclasses.replace(method, sparsifier=gradsift.sparsifier("fub-top-k"))
    assert replaced.sparsifier is bare_sparsifier(replaced.sparsifier)
    assert replaced.controller is bare_controller(replaced.controller)


@pytest.mark.parametrize("sparsifier", ALL)
def test_local_is_by_default_what_goes_with_the_sparsifier(sparsifier: str) -> None:
    method = Method.of(sparsifier=sparsifier, controller=FIXED)
    assert method.local == (PeriodicAveraging() if sparsifier == "fedavg" else OneGradient())


@pytest.mark.parametrize(("sparsifier", "local"), [*itertools.product(ALL, LOCAL)])
def test_a_local_computation_with_a_period_needs_whole_vectors(sparsifier: str, local: str) -> None:
    computation = gradsift.local_computation(local, **LOCAL[local].options)
    if local == "periodic-averaging" and sparsifier in SPARSE:
        message = (
            f"'periodic-averaging' needs a dense sparsifier, '{sparsifier}' is not; 'local-steps' works with every"
        )
        with pytest.raises(GradsiftError, match=message):
            Method.of(sparsifier=sparsifier, controller=FIXED, local=computation)
    else:
        assert Method.of(sparsifier=sparsifier, controller=FIXED, local=computation).local == computation


def test_a_period_of_an_extender_is_a_period_too() -> None:
    class Seldom(LocalComputation):
        """An exchange every third round."""

        name = "seldom"

        def period(self, dim: int, k: int) -> int:
            del dim, k
            return 3

        def accumulate(self, residual: Tensor, weights: Tensor, lr: float, add_gradients: AddGradients) -> None:
            add_gradients(residual, weights - lr * residual, 0)

    with pytest.raises(GradsiftError, match="'seldom' needs a dense sparsifier, 'fub-top-k' is not"):
        Method.of(sparsifier="fub-top-k", controller=FIXED, local=Seldom())
    method = Method.of(sparsifier="send-all", controller=FIXED, local=Seldom())
    server = round.start(method, torch.zeros(4))
    due = [round.plan(method, dataclasses.replace(server, number=number)).exchange for number in range(6)]
    assert due == [False, False, True, False, False, True]


@pytest.mark.parametrize(("sparsifier", "controller"), [*itertools.product(ALL, CONTROLLERS)])
def test_a_dense_sparsifier_takes_a_fixed_k_only(sparsifier: str, controller: str) -> None:
    chosen = gradsift.controller(
        controller, **{**CONTROLLERS[controller].options, **({"k": 3} if controller == "fixed" else {})}
    )
    if sparsifier in DENSE and controller != "fixed":
        with pytest.raises(GradsiftError, match=f"'{sparsifier}' is dense.*'{controller}' varies it"):
            Method.of(sparsifier=sparsifier, controller=chosen)
    else:
        assert Method.of(sparsifier=sparsifier, controller=chosen).controller == bare_controller(chosen)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sparsifier": 3}, "sparsifier must be a Sparsifier, got 3"),
        ({"sparsifier": None}, "sparsifier must be a Sparsifier, got None"),
        ({"sparsifier": FabTopK}, "sparsifier must be a Sparsifier, got <class"),
        ({"sparsifier": "fab-topk"}, "unknown sparsifier 'fab-topk'; did you mean 'fab-top-k'"),
        ({"controller": FabTopK()}, "controller must be a Controller, got FabTopK()"),
        ({"controller": 100}, "controller must be a Controller, got 100"),
        ({"controller": "sing"}, "unknown controller 'sing'; did you mean 'sign'"),
        ({"controller": "fixed"}, "controller 'fixed' needs the option k"),
        ({"local": 4}, "local must be a LocalComputation, got 4"),
        ({"local": "local-step"}, "unknown local computation 'local-step'; did you mean 'local-steps'"),
        ({"values": "int9"}, "unknown value type 'int9'; did you mean 'int8'"),
        ({"values": torch.float16}, "values must be a ValueType, got torch.float16"),
        ({"values": None}, "values must be a ValueType, got None"),
        ({"down_values": "int9"}, "unknown value type 'int9'; did you mean 'int8'"),
        ({"down_values": None}, "down_values must be a ValueType, got None"),
        ({"server": "sdg"}, "unknown server optimizer 'sdg'; did you mean 'sgd'"),
        ({"server": 0.9}, "server must be a ServerOptimizer, got 0.9"),
        ({"server": None}, "server must be a ServerOptimizer, got None"),
        ({"server": Momentum}, "server must be a ServerOptimizer, got <class"),
        ({"local_steps": 0}, "steps must be at least 1, got 0"),
        ({"local_steps": 2.0}, "steps must be an integer, got 2.0"),
        ({"local_steps": True}, "steps must be an integer, got True"),
        ({"local_steps": 4, "local": "one-gradient"}, "give either local_steps, 4, or local, 'one-gradient'"),
        ({"local_steps": 4, "local": LocalSteps(4)}, "give either local_steps, 4, or local, LocalSteps(steps=4"),
        ({"bits": 0}, "bits must be 1 to 8, or 32 for exact values, up and down, got 0"),
        ({"bits": 9}, "got 9"),
        ({"bits": 16}, "got 16"),
        ({"bits": 2.0}, "got 2.0"),
        ({"bits": True}, "got True"),
        ({"bits": "2"}, "got '2'"),
        ({"bits": (2, 0)}, "got (2, 0)"),
        ({"bits": (2,)}, "got (2,)"),
        ({"bits": (2, 4, 8)}, "got (2, 4, 8)"),
        ({"bits": ()}, "got ()"),
        ({"bits": (2, None)}, "got (2, None)"),
        ({"bits": 2, "values": "int8"}, "give either bits, 2, or values and down_values"),
        ({"bits": (2, 4), "down_values": FewBits(4)}, "give either bits, (2, 4), or values and down_values"),
        ({"cost": "link"}, "unknown cost 'link'; did you mean 'link-time'"),
        ({"cost": "money"}, "cost 'money' needs the options up, down"),
        ({"cost": 10.0}, "cost must be a CostModel, got 10.0"),
        ({"cost": [1]}, "cost must be a CostModel, got [1]"),
        ({"lr": "0.1"}, "lr must be a number or a function of the round, got '0.1'"),
        ({"lr": None}, "lr must be a number or a function of the round, got None"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"lr": -1}, "lr must be positive, got -1"),
        ({"lr": math.nan}, "lr must be a finite number, got nan"),
        ({"seed": -1}, "seed must be in [0, 18446744073709551615], got -1"),
        ({"seed": 2**64}, f"got {2**64}"),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
        ({"seed": True}, "seed must be an integer, got True"),
        ({"charge_probe": 1}, "charge_probe must be True or False, got 1"),
        ({"dense_fallback": None}, "dense_fallback must be True or False, got None"),
        ({"encoded_bytes": "yes"}, "encoded_bytes must be True or False, got 'yes'"),
    ],
)
def test_what_is_wrong_is_refused_by_its_value(options: dict[str, Any], named: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(named)):
        Method.of(**options)


def test_a_long_value_is_cut_short() -> None:
    with pytest.raises(GradsiftError) as caught:
        Method.of(cost=list(range(10_000)))  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="momentum"):
        Method.of(momentum=0.9)


def test_numbers_of_numpy_are_taken_as_what_they_are() -> None:
    numbers: dict[str, Any] = {"seed": np.int64(7), "lr": np.float32(0.5)}
    method = Method.of(**numbers)
    assert (type(method.seed), method.seed) == (int, 7)
    assert method.lr == Constant(0.5)
    json.dumps(method.describe())


def test_a_method_cannot_be_changed_and_its_copies_are_equal() -> None:
    method = Method.of(sparsifier="periodic-k", controller=FIXED, values="int8", local=LocalSteps(2), seed=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.seed = 4  # type: ignore[misc]
    for other in (copy.copy(method), copy.deepcopy(method), pickle.loads(pickle.dumps(method))):
        assert other == method
    assert dataclasses.replace(method, seed=4) != method
    with pytest.raises(GradsiftError, match="'fedavg' is dense"):
        dataclasses.replace(Method.of(), sparsifier=FedAvg())


def third(number: int) -> float:
    return 1 / number


METHODS: dict[str, dict[str, Any]] = {
    **{f"sparsifier {name}": {"sparsifier": name, "controller": FIXED} for name in ALL},
    **{
        f"controller {name}": {"controller": gradsift.controller(name, **row.options)}
        for name, row in CONTROLLERS.items()
    },
    **{f"values {name}": {"values": name} for name in VALUES},
    **{f"down_values {name}": {"down_values": name} for name in VALUES if name != "exact"},
    **{
        f"server {name} {row.options}": {"server": gradsift.server_optimizer(name, **row.options)}
        for name, rows in SERVERS.items()
        for row in rows
        if (name, row.options) != ("sgd", {})
    },
    "local momentum": {"local": LocalSteps(3, momentum=0.9)},
    "bits": {"bits": (2, 4)},
    "local-steps": {"local": LocalSteps(3)},
    "link": {"cost": LinkTime(up_bandwidth=[1.0, 2.0], down_bandwidth=np.array([3.0, 4.0]), latency=0.1)},  # type: ignore[arg-type]
    "sum": {"cost": WeightedSum((0.5, Energy(1, 2)), (2.0, Money(1, 1, compute=(1, 2))))},
    "cosine": {"lr": Cosine(0.1, rounds=10)},
    "decay": {"lr": StepDecay(0.1, factor=0.5, every=3)},
    "a function": {"lr": third},
    "a lambda": {"lr": lambda number: 1 / number},
}


@pytest.mark.parametrize("name", METHODS)
def test_a_description_is_json_and_the_same_again(name: str) -> None:
    method = Method.of(**METHODS[name])
    described = method.describe()
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    assert Method.of(**METHODS[name]).describe() == described
    assert set(described) == {*SLOTS, "lr"}
    for slot in set(SLOTS) - {"cost"}:
        assert described[slot]["name"] == getattr(method, slot).name
    assert "0x" not in json.dumps(described)


def test_methods_that_differ_are_described_differently() -> None:
    described = [json.dumps(Method.of(**options).describe(), sort_keys=True) for options in METHODS.values()]
    assert len(set(described)) == len(described)


def test_descriptions_by_hand() -> None:
    method = Method.of(
        sparsifier="fub-top-k",
        controller=gradsift.controller("replay", sequence=[3, 4.5]),
        local=LocalSteps(2),
        cost=WeightedSum(
            (0.5, NormalizedTime(comm_time=2)),
        ),
        lr=third,
    )
    assert method.describe() == {
        "local": {
            "name": "local-steps",
            "steps": 2,
            "rate": 1.0,
            "momentum": 0.0,
            "weight_decay": 0.0,
            "residual_decay": 1.0,
        },
        "sparsifier": {"name": "fub-top-k"},
        "values": {"name": "exact"},
        "down_values": {"name": "exact"},
        "server": {"name": "sgd", "rate": 1.0},
        "controller": {"name": "replay", "sequence": [3, 4.5]},
        "cost": {
            "class": "WeightedSum",
            "terms": [[0.5, {"class": "NormalizedTime", "comm_time": 2, "comp_time": 1.0}]],
        },
        "lr": {"class": "function", "text": "tests.method.test_method.third"},
    }


def test_a_part_that_is_no_dataclass_is_described_by_its_text() -> None:
    @dataclass(frozen=True)
    class Own(Fixed):
        """With an option of its own that JSON does not have."""

        spread: float = math.inf

    class Plain(TopKUpload):
        """No dataclass."""

        merge = FabTopK.merge

    described = Method.of(sparsifier=Plain(), controller=Own(3)).describe()
    assert described["controller"]["name"] == f"{__name__}:{Own.__qualname__}"  # not "fixed", which it inherits
    assert described["sparsifier"]["name"] == f"{__name__}:{Plain.__qualname__}"
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    assert described["controller"]["spread"] == "inf"
    assert "Plain" in described["sparsifier"]["text"]
    assert "0x" not in described["sparsifier"]["text"]
