"""The numbers of the summary against the records, and their text in the table."""

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsift.report import Spread, load_run, stated_target, summarise, table
from gradsift.report.curves import Curve
from gradsift.report.summary import cost_to_reach
from tests.report.folders import comparison, config, records, write
from tests.report.test_curves import curves, numbers, value


@given(curves(low=1), numbers, st.booleans())
def test_the_crossing_is_the_first_point_of_the_line_at_the_target(given: Curve, target: float, falling: bool) -> None:
    found = cost_to_reach(given, target, falling=falling)
    met = given.y <= target if falling else given.y >= target
    if found is None:
        assert not met.any()
        return
    assert met.any()
    before = given.x < found
    assert not met[before].any()  # the line is straight between points, so it cannot have met the target earlier
    if not met[0]:
        assert value(given, found) == pytest.approx(target, rel=1e-6, abs=1e-6)
        assert found <= given.x[np.flatnonzero(met)[0]]
    else:
        assert found == given.x[0]


def test_a_crossing_by_hand() -> None:
    given = Curve(np.array([0.0, 10.0, 20.0, 30.0]), np.array([2.0, 1.0, 1.5, 0.5]))
    assert cost_to_reach(given, 1.25, falling=True) == 7.5
    assert cost_to_reach(given, 0.75, falling=True) == 27.5
    assert cost_to_reach(given, 0.5, falling=True) == 30
    assert cost_to_reach(given, 0.4, falling=True) is None
    assert cost_to_reach(given, 3.0, falling=True) == 0
    assert cost_to_reach(given, 3.0, falling=False) is None


def run(place: Path, seed: int, losses: dict[int, float | None], rounds: int = 20, **options: Any) -> Path:
    """A run with cost 2 a round and these evaluated losses; accuracy is 1 - loss / 10."""
    lines = records(rounds, seed=seed, every=None, **options)
    for number, loss in losses.items():
        lines[number - 1]["global_loss"] = loss
        lines[number - 1]["accuracy"] = None if loss is None else 1 - loss / 10
    return write(place / f"run{len(list(place.iterdir()))}", config(seed), lines)


def test_rows_by_hand(tmp_path: Path) -> None:
    paths = [
        run(tmp_path, 0, {10: 1.3, 20: 0.3}),  # reaches 0.8 at cost 30
        run(tmp_path, 1, {10: 1.0, 20: 0.5}),  # at cost 28
        run(tmp_path, 2, {10: 1.3, 20: 1.2}),  # never
    ]
    (row,) = summarise(paths, target_loss=0.8, target_accuracy=0.9)
    assert row.label == "fab-top-k, k = 50"
    assert row.seeds == (0, 1, 2)
    assert row.paths == tuple(paths)
    assert row.cost_to_loss == Spread((pytest.approx(30), pytest.approx(28)), 3)  # type: ignore[arg-type]
    assert row.cost_to_accuracy is not None
    assert row.cost_to_accuracy.values == pytest.approx((26.0, 20.0))  # the accuracy of a loss of 1
    assert row.cost_to_accuracy.seeds == 3
    assert row.loss.values == (0.3, 0.5, 1.2)
    assert row.loss.mean == pytest.approx(2 / 3)
    assert (row.loss.low, row.loss.high) == (0.3, 1.2)
    assert row.cost.values == pytest.approx((40, 40, 40))
    assert row.rounds.values == (20, 20, 20)
    assert row.up_bytes.values == pytest.approx((20 * 50 * 8 * 6,) * 3)
    assert row.equal_cost is None  # one method: nothing to compare
    names, (cells,) = table([row])
    shown = dict(zip(names, map(str, cells), strict=True))
    assert shown["Method"] == "fab-top-k, k = 50"
    assert shown["Seeds"] == "3"
    assert shown["Cost to loss 0.8"] == "29.00 (28.00 to 30.00) 2 of 3 seeds"
    assert shown["Cost to accuracy 90\N{NO-BREAK SPACE}%"] == "23.00 (20.00 to 26.00) 2 of 3 seeds"
    assert shown["Final loss"] == "0.667 (0.300 to 1.200)"
    assert shown["Final accuracy"] == "93.3\N{NO-BREAK SPACE}% (88.0 to 97.0)"
    assert shown["Rounds"] == "20 (all equal)"
    assert shown["Sent up"] == "48.0\N{NO-BREAK SPACE}kB (all equal)"


def test_not_reached_is_said(tmp_path: Path) -> None:
    paths = [run(tmp_path, seed, {20: 1.0}) for seed in range(2)]
    names, (cells,) = table(summarise(paths, target_loss=0.5, target_accuracy=0.99))
    shown = dict(zip(names, map(str, cells), strict=True))
    assert shown["Cost to loss 0.5"] == "not reached"
    assert shown["Cost to accuracy 99\N{NO-BREAK SPACE}%"] == "not reached"


def test_runs_without_evaluation(tmp_path: Path) -> None:
    (row,) = summarise([run(tmp_path, 0, {})], target_loss=0.5)
    assert row.loss == Spread((), 1)
    assert row.loss.mean is None
    names, (cells,) = table([row])
    shown = dict(zip(names, map(str, cells), strict=True))
    assert shown["Cost to loss 0.5"] == "not evaluated"
    assert "Final loss" not in names
    assert shown["Rounds"] == "20"


def test_the_evaluation_at_the_start_is_no_outcome_but_can_meet_a_target(tmp_path: Path) -> None:
    (row,) = summarise([run(tmp_path, 0, {20: 2.5})], target_loss=2.4)
    assert row.loss.values == (2.5,)
    assert row.cost_to_loss == Spread((0.0,), 1)


def test_least_used_client(tmp_path: Path) -> None:
    lines = records(2, clients=4)
    lines[0]["contribution"], lines[1]["contribution"] = [4, 0, 2, 2], [2, 1, 2, 3]
    (row,) = summarise([write(tmp_path / "a", config(), lines)])
    assert row.least_used.values == (1 / 4,)  # 1 of a mean of 16 / 4
    for line in lines:
        line["contribution"] = [0, 0, 0, 0]
    (row,) = summarise([write(tmp_path / "b", config(), lines)])
    assert row.least_used == Spread((), 1)
    for line in lines:
        line["contribution"] = [3, 3, 3, 3]
    (row,) = summarise([write(tmp_path / "c", config(), lines)])
    assert row.least_used.values == (1.0,)


def test_equal_cost(tmp_path: Path) -> None:
    paths = comparison(tmp_path)
    rows = summarise(paths)
    runs = [load_run(path) for path in paths]
    equal = min(float(r.cost[-1]) for r in runs)
    assert {row.equal_cost for row in rows} == {equal}
    for row in rows:
        for i, seed in enumerate(row.seeds):
            loaded = next(r for r in runs if r.path == row.paths[i])
            assert loaded.seed == seed
            expected = np.interp(equal, loaded.evaluated_cost, loaded.loss)
            assert row.loss_at_equal_cost.values[i] == pytest.approx(float(expected))
    names, _ = table(rows)
    assert any(name.startswith("Loss at cost") for name in names)
    # Where all have spent the same, the final numbers are those.
    same = [run(tmp_path, 0, {20: 1.0}), write(tmp_path / "x", config(0, "fub-top-k"), records(20))]
    assert not any("at cost" in name for name in table(summarise(same))[0])
    # Costs of different kinds have no order.
    other = write(tmp_path / "y", config(0, cost={"class": "Energy"}), records(9))
    assert summarise([same[0], other])[0].equal_cost is None


def test_stated_targets(tmp_path: Path) -> None:
    stops: list[dict[str, Any]] = [{"target_loss": 0.5}, {"target_loss": None}, {"target_loss": 0.4}]
    runs = [load_run(write(tmp_path / f"{i}", config(i, stop=s), records(2))) for i, s in enumerate(stops)]
    assert stated_target(runs[:2], "target_loss") == 0.5
    assert stated_target(runs[1:2], "target_loss") is None
    assert stated_target(runs, "target_loss") is None
    assert stated_target(runs, "target_accuracy") is None


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=6))
def test_spread(values: list[float]) -> None:
    spread = Spread(tuple(values), 9)
    assert spread.mean == fmean(values)
    assert (spread.low, spread.high) == (min(values), max(values))


def test_no_rows() -> None:
    assert table([]) == (["Method", "Seeds"], [])


def test_gradients_exchanges_and_bits_are_shown_where_they_differ_from_the_papers_round(tmp_path: Path) -> None:
    plain, local = records(8), records(8)
    for number, record in enumerate(plain):
        record |= {"steps": 1, "up_elements": 50, "down_elements": 50, "clients": 6}
        record |= {"up_bytes": 6 * 50 * 8.0, "down_bytes": 6 * 50 * 8.0}
        local[number] |= record | {"steps": 4, "up_bytes": 6 * 50 * 1.5, "down_bytes": 6 * 50 * 2.0}
    local[2] |= {"up_elements": 0, "down_elements": 0, "up_bytes": 0.0, "down_bytes": 0.0}
    write(tmp_path / "a", config(), plain)
    names, _ = table(summarise([tmp_path / "a"]))
    assert not {"Gradients", "Exchanges", "Bits an element up"} & set(names)
    few: dict[str, Any] = {"values": {"name": "few-bits", "bits": 2}, "down_values": {"name": "few-bits", "bits": 4}}
    write(tmp_path / "b", config(local={"name": "local-steps", "steps": 4}, **few), local)
    rows = summarise([tmp_path / "a", tmp_path / "b"])
    assert rows[1].label.endswith(", 4 local steps, 2 bits up, 4 down")
    names, lines = table(rows)
    found = [dict(zip(names, map(str, line), strict=True)) for line in lines]
    assert [line["Gradients"] for line in found] == ["8", "32"]
    assert [line["Exchanges"] for line in found] == ["8", "7"]
    assert [line["Bits an element up"] for line in found] == ["64", "12"]
    assert [line["Bits an element down"] for line in found] == ["64", "16"]
