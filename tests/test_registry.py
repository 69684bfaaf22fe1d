"""Registered names build objects, and an error about a wrong name or option suggests the nearest valid one."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from gradsift import GradsiftError, local, sparsify, values
from gradsift.registry import Registry, nearest


@dataclass
class Tea:
    leaves: str
    minutes: float = 3.0
    name = ""


class Water:
    """Without options, and without an ``__init__``."""


def fresh() -> Registry[Any]:
    registry: Registry[Any] = Registry("drink", object)
    registry.register("water")(Water)
    registry.register("tea")(Tea)
    return registry


def refused(message: str) -> Any:
    return pytest.raises(GradsiftError, match=re.escape(message))


def test_register_returns_the_class_and_names_it() -> None:
    registry: Registry[Any] = Registry("drink", object)

    @registry.register("cocoa")
    class Cocoa:
        name = ""

    assert Cocoa.name == "cocoa"
    assert registry.names() == ["cocoa"]
    assert type(registry.make("cocoa")) is Cocoa


def test_names_are_sorted_and_each_makes_a_new_object() -> None:
    registry = fresh()
    assert registry.names() == ["tea", "water"]
    assert registry.make("tea", leaves="black", minutes=4) == Tea("black", 4)
    assert registry.make("tea", leaves="green") == Tea("green", 3.0)
    assert registry.make("water") is not registry.make("water")


def test_registries_do_not_share_their_names() -> None:
    assert Registry[Any]("food", object).names() == []
    assert gradsift.sparsifiers() != gradsift.controllers()


def test_a_name_cannot_be_taken_twice() -> None:
    registry = fresh()
    with refused("a drink named 'tea' is registered already"):
        registry.register("tea")(Water)
    assert isinstance(registry.make("tea", leaves="x"), Tea)
    assert Water.name == "water"  # type: ignore[attr-defined]


def test_a_class_cannot_take_two_names() -> None:
    registry = fresh()
    with refused("is registered already, as drink 'tea'"):
        registry.register("chai")(Tea)
    assert Tea.name == "tea"
    assert registry.names() == ["tea", "water"]


def test_a_missing_option_is_named() -> None:
    with refused("drink 'tea' needs the option leaves"):
        fresh().make("tea", minutes=1)


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with refused("drink 'tea' has no option 'minute'; did you mean 'minutes'? valid: leaves, minutes"):
        fresh().make("tea", leaves="x", minute=1)
    with refused("drink 'tea' has no option 'sugar'; valid: leaves, minutes"):
        fresh().make("tea", leaves="x", sugar=1)
    with refused("drink 'water' has no option 'ice'; valid: none"):
        fresh().make("water", ice=1)


@pytest.mark.parametrize("wrong", ["tee", "te", "teas"])
def test_an_unknown_name_is_answered_with_the_nearest(wrong: str) -> None:
    with refused(f"unknown drink {wrong!r}; did you mean 'tea'? valid: tea, water"):
        fresh().make(wrong)


@pytest.mark.parametrize("wrong", ["", "zzz", None, 3])
def test_a_name_near_to_none_is_answered_with_all(wrong: Any) -> None:
    with refused(f"unknown drink {wrong!r}; valid: tea, water"):
        fresh().make(wrong)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("fab-topk", "fab-top-k"),
        ("FAB-top-k", "fab-top-k"),
        ("FUB-top-k", "fub-top-k"),
        ("fub_top_k", "fub-top-k"),
        ("unidirectional", "unidirectional-top-k"),
        ("periodic", "periodic-k"),
        ("FedAvg", "fedavg"),
        ("send_all", "send-all"),
    ],
)
def test_a_misspelt_sparsifier_is_answered_with_the_right_one(wrong: str, right: str) -> None:
    with refused(f"unknown sparsifier {wrong!r}; did you mean {right!r}? valid: ") as caught:
        gradsift.sparsifier(wrong)
    assert all(name in str(caught.value) for name in gradsift.sparsifiers())


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("fix", "fixed"),
        ("reply", "replay"),
        ("signs", "sign"),
        ("extended_sign", "extended-sign"),
        ("values", "value"),
        ("exp-3", "exp3"),
        ("continuous_bandit", "continuous-bandit"),
    ],
)
def test_a_misspelt_controller_is_answered_with_the_right_one(wrong: str, right: str) -> None:
    with refused(f"unknown controller {wrong!r}; did you mean {right!r}?"):
        gradsift.controller(wrong)


@pytest.mark.parametrize(
    ("option", "right"), [("k_mim", "k_min"), ("kmax", "k_max"), ("aplha", "alpha"), ("windows", "window")]
)
def test_a_misspelt_option_is_answered_with_the_right_one(option: str, right: str) -> None:
    with refused(f"controller 'extended-sign' has no option {option!r}; did you mean {right!r}?"):
        gradsift.controller("extended-sign", **{option: 2})


@pytest.mark.parametrize("name", gradsift.sparsifiers())
def test_sparsifiers_take_no_option_that_they_do_not_know(name: str) -> None:
    with refused(f"sparsifier {name!r} has no option 'ratio'"):
        gradsift.sparsifier(name, ratio=0.1)


@given(valid=st.lists(st.text("abc-", min_size=1), min_size=1, unique=True), data=st.data())
def test_the_nearest_of_a_valid_name_is_itself(valid: list[str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(valid))
    assert nearest(name, valid) == f"; did you mean {name!r}? valid: {', '.join(valid)}"


def test_a_class_that_inherited_its_name_is_not_registered() -> None:
    registry = fresh()

    class Chai(Tea):
        """Called "tea", as its base is."""

    assert registry.registered(Tea("black"))
    assert registry.registered(Water())
    assert Chai.name == "tea"
    assert not registry.registered(Chai("black"))
    assert not registry.registered(object())
    registry.register("chai")(Chai)
    assert registry.registered(Chai("black"))
    assert registry.registered(Tea("black"))


def test_every_built_in_part_is_registered() -> None:
    assert all(sparsify.registered(sparsify.unchecked(gradsift.sparsifier(name))) for name in gradsift.sparsifiers())
    assert all(values.registered(gradsift.value_type(name)) for name in gradsift.value_types())
    assert local.registered(gradsift.LocalSteps(3))
    assert not sparsify.registered(gradsift.sparsifier("fab-top-k"))  # which is one behind checks
