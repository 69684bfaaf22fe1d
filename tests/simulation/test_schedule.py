"""Step-size schedules: what they say they are, for any numbers, and refusals that name the value."""

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsift import Constant, Cosine, GradsiftError, StepDecay

STEP = st.floats(1e-6, 10)
ROUND = st.integers(1, 10_000)


@given(lr=STEP, number=ROUND)
def test_constant_is_constant(lr: float, number: int) -> None:
    assert Constant(lr)(number) == lr


@given(lr=STEP, factor=st.floats(0, 1), every=st.integers(1, 500), number=ROUND)
def test_step_decay_multiplies_after_every_so_many_rounds(lr: float, factor: float, every: int, number: int) -> None:
    schedule = StepDecay(lr, factor=factor, every=every)
    assert schedule(1) == schedule(every) == lr
    assert schedule(every + 1) == lr * factor
    assert schedule(number + every) == pytest.approx(schedule(number) * factor, rel=1e-9, abs=1e-300)
    if (number - 1) // every == number // every:
        assert schedule(number + 1) == schedule(number)


@given(lr=STEP, rounds=st.integers(2, 1000), part=st.floats(0, 1), number=ROUND)
def test_cosine_falls_from_first_to_last(lr: float, rounds: int, part: float, number: int) -> None:
    last = part * lr
    schedule = Cosine(lr, rounds=rounds, last=last)
    assert schedule(1) == pytest.approx(lr, rel=1e-12)
    assert schedule(rounds) == pytest.approx(last, rel=1e-12, abs=1e-15)
    assert schedule(rounds + number) == schedule(rounds)
    assert schedule(number + 1) <= schedule(number) * (1 + 1e-12)
    assert last * (1 - 1e-12) <= schedule(number) <= lr * (1 + 1e-12)
    # Half the way is half the fall, from either end: what makes it a cosine and not a line is where it is steep.
    mirrored = schedule(rounds + 1 - min(number, rounds))
    assert schedule(min(number, rounds)) + mirrored == pytest.approx(lr + last, rel=1e-9)


def test_cosine_is_a_cosine() -> None:
    schedule = Cosine(2.0, rounds=101)
    assert schedule(26) == pytest.approx(1 + math.cos(math.pi / 4))
    assert schedule(51) == pytest.approx(1)
    assert schedule(76) == pytest.approx(1 - math.cos(math.pi / 4))


@pytest.mark.parametrize("schedule", [Constant(0.1), StepDecay(0.1, factor=0.5, every=3), Cosine(0.1, rounds=9)])
def test_a_schedule_can_be_written_down_and_made_again(schedule: Any) -> None:
    options = json.loads(json.dumps(dataclasses.asdict(schedule)))
    assert type(schedule)(**options) == schedule


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Constant(0.0), r"lr must be positive, got 0\.0"),
        (lambda: Constant(-1), "lr must be positive, got -1"),
        (lambda: Constant(math.nan), "lr must be a finite number, got nan"),
        (lambda: Constant("0.1"), "lr must be a finite number, got '0.1'"),  # type: ignore[arg-type]
        (lambda: StepDecay(0.1, factor=-0.5, every=3), r"factor must be in \[0.0, 1.0\], got -0\.5"),
        (lambda: StepDecay(0.1, factor=1.5, every=3), r"factor must be in \[0.0, 1.0\], got 1\.5"),
        (lambda: StepDecay(0.1, factor=0.5, every=0), r"every must be at least 1, got 0"),
        (lambda: StepDecay(math.inf, factor=0.5, every=1), "lr must be a finite number, got inf"),
        (lambda: Cosine(0.1, rounds=1), r"rounds must be at least 2, got 1"),
        (lambda: Cosine(0.1, rounds=5, last=0.2), r"last must be in \[0\.0, 0\.1\], got 0\.2"),
        (lambda: Cosine(0, rounds=5), "lr must be positive, got 0"),
    ],
)
def test_impossible_schedules_are_refused(make: Any, named: str) -> None:
    with pytest.raises(GradsiftError, match=named):
        make()
