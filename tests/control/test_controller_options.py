"""Options that make no sense are refused by name and value: in the constructor where no dim could make them right."""

import math
import re
from typing import Any

import pytest

import gradsift
from gradsift import GradsiftError

SEARCHING = ["sign", "extended-sign", "value", "exp3", "continuous-bandit"]
PROBING = ["sign", "extended-sign", "value"]
NOT_NUMBERS = [math.nan, math.inf, -math.inf, "7", True, [3], 10**400]


def refused(message: str, name: str, **options: Any) -> None:
    with pytest.raises(GradsiftError, match=re.escape(message)):
        gradsift.controller(name, **options)


@pytest.mark.parametrize("name", SEARCHING)
@pytest.mark.parametrize("option", ["k_min", "k_max", "k_init"])
@pytest.mark.parametrize("value", [*NOT_NUMBERS, 0, 0.5, -3])
def test_ends_and_start_must_be_numbers_of_elements(name: str, option: str, value: Any) -> None:
    refused(f"got {value!r}", name, **{option: value})


@pytest.mark.parametrize("name", PROBING)
def test_a_probing_controller_needs_a_k_below_k_min(name: str) -> None:
    for k_min in (1, 1.5, 1.999):
        refused(f"k_min must be at least 2, got {k_min!r}", name, k_min=k_min)
    gradsift.controller(name, k_min=2).init(dim=2)


@pytest.mark.parametrize("name", SEARCHING)
def test_the_interval_must_exist(name: str) -> None:
    refused("k_min must not exceed k_max, got 11 > 10", name, k_min=11, k_max=10)
    for options, dim, message in (
        ({"k_max": 1_234_568}, 1_234_567, "k_max must be at most D = 1234567, got 1234568"),
        ({"k_min": 101}, 100, "k_min must be at most D = 100, got 101"),
        ({"k_max": 10}, 10_000, "k_min = 20.0, k_max = 10.0"),  # the default k_min, 0.002 dim
        ({}, 1, "k_min = 2.0, k_max = 1.0, dim = 1"),
    ):
        with pytest.raises(GradsiftError, match=re.escape(message)):
            gradsift.controller(name, **options).init(dim=dim)


@pytest.mark.parametrize("name", [name for name in SEARCHING if name != "exp3"])
def test_the_start_must_lie_in_the_interval(name: str) -> None:
    for k_init in (9.5, 90.5):
        with pytest.raises(GradsiftError, match=re.escape(f"k_init must be in [10.0, 90.0], got {k_init!r}")):
            gradsift.controller(name, k_min=10, k_max=90, k_init=k_init).init(dim=100)


def test_defaults_are_those_of_the_experiments() -> None:
    state = gradsift.controller("extended-sign").init(dim=444_062)
    assert (state["low"], state["high"], state["k"]) == pytest.approx((888.124, 444_062, (888.124 + 444_062) / 2))
    small = gradsift.controller("extended-sign").init(dim=100)
    assert (small["low"], small["high"]) == (2.0, 100.0)
    controller: Any = gradsift.controller("extended-sign")
    assert (controller.alpha, controller.window, controller.literal_window) == (1.5, 20, False)


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("fixed", "k", [*NOT_NUMBERS, 0, 0.5, -3, None]),
        ("extended-sign", "alpha", [*NOT_NUMBERS, 0.99, 0, -1, None]),
        ("extended-sign", "window", [*NOT_NUMBERS[:-1], 0, -1, 2.5, 20.0, None]),
        ("extended-sign", "literal_window", ["yes", 1, None]),
        ("value", "scale", [*NOT_NUMBERS, 0, -1, None]),
        ("exp3", "grid", ["linear", None, 3]),
        ("exp3", "arms", [*NOT_NUMBERS[:-1], 1, 0, 2.5, None]),
        ("exp3", "gamma", [*NOT_NUMBERS, 0, -0.1, 1.01]),
        ("exp3", "horizon", [*NOT_NUMBERS[:-1], 0, 2.5, None]),
        ("exp3", "bound", [*NOT_NUMBERS, 0, -1]),
        ("exp3", "k_init", [5]),
        ("continuous-bandit", "horizon", [*NOT_NUMBERS[:-1], 0, 2.5, None]),
        ("continuous-bandit", "bound", [*NOT_NUMBERS, 0, -1]),
    ],
)
def test_options_of_one_controller(name: str, option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(GradsiftError, match=rf"{option}.* {re.escape(repr(value))}"):
            gradsift.controller(name, **{option: value})


def test_a_fixed_k_must_fit_the_dimension() -> None:
    with pytest.raises(GradsiftError, match=re.escape("k must be in [1, 100], got 100.5")):
        gradsift.controller("fixed", k=100.5).init(dim=100)


@pytest.mark.parametrize("k", [*NOT_NUMBERS, 0, 0.5, 100.5, None])
def test_a_replayed_k_must_fit_the_dimension(k: Any) -> None:
    with pytest.raises(GradsiftError, match=rf"got {re.escape(repr(k))}") as refusal:
        gradsift.controller("replay", sequence=[3, 4, k, 5]).init(dim=100)
    assert "round 3" in str(refusal.value)


@pytest.mark.parametrize("sequence", [[], (), 7, None])
def test_a_replay_needs_a_sequence(sequence: Any) -> None:
    with pytest.raises(GradsiftError, match=re.escape(f"got {sequence!r}")):
        gradsift.controller("replay", sequence=sequence).init(dim=100)


def test_a_replay_plays_its_sequence_and_ends_with_it() -> None:
    controller = gradsift.controller("replay", sequence=(3, 4.5, 5))
    state = controller.init(dim=100)
    assert [controller.propose(state, number).k for number in (1, 2, 3)] == [3, 4.5, 5]
    with pytest.raises(GradsiftError, match="round 4 is outside the recorded sequence of 3 rounds"):
        controller.propose(state, 4)


def test_no_integer_between_the_ends_leaves_no_arm() -> None:
    with pytest.raises(GradsiftError, match=re.escape("no integer k in [3.2, 3.8]")):
        gradsift.controller("exp3", k_min=3.2, k_max=3.8).init(dim=100)
