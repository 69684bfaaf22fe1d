"""Run folders are loaded completely; a damaged one is refused by an error that names the file and the line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradsift import GradsiftError
from gradsift.report import find_runs, load_run
from tests.report.folders import config, records, write


def test_arrays_hold_what_the_records_say(tmp_path: Path) -> None:
    lines = records(12, seed=3, interval=True)
    run = load_run(write(tmp_path / "run", config(3), lines))
    assert run.rounds == 12
    assert run.seed == 3
    assert run.cost.tolist() == [line["cost"] for line in lines]
    assert run.k.tolist() == [line["k"] for line in lines]
    assert run.low.tolist() == [line["low"] for line in lines]
    assert run.high.tolist() == [line["high"] for line in lines]
    assert run.up[-1] == pytest.approx(sum(line["up_bytes"] for line in lines))
    assert run.down[4] == pytest.approx(sum(line["down_bytes"] for line in lines[:5]))
    assert run.contribution.tolist() == np.sum([line["contribution"] for line in lines], axis=0).tolist()
    assert run.evaluated.tolist() == [0, 5, 10, 12]
    assert run.evaluated_cost.tolist() == [0, lines[4]["cost"], lines[9]["cost"], lines[11]["cost"]]
    assert run.loss.tolist() == [2.3, *(lines[i]["global_loss"] for i in (4, 9, 11))]


def test_a_record_cut_short_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "run", config(), records(12))
    whole = (path / "records.jsonl").read_bytes()
    for cut in (1, 2, 30):
        (path / "records.jsonl").write_bytes(whole[:-cut])
        assert load_run(path).rounds == 11


def test_intervals_and_evaluations_may_be_missing(tmp_path: Path) -> None:
    run = load_run(write(tmp_path / "run", config(start=None), records(6, every=None)))
    assert np.isnan(run.low).all()
    assert len(run.evaluated) == 0
    run = load_run(write(tmp_path / "other", config(), records(6, accuracy=False)))
    assert np.isnan(run.accuracy[1:]).all()
    assert np.isfinite(run.loss).all()


@pytest.mark.parametrize(
    ("stop", "finished"),
    [
        ({"rounds": 40}, True),
        ({"rounds": 41}, False),
        ({"rounds": 41, "cost_budget": 80.0}, True),
        ({"rounds": 41, "cost_budget": 80.1}, False),
        ({"rounds": 41, "target_loss": 0.5}, True),
        ({"rounds": 41, "target_loss": 0.1}, False),
        ({"rounds": 41, "target_accuracy": 0.7}, True),
        ({"rounds": 41, "target_accuracy": 0.99}, False),
    ],
)
def test_finished(tmp_path: Path, stop: dict[str, Any], finished: bool) -> None:
    run = load_run(write(tmp_path / "run", config(stop=stop), records(40)))
    assert run.cost[-1] == pytest.approx(80)
    assert run.finished is finished


def change(line: int, **values: Any) -> Callable[[list[dict[str, Any]]], None]:
    def apply(lines: list[dict[str, Any]]) -> None:
        lines[line].update(values)

    return apply


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (change(3, cost=None), "line 4: cost is None"),
        (change(3, cost="a"), "line 4: cost is 'a'"),
        (change(3, cost=0.5), "line 4: cost is 0.5, less than"),
        (change(3, cost=float("nan")), "line 4: cost is nan"),
        (change(3, global_loss=float("inf")), "line 4: global_loss is inf"),
        (change(3, round=9), "line 4: round is 9, expected 4"),
        (change(3, contribution=[1, 2]), "line 4: contribution is not a list of at least 6 numbers"),
        (change(3, contribution=None), "line 4: contribution is not a list of at least 6 numbers"),
        (lambda lines: lines.pop(3), "line 4: round is 5, expected 4"),
        (lambda lines: lines[3].pop("up_bytes"), "line 4: up_bytes is None"),
        (lambda lines: lines.clear(), "has no finished round yet"),
    ],
)
def test_wrong_records_are_refused(tmp_path: Path, damage: Callable[[Any], Any], said: str) -> None:
    lines = records(12)
    damage(lines)
    path = write(tmp_path / "run", config(), lines)
    with pytest.raises(GradsiftError, match=said) as caught:
        load_run(path)
    assert str(path) in str(caught.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "run", config(), records(3))
    whole = (path / "records.jsonl").read_text()
    (path / "records.jsonl").write_text(whole.replace('"round": 2', '"round" 2'))
    with pytest.raises(GradsiftError, match="line 2"):
        load_run(path)
    (path / "records.jsonl").unlink()
    with pytest.raises(GradsiftError, match=r"records\.jsonl"):
        load_run(path)
    (path / "config.json").write_text("{")
    with pytest.raises(GradsiftError, match=r"config\.json"):
        load_run(path)
    with pytest.raises(GradsiftError, match="not a run folder"):
        load_run(tmp_path / "nowhere")


@pytest.mark.parametrize("section", ["settings", "sparsifier", "controller", "model"])
def test_configurations_that_name_nothing_are_refused(tmp_path: Path, section: str) -> None:
    for count, value in enumerate(({}, None, {"seed": "x", "name": 3, "dim": None})):
        path = write(tmp_path / str(count), {**config(), section: value}, records(3))
        with pytest.raises(GradsiftError, match=rf"{section}\."):
            load_run(path)


def test_find_runs(tmp_path: Path) -> None:
    a, b = (write(tmp_path / "all" / name, config(), records(2)) for name in "ab")
    deep = write(tmp_path / "all" / "deep" / "c", config(), records(2))
    hidden = write(tmp_path / "all" / ".d.12345678", config(), records(2))
    (tmp_path / "all" / "comparison.json").write_text("{}")
    (tmp_path / "all" / "report").mkdir()
    assert find_runs([tmp_path / "all"]) == [a, b, deep]
    assert find_runs([b, a, tmp_path / "all"]) == [b, a, deep]
    assert find_runs(sorted(p for p in (tmp_path / "all").iterdir() if p != hidden)) == [a, b, deep]
    for nothing in ([tmp_path / "all" / "report"], []):
        with pytest.raises(GradsiftError, match="no run folder"):
            find_runs(nothing)
    with pytest.raises(GradsiftError, match="there is no folder"):
        find_runs([a, tmp_path / "typo"])
    (a / "records.jsonl").unlink()  # damaged, not passed over, if it is named
    assert find_runs([a, b]) == [a, b]


def test_whether_messages_are_dense(tmp_path: Path) -> None:
    sparse = write(tmp_path / "sparse", config(), records(4))
    dense = write(tmp_path / "dense", config(), records(4, dense=True))
    full = write(tmp_path / "full", config(), records(4, k=1000.0))
    rounded = write(tmp_path / "rounded", config(), records(4, k=999.75))
    assert [load_run(path).dense for path in (sparse, dense, full, rounded)] == [False, True, False, False]
    assert json.loads((full / "records.jsonl").read_text().splitlines()[0])["up_elements"] == 1000
