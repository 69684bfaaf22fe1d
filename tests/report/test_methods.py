"""Which runs are seeds of one method, and the labels of the methods."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsift.report import Run, load_run
from gradsift.report.methods import differing, flatten, group
from tests.report.folders import config, records, write

EXTENDED = {"name": "extended-sign", "alpha": 1.5, "window": 20}


def run(place: Path, rounds: int = 3, **about: Any) -> Run:
    """A run with this configuration, in a folder of its own."""
    folder = place / f"run{len(list(place.iterdir()))}"
    dense = about.get("sparsifier") == "send-all"
    return load_run(write(folder, config(**about), records(rounds, dense=dense)))


def labels(*runs: Run) -> list[str]:
    return [method.label for method in group(runs)[0]]


def test_seeds_make_one_method(tmp_path: Path) -> None:
    runs = [run(tmp_path, seed=seed, controller=c) for seed in (2, 0, 1) for c in (EXTENDED, None)]
    methods, notes = group(runs)
    assert [[r.seed for r in method.runs] for method in methods] == [[0, 1, 2], [0, 1, 2]]
    assert [method.label for method in methods] == ["fab-top-k, extended-sign", "fab-top-k, k = 50"]
    assert notes == []


@pytest.mark.parametrize(
    "free",
    [
        {"stop": {"rounds": 99}},
        {"versions": {"torch": "2.11"}},
        {"start": None},
        {"command": {"rounds": 3, "data": "x"}},
        {"run": "another"},
        {"partition": {"seed": 7}},
        {"data": {"name": "blobs", "clients": 6, "samples": 600, "test_samples": 100, "checksum": "another"}},
        {"settings": {"batch_size": 16, "seed": 1, "charge_probe": False, "eval_every": 5, "eval_batch": 9}},
    ],
)
def test_what_may_differ_between_seeds(tmp_path: Path, free: dict[str, Any]) -> None:
    # The sections that are compared must all be there in both, or their absence would be the difference.
    base: dict[str, Any] = {"partition": {"seed": 6}}
    base["settings"] = {"batch_size": 16, "seed": 0, "charge_probe": False, "eval_every": 5, "eval_batch": 8}
    other = {**base, "settings": {**base["settings"], "seed": 1}, **free}
    assert len(group([run(tmp_path, **base), run(tmp_path, **other)])[0]) == 1


@pytest.mark.parametrize(
    ("other", "label"),
    [
        ({"controller": {"name": "fixed", "k": 60.0}}, "fab-top-k, k = 60"),
        ({"controller": EXTENDED}, "fab-top-k, extended-sign"),
        ({"sparsifier": "fub-top-k"}, "fub-top-k, k = 50"),
        ({"sparsifier": "send-all"}, "send-all"),
        ({"cost": {"class": "NormalizedTime", "comm_time": 1.0, "comp_time": 1.0}}, "fab-top-k, k = 50, comm_time 1"),
        ({"cost": {"class": "Energy", "up": 2.0}}, "fab-top-k, k = 50, Energy(up 2)"),
        ({"lr": {"class": "Constant", "lr": 0.2}}, "fab-top-k, k = 50, lr 0.2"),
        ({"device": "cuda"}, "fab-top-k, k = 50, device cuda"),
        ({"model": {"class": "m", "dim": 1001, "text": "t"}}, "fab-top-k, k = 50, class m, dim 1001"),
    ],
)
def test_what_makes_another_method(tmp_path: Path, other: dict[str, Any], label: str) -> None:
    methods, _ = group([run(tmp_path), run(tmp_path, seed=1, **other)])
    assert len(methods) == 2
    assert methods[1].label == label
    assert methods[0].label != label


def test_one_seed_on_several_data_sets_is_several_methods(tmp_path: Path) -> None:
    data = [{"name": "blobs", "clients": 6, "checksum": c} for c in "abab"]
    methods, notes = group([run(tmp_path, seed=i // 2, data=d) for i, d in enumerate(data)])
    assert [[r.config["data"]["checksum"] for r in m.runs] for m in methods] == [["a", "a"], ["b", "b"]]
    assert [m.label for m in methods] == ["fab-top-k, k = 50, checksum a", "fab-top-k, k = 50, checksum b"]
    assert notes == []


def test_a_seed_counts_once(tmp_path: Path) -> None:
    runs = [run(tmp_path, rounds) for rounds in (3, 7, 5)]
    (method,), notes = group(runs)
    assert [r.rounds for r in method.runs] == [7]
    assert len(notes) == 2
    assert str(runs[0].path) in notes[0]
    assert str(runs[2].path) in notes[1]


def test_methods_that_nothing_tells_apart_are_numbered(tmp_path: Path) -> None:
    # The same model text up to what a label has room for.
    models = [{"class": "m", "dim": 1000, "text": "x" * 50 + end} for end in "abc"]
    found = labels(*(run(tmp_path, model=m) for m in models))
    assert len(set(found)) == 3


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fab-top-k", "fub-top-k", "send-all"]),
            st.sampled_from([None, EXTENDED, {**EXTENDED, "alpha": 2.0}, {"name": "fixed", "k": 2}]),
            st.sampled_from([1.0, 10.0]),
            st.sampled_from([0.1, 0.2]),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=12,
        unique_by=str,
    )
)
def test_every_run_is_in_one_method_of_its_own_kind(tmp_path_factory: Any, runs: list[Any]) -> None:
    place = tmp_path_factory.mktemp("runs")
    loaded = []
    for sparsifier, controller, comm_time, lr, seed in runs:
        cost = {"class": "NormalizedTime", "comm_time": comm_time}
        about = {"sparsifier": sparsifier, "controller": controller, "cost": cost, "lr": {"class": "C", "lr": lr}}
        loaded.append(run(place, 1, seed=seed, **about))
    methods, notes = group(loaded)
    kinds = {str(made[:4]) for made in runs}
    assert len(methods) == len(kinds)
    assert sum(len(method.runs) for method in methods) == len(runs)
    assert len({method.label for method in methods}) == len(methods)
    assert notes == []
    first = [loaded.index(min(method.runs, key=loaded.index)) for method in methods]
    assert first == sorted(first)


def test_flatten_and_differing() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}
    assert differing([{"a": 1, "b": 2}, {"b": 2, "c": None}]) == ["a", "c"]
    assert differing([{"a": 1}]) == []
