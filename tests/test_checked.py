"""What is exported refuses bad input by value, before it computes anything, and agrees with the bare operations."""

import copy
import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradsift
from gradsift import GradsiftError, Sparse, control, sparse, sparsify
from gradsift.control import Observation, Proposal
from gradsift.registry import Registry


def message(indices: Any, values: Any, dim: int = 5) -> Sparse:
    return Sparse(torch.tensor(indices), torch.tensor(values), dim)


GOOD = message([1, 3], [2.0, -1.0])
ROWS = message([[0, 1], [1, 4]], [[1.0, 2.0], [3.0, 4.0]])
HALVES = torch.tensor([0.5, 0.5])
BAD_MESSAGES = [
    (message([7, 1], [1.0, 2.0]), "index 7, outside [0, 5)"),
    (message([-1, 1], [1.0, 2.0]), "index -1, outside [0, 5)"),
    (message([1, 1], [1.0, 2.0]), "index 1 twice"),
    (message([1, 2], [1.0, math.nan]), "must be finite, got nan"),
    (message([1, 2], [1.0, math.inf]), "must be finite, got inf"),
    (Sparse([1, 2], torch.ones(2), 5), "must be a tensor, got [1, 2]"),  # type: ignore[arg-type]
]
CALLS: dict[str, Callable[[Sparse], Any]] = {
    "densify": gradsift.densify,
    "difference, left": lambda bad: gradsift.difference(bad, GOOD),
    "difference, right": lambda bad: gradsift.difference(GOOD, bad),
    "stack": lambda bad: gradsift.stack([GOOD, bad]),
    "apply": lambda bad: gradsift.apply(torch.zeros(5), bad, 0.1),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("bad", "named"), BAD_MESSAGES, ids=[named for _, named in BAD_MESSAGES])
def test_bad_messages_are_refused(call: str, bad: Sparse, named: str) -> None:
    CALLS[call](GOOD)
    with pytest.raises(GradsiftError, match=re.escape(named)):
        CALLS[call](bad)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: gradsift.top_k(torch.tensor([1.0, math.nan, 3.0]), 1), "must be finite, got nan at [1]"),
        (lambda: gradsift.top_k(torch.ones(3), 4), "k must be in [1, 3], got 4"),
        (lambda: gradsift.top_k(torch.ones(3), 2.0), "k must be an integer, got 2.0"),  # type: ignore[arg-type]
        (lambda: gradsift.top_k([1.0, 2.0], 1), "must be a tensor, got [1.0, 2.0]"),  # type: ignore[arg-type]
        (lambda: gradsift.weighted_sum(ROWS, torch.tensor([1.0, 1.0])), "shares must sum to 1, got 2.0"),
        (lambda: gradsift.weighted_sum(ROWS, torch.tensor([-1.0, 2.0])), "must not be negative, got -1.0"),
        (lambda: gradsift.weighted_sum(ROWS, torch.tensor([math.nan, 1.0])), "share must be finite, got nan"),
        (lambda: gradsift.weighted_sum(ROWS, [0.5, 0.5]), "share must be a tensor, got [0.5, 0.5]"),  # type: ignore[arg-type]
        (lambda: gradsift.stack([]), "stack needs at least one upload"),
        (lambda: gradsift.apply(torch.zeros(5, dtype=torch.long), GOOD, 0.1), "weights must hold floating-point"),
        (lambda: gradsift.apply(torch.full((5,), math.nan), GOOD, 0.1), "weights must be finite, got nan"),
        (lambda: gradsift.sparsifier(["fab-top-k"]), "unknown sparsifier ['fab-top-k']"),  # type: ignore[arg-type]
        (lambda: gradsift.register_sparsifier("")(type("A", (), {})), "a sparsifier needs a name, got ''"),
        (lambda: gradsift.register_controller("mine")(type("A", (), {})), "must be a subclass of Controller"),
        (lambda: gradsift.round_k(2.5, 0, 0), "round number must be at least 1, got 0"),
    ],
)
def test_other_bad_input_is_refused(call: Callable[[], Any], named: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(named)):
        call()


def test_good_input_gives_what_the_bare_operations_give() -> None:
    dense = torch.tensor([[3.0, -1.0, 2.0], [0.0, 5.0, -5.0]])
    for mine, bare in (
        (gradsift.top_k(dense, 2), sparse.top_k(dense, 2)),
        (gradsift.weighted_sum(ROWS, HALVES), sparse.weighted_sum(ROWS, HALVES)),
        (gradsift.difference(GOOD, message([0], [1.0])), sparse.difference(GOOD, message([0], [1.0]))),
        (gradsift.stack([GOOD, GOOD]), sparse.stack([GOOD, GOOD])),
    ):
        assert torch.equal(mine.indices, bare.indices)
        assert torch.equal(mine.values, bare.values)
    assert torch.equal(gradsift.densify(GOOD), sparse.densify(GOOD))


@pytest.mark.parametrize("number", [0, -1, 1.5, None, True])
@pytest.mark.parametrize("name", gradsift.controllers())
def test_every_controller_refuses_a_round_that_is_none(name: str, number: Any) -> None:
    needed: dict[str, dict[str, Any]] = {"fixed": {"k": 3}, "replay": {"sequence": [3]}}
    options = needed.get(name, {})
    controller = gradsift.controller(name, **options)
    with pytest.raises(GradsiftError, match=re.escape(f"got {number!r}")):
        controller.propose(controller.init(dim=100), number)


@pytest.mark.parametrize(("name", "what"), [("exp3", "arm"), ("continuous-bandit", "direction")])
def test_a_bandit_refuses_an_answer_to_what_it_did_not_propose(name: str, what: str) -> None:
    controller = gradsift.controller(name)
    state = controller.init(dim=100)
    with pytest.raises(GradsiftError, match=f"no '{what}' in its memo"):
        controller.update(state, Observation(Proposal(1, 50.0), 1.0, loss_before=2.0, loss_after=1.0))
    with pytest.raises(GradsiftError, match="proposal must be a Proposal, got None"):
        controller.update(state, Observation(None, 1.0))  # type: ignore[arg-type]


def test_a_recorded_sequence_is_copied_and_checked_at_once() -> None:
    sequence = [3.0, 4.0]
    controller = gradsift.controller("replay", sequence=sequence)
    state = controller.init(dim=5)
    sequence[0] = 99.0
    assert controller.propose(state, 1).k == 3.0
    with pytest.raises(GradsiftError, match="k of round 2 must be a finite number, got nan"):
        gradsift.controller("replay", sequence=[3.0, math.nan])


@pytest.mark.parametrize(("low", "high"), [(2, 1000), (2, 40), (5, 6), (7, 7)])
def test_the_logarithmic_grid_of_exp3_has_no_k_twice(low: int, high: int) -> None:
    controller: Any = gradsift.controller("exp3", grid="log", k_min=low, k_max=high)
    state = controller.init(dim=1000)
    grid = [controller.k_of(state, arm) for arm in range(controller.count(state))]
    assert grid == sorted(set(grid))
    assert (grid[0], grid[-1]) == (low, high)


def test_options_of_any_name_reach_a_class_that_takes_them() -> None:
    registry: Registry[Any] = Registry("drink", object)

    @registry.register("tea")
    class Tea:
        def __init__(self, **options: Any) -> None:
            self.options = options

    assert registry.make("tea", sugar=2).options == {"sugar": 2}
    assert registry.make("tea").options == {}


CHECKED: dict[str, Callable[[], Any]] = {
    "fab-top-k": lambda: gradsift.sparsifier("fab-top-k"),
    "fedavg": lambda: gradsift.sparsifier("fedavg"),
    "fixed": lambda: gradsift.controller("fixed", k=3),
    "extended-sign": lambda: gradsift.controller("extended-sign", k_min=5, window=3),
}


@pytest.mark.parametrize("name", CHECKED)
def test_a_checked_object_is_otherwise_the_one_behind_the_checks(name: str) -> None:
    made, again = CHECKED[name](), CHECKED[name]()
    bare = made.inner
    assert (made.name, repr(made)) == (name, repr(bare))
    for cls in type(bare).__mro__:
        for attribute in vars(cls):
            if not attribute.startswith("_") and not callable(getattr(bare, attribute)):
                assert getattr(made, attribute) == getattr(bare, attribute)
    assert made == again
    assert hash(made) == hash(again)
    assert made != bare
    assert len({CHECKED[other]() for other in CHECKED}) == len(CHECKED)
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = made.colour


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))], ids=["copy", "deep", "pickle"]
)
def test_a_checked_object_can_be_copied_and_sent_to_another_process(name: str, copied: Callable[[Any], Any]) -> None:
    made = CHECKED[name]()
    other = copied(made)
    assert other == made
    assert other.name == name
    assert type(other.inner) is type(made.inner)


def test_unchecked_takes_the_checks_away_once_and_leaves_others_alone() -> None:
    for unchecked, name in ((sparsify.unchecked, "fab-top-k"), (control.unchecked, "fixed")):
        made = CHECKED[name]()
        bare: Any = unchecked(made)
        assert bare is made.inner
        assert unchecked(bare) is bare


def test_no_gradient_graph_grows_through_the_rounds() -> None:
    residual = torch.ones(2, 4, requires_grad=True) * 2
    sparsifier, rnd = gradsift.sparsifier("fab-top-k"), gradsift.Round(number=1, k=2)
    upload = sparsifier.upload(residual, rnd)
    merged = sparsifier.merge(upload, HALVES, rnd)
    assert not upload.values.requires_grad
    assert not sparsifier.settle(residual, upload, merged).requires_grad
