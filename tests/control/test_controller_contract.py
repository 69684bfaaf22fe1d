"""What every controller must do. A new one is tested by adding a line to the table in table.py."""

import copy
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from gradsift import Controller, GradsiftError, Observation, Proposal, round_k
from gradsift.control.checked import CheckedController
from tests.control.harness import Training, drive, one
from tests.control.table import ROUNDS, TABLE, Row

TRAINING = Training()  # dim 10,000, k* = 1000


SEEN = " without prices"  # of a controller that plans: costs are only seen
every = pytest.mark.parametrize("name", [*TABLE, f"planned{SEEN}"])
timing = pytest.mark.parametrize("late", [0, 1], ids=["on time", "one round late"])


def row_of(name: str) -> Row:
    return TABLE[name.removesuffix(SEEN)]


def make(name: str) -> Controller[Any]:
    return gradsift.controller(name.removesuffix(SEEN), **row_of(name).options)


def start(name: str, seed: int = 9) -> tuple[Controller[Any], Any]:
    controller = make(name)
    state = controller.init(dim=TRAINING.dim, seed=seed)
    return controller, state if name.endswith(SEEN) else controller.priced(state, TRAINING.prices)


def subclasses(of: type[Any]) -> Iterator[type[Any]]:
    for cls in of.__subclasses__():
        yield cls
        yield from subclasses(cls)


def test_no_controller_is_missing() -> None:
    ours = {cls for cls in subclasses(Controller) if cls.__module__.startswith("gradsift.control.")}
    ours.discard(CheckedController)  # which is another one behind checks
    assert {getattr(cls, "name", "") for cls in ours} == set(TABLE), "every controller needs its line in TABLE"
    assert set(TABLE) <= set(gradsift.controllers())


@every
def test_carries_its_name(name: str) -> None:
    assert make(name).name == name.removesuffix(SEEN)


@every
@timing
def test_stays_in_range(name: str, late: int) -> None:
    row, (controller, state) = row_of(name), start(name)
    proposals, _ = drive(controller, state, TRAINING.observe, ROUNDS, late)
    assert [p.number for p in proposals] == list(range(1, ROUNDS + 1))
    assert controller.largest_k(TRAINING.dim) == row.high
    for p in proposals:
        assert row.low <= one(p.k) <= row.high
        assert (p.probe_k is not None) == controller.probes
        if p.probe_k is not None:
            assert 1 <= one(p.probe_k) < one(p.k)
    assert len({p.k for p in proposals}) == 1 or controller.varies


@every
@timing
@pytest.mark.parametrize("seed", range(3))
def test_stays_in_range_whatever_it_sees(name: str, late: int, seed: int) -> None:
    """Losses that rise, do not move or are missing, free rounds, and sizes from one end of the floats to the other.

    Nothing waits, or all but a little; clients agree, or are opposed.
    """
    row, (controller, state) = row_of(name), start(name)
    draw = np.random.default_rng(seed)

    def observe(p: Proposal) -> Observation:
        if draw.random() < 0.1:
            return Observation(p, cost=1.0)
        size = 10.0 ** draw.choice([-320, -300, -5, 0, 0, 0, 5, 300, 308])
        before, after, probe = (float(size * draw.choice([-1.0, 0.0, 0.5, 1.0])) for _ in range(3))
        cost, probe_cost = (float(draw.choice([0.0, 1e-300, 1.0, 2.0, 1e300])) for _ in range(2))
        if not controller.probes:
            weighed = {"waiting": abs(before), "agreement": after} if draw.random() < 0.9 else {}
            used_k, part = round_k(one(p.k), seed, p.number), float(draw.choice([0.01, 1.0]))
            return Observation(p, cost, None, before, after, used_k=used_k, took_part=part).seen(weighed)
        return Observation(p, cost, probe_cost, before, after, probe)

    proposals, state = drive(controller, state, observe, ROUNDS, late)
    json.dumps(state, allow_nan=False)
    for p in proposals:
        assert row.low <= one(p.k) <= row.high
        assert p.probe_k is None or 1 <= one(p.probe_k) < one(p.k)


@every
@timing
def test_resumes_exactly_from_json_at_every_round(name: str, late: int) -> None:
    controller, state = start(name)
    proposals, end = drive(controller, state, TRAINING.observe, ROUNDS, late)

    waiting: list[Observation] = []
    for p in proposals:
        controller, state = make(name), json.loads(json.dumps(state, allow_nan=False))
        assert controller.propose(state, p.number) == p
        waiting.append(TRAINING.observe(p))
        if len(waiting) > late:
            state = controller.update(state, waiting.pop(0))
    assert state == end


@every
def test_nothing_passed_in_is_changed(name: str) -> None:
    controller, state = start(name)
    for number in range(1, ROUNDS):
        before = copy.deepcopy(state)
        proposal = controller.propose(state, number)
        assert state == before
        seen = TRAINING.observe(proposal)
        kept = copy.deepcopy(seen)
        after = controller.update(state, seen)
        assert state == before
        assert seen == kept
        assert controller.update(state, seen) == after
        state = after


@every
def test_proposing_is_a_pure_function(name: str) -> None:
    controller, state = start(name)
    _, state = drive(controller, state, TRAINING.observe, 20)
    ahead = [controller.propose(state, number) for number in range(21, 60)]
    assert ahead[::-1] == [make(name).propose(copy.deepcopy(state), number) for number in range(59, 20, -1)]


@every
def test_one_seed_one_run(name: str) -> None:
    controller, state = start(name)
    _, again = start(name)
    assert state == again
    run, _ = drive(controller, state, TRAINING.observe, ROUNDS)
    assert run == drive(controller, again, TRAINING.observe, ROUNDS)[0]
    other, _ = drive(*start(name, seed=10), TRAINING.observe, ROUNDS)
    assert ([p.k for p in run] != [p.k for p in other]) == (name in ("exp3", "continuous-bandit"))


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.finds])
@timing
@pytest.mark.parametrize("rounding", [True, False])
def test_ends_near_the_best_k(name: str, late: int, rounding: bool) -> None:
    controller, state = start(name)
    proposals, _ = drive(controller, state, Training(rounding=rounding).observe, 4000, late)
    assert np.mean([p.k for p in proposals[-500:]]) == pytest.approx(TRAINING.best, rel=0.1)
    assert proposals[0].k == (20 + 9000) / 2


@every
def test_a_round_of_which_nobody_reports_teaches_nothing(name: str) -> None:
    controller, state = start(name)
    _, state = drive(controller, state, TRAINING.observe, 20)
    after = controller.update(state, Observation(controller.propose(state, 21), cost=3.0))
    assert controller.propose(after, 22) == controller.propose(state, 22)
    # Rounds count, whoever reports.
    assert after == (state | {"rounds": state["rounds"] + 1} if controller.plans else state)


BAD = [math.nan, math.inf, -math.inf, "3", True, 10**400]


@every
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("cost", value) for value in [*BAD, -1.0, None]),
        *(("probe_cost", value) for value in [*BAD, -1.0]),
        *((loss, value) for loss in ("loss_before", "loss_after", "loss_probe") for value in BAD),
        *(("waiting", value) for value in [*BAD, -1.0]),
        *(("agreement", value) for value in BAD),
        *(("took_part", value) for value in [*BAD, -0.5, 1.5]),
        *((used, value) for used in ("used_k", "used_probe_k") for value in (0, -4, 2.5, "3", math.nan)),
    ],
)
def test_a_bad_observation_is_refused_by_value(name: str, field: str, value: Any) -> None:
    controller, state = start(name)
    _, state = drive(controller, state, TRAINING.observe, 20)
    before = copy.deepcopy(state)
    seen = TRAINING.observe(controller.propose(state, 21))._replace(**{field: value})
    with pytest.raises(GradsiftError, match=f"{field} must be .*, got {value!r}"):
        controller.update(state, seen)
    assert state == before


@every
@pytest.mark.parametrize("dim", [0, -1, 1.5, math.nan, math.inf, "100", None, True])
def test_a_bad_dim_is_refused_by_value(name: str, dim: Any) -> None:
    with pytest.raises(GradsiftError, match=f"dim must be .*, got {dim!r}"):
        make(name).init(dim=dim)


@every
@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, math.nan, "0", None])
def test_a_bad_seed_is_refused_by_value(name: str, seed: Any) -> None:
    with pytest.raises(GradsiftError, match=f"seed must be .*, got {seed!r}"):
        make(name).init(dim=TRAINING.dim, seed=seed)


@every
def test_numpy_numbers_leave_a_state_that_json_takes(name: str) -> None:
    controller, state = start(name)

    def observe(p: Proposal) -> Observation:
        seen = TRAINING.observe(p)
        numbers: dict[str, Any] = {
            field: np.float32(value) for field, value in seen._asdict().items() if isinstance(value, float)
        }
        return seen._replace(**numbers)

    _, state = drive(controller, state, observe, 20)
    assert json.loads(json.dumps(state)) == state


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
KS = st.one_of(st.floats(1, 1e9), st.lists(st.floats(1, 1e9), min_size=1, max_size=4).map(tuple))


@given(
    proposal=st.builds(
        Proposal, st.integers(1, 10**6), KS, st.none() | KS, st.dictionaries(st.sampled_from("abc"), NUMBERS)
    ),
    losses=st.none() | st.tuples(NUMBERS, NUMBERS, st.none() | NUMBERS),
    used=st.none() | st.tuples(st.integers(2, 10**6), st.integers(1, 10**6)),
    weighed=st.none() | st.tuples(st.floats(0, 1), st.floats(0, 1e9), NUMBERS),
)
def test_an_observation_survives_json(
    proposal: Proposal,
    losses: tuple[float, float, float | None] | None,
    used: tuple[int, int] | None,
    weighed: tuple[float, float, float] | None,
) -> None:
    """Also of clients that have k of their own: a checkpoint keeps what is still to be answered."""
    seen = Observation(proposal, 1.5, 0.5, *(losses or (None, None, None)), *(used or (None, None)), *(weighed or ()))
    back = Observation.from_json(json.loads(json.dumps(seen.as_json(), allow_nan=False)))
    assert back == seen
    assert type(back.proposal) is Proposal
    assert type(back.proposal.k) is type(proposal.k)
