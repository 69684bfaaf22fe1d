"""Of many fixed k the best is named as such, by the numbers of the table; the others are put aside."""

from pathlib import Path

import pytest

from gradsift.report import write_report
from gradsift.report.hindsight import mark
from gradsift.report.methods import group, look_number
from gradsift.report.summary import Row, load_runs, summarise_methods
from tests.report.folders import config, records, write

SPEEDS = {10.0: 0.02, 50.0: 0.06, 100.0: 0.065, 400.0: 0.07}  # by k; a larger k learns faster and costs more


def runs(place: Path, speeds: dict[float, float] = SPEEDS) -> list[Path]:
    paths = [write(place / "adaptive", config(controller={"name": "sign"}), records(60, k=80.0, interval=True))]
    for k, speed in speeds.items():
        for seed in range(2):
            lines = records(60, seed=seed, k=k, speed=speed)
            paths.append(write(place / f"{k}-{seed}", config(seed, controller={"name": "fixed", "k": k}), lines))
    paths.append(write(place / "all", config(sparsifier="send-all"), records(20, dense=True)))
    return paths


def marked(paths: list[Path], loss: float | None = None, accuracy: float | None = None) -> tuple[list[Row], list[str]]:
    methods, _ = group(load_runs(paths))
    methods, rows, notes = mark(methods, summarise_methods(methods, loss, accuracy))
    assert [m.label for m in methods] == [row.label for row in rows]
    assert [m.aside for m in methods] == [row.aside for row in rows]
    looks = [look_number(methods, i) for i in range(len(methods))]
    assert [n for n in looks if n is not None] == list(range(sum(not m.aside for m in methods)))
    return rows, notes


@pytest.mark.parametrize(("loss", "accuracy"), [(1.0, None), (0.5, None), (None, 0.7), (1.0, 0.9)])
def test_the_best_has_the_least_cost_to_the_target(tmp_path: Path, loss: float | None, accuracy: float | None) -> None:
    rows, notes = marked(runs(tmp_path), loss, accuracy)
    fixed = [row for row in rows if "k = " in row.label]
    costs = [row.cost_to_loss if loss is not None else row.cost_to_accuracy for row in fixed]
    means = [cost.mean if cost is not None and not cost.missing else None for cost in costs]
    least = means.index(min(mean for mean in means if mean is not None))
    assert [row.best_of for row in fixed] == [4 if i == least else 0 for i in range(4)]
    assert [row.aside for row in fixed] == [i != least for i in range(4)]
    assert fixed[least].label.endswith(", best of 4 in hindsight")
    assert not any(row.aside for row in rows if row not in fixed)
    (note,) = notes
    assert note.startswith(f"{fixed[least].label}: the least mean cost to {'loss' if loss else 'accuracy'}")


def test_where_none_reaches_an_accuracy_the_most_accurate_is_the_best(tmp_path: Path) -> None:
    rows, notes = marked(runs(tmp_path), accuracy=0.999999)
    fixed = [row for row in rows if "k = " in row.label]
    found = [row.accuracy_at_equal_cost.mean or 0.0 for row in fixed]
    assert [row.best_of for row in fixed] == [4 if mean == max(found) else 0 for mean in found]
    assert "the highest accuracy at cost" in notes[0]


def test_a_k_that_reaches_it_in_every_seed_is_before_a_cheaper_one_that_does_not(tmp_path: Path) -> None:
    paths = runs(tmp_path)
    lines = records(60, seed=1, k=50.0, speed=0.0)  # one seed of the best k never gets there
    (tmp_path / "50.0-1").rename(tmp_path / "gone")
    paths[paths.index(tmp_path / "50.0-1")] = write(
        tmp_path / "again", config(1, controller={"name": "fixed", "k": 50.0}), lines
    )
    rows, _ = marked(paths, 1.0)
    (best,) = (row for row in rows if row.best_of)
    assert best.label == "fab-top-k, k = 100, best of 4 in hindsight"


@pytest.mark.parametrize("loss", [None, 0.001])
def test_without_a_target_that_is_reached_the_loss_at_equal_cost_decides(tmp_path: Path, loss: float | None) -> None:
    rows, notes = marked(runs(tmp_path), loss)
    fixed = [row for row in rows if "k = " in row.label]
    least = min(fixed, key=lambda row: row.loss_at_equal_cost.mean or 9.0)
    assert least.best_of == 4
    assert "the lowest loss at cost " in notes[0]


def test_two_fixed_k_stand_side_by_side(tmp_path: Path) -> None:
    rows, notes = marked(runs(tmp_path, {10.0: 0.02, 50.0: 0.06}), 1.0)
    assert not notes
    assert not any(row.aside or row.best_of for row in rows)


def test_page_and_figures_name_the_best(tmp_path: Path) -> None:
    made = write_report(runs(tmp_path / "runs"), tmp_path / "out", target_loss=1.0)
    page, figure = made.page.read_text(), (tmp_path / "out/figures/loss-cost.svg").read_text()
    assert "k = 50, best of 4 in hindsight" in page
    assert page.count("3 other fixed k") > 3  # in the legends
    assert "the least mean cost to loss 1." in page
    assert figure
