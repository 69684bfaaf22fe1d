"""Figures show the numbers of the runs, on axes with labels and units."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from gradsift.report import figures, load_run, style
from gradsift.report.figures import Drawn
from gradsift.report.methods import Method, cost_axis, group
from gradsift.report.plot import drawing
from gradsift.report.runs import Floats
from tests.report.folders import comparison, config, records, write


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> list[Method]:
    paths = comparison(tmp_path_factory.mktemp("runs"))
    return group([load_run(path) for path in paths])[0]


def axes(drawn: Drawn | None) -> Axes:
    assert drawn is not None
    (found,) = drawn.figure.axes
    return found


def lines(drawn: Drawn | None, colour: str, width: float = 1.5) -> list[tuple[Floats, Floats]]:
    """x and y of the lines of this colour: 1.5 wide are the means, 0.7 the single seeds."""
    found = [line for line in axes(drawn).get_lines() if line.get_color() == colour and line.get_linewidth() == width]
    return [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in found]


def legend(drawn: Drawn | None) -> list[str]:
    assert drawn is not None
    (found,) = drawn.figure.legends
    return [entry.get_text() for entry in found.get_texts()]


@pytest.mark.parametrize("what", ["loss", "accuracy"])
@pytest.mark.parametrize("against", ["cost", "rounds"])
def test_courses_are_those_of_the_evaluations(methods: list[Method], what: str, against: str) -> None:
    with drawing():
        drawn = figures.course(methods, what, against, 0.5)
    scale = 100 if what == "accuracy" else 1
    for i, method in enumerate(methods):
        ((x, y),) = lines(drawn, style.look(i).colour)
        ends = []
        for run in method.runs:
            at = run.evaluated_cost if against == "cost" else run.evaluated
            ends.append(at[-1])
            values = np.interp(x, at, scale * (run.loss if what == "loss" else run.accuracy))
            y = y - values / len(method.runs)
        assert np.abs(y).max() < 1e-9  # the line is the mean of the seeds
        assert x[-1] == pytest.approx(min(ends))
        # Seed 1 runs for longer: its rest is there too.
        tails = lines(drawn, style.look(i).colour, 0.7)
        assert [tail[0][-1] for tail in tails] == [pytest.approx(max(ends))]
    bands = [c for c in axes(drawn).collections if isinstance(c, PolyCollection)]
    assert len(bands) == len(methods)
    assert axes(drawn).get_xlabel() == ("Rounds" if against == "rounds" else cost_axis(methods))
    assert axes(drawn).get_ylabel().startswith("Global loss" if what == "loss" else "Test accuracy (%)")
    target = lines(drawn, style.LIGHT["ink"], 0.9)
    assert set(target[0][1]) == {0.5 * scale}
    assert legend(drawn) == [
        *(m.label for m in methods),
        "target 0.5" if what == "loss" else "target 50 %",
    ]
    assert drawn is not None
    title = drawn.figure.legends[0].get_title().get_text()
    assert title.startswith("Line: mean over seeds. Band: lowest to highest seed.")


def test_a_logarithmic_axis_says_so(tmp_path: Path) -> None:
    def drawn(smallest: float) -> Drawn | None:
        lines = records(10)
        lines[-1]["global_loss"] = smallest
        run = load_run(write(tmp_path / str(smallest), config(), lines))
        with drawing():
            return figures.course(group([run])[0], "loss", "cost", None)

    for smallest, scale in ((0.01, "log"), (0.5, "linear")):
        found = axes(drawn(smallest))
        assert found.get_yscale() == scale
        assert ("log scale" in found.get_ylabel()) == (scale == "log")


def test_the_axis_is_of_the_losses_after_the_first_tenth_if_the_first_are_far_above_them(tmp_path: Path) -> None:
    def drawn(start: float = 9.0, *, last: float = 1.0, short: bool = False, target: float | None = None) -> Drawn:
        folder, made = tmp_path / str(len(list(tmp_path.iterdir()))), []
        for name, rounds in [("fab-top-k", 100), ("fub-top-k", 10)][: 2 if short else 1]:
            lines = records(rounds, every=1)
            for line in lines:
                line["global_loss"] = 3 - 0.02 * line["round"] if rounds == 100 else 6.0
            lines[-1]["global_loss"] = lines[-1]["global_loss"] if rounds == 10 else last
            about = config(sparsifier=name, start={"global_loss": start, "accuracy": 0.1})
            made.append(load_run(write(folder / name, about, lines)))
        with drawing():
            found = figures.course(group(made)[0], "loss", "rounds", target)
        assert found is not None
        return found

    cut = drawn()
    low, high = axes(cut).get_ylim()
    assert 0.8 < low < 1
    assert 2.8 < high < 3  # after ten rounds it is 2.8
    said = "Above the axis: the first losses, up to 9."
    assert cut.figure.legends[0].get_title().get_text() == said
    assert said in cut.caption
    assert 6 < axes(drawn(15.0, short=True)).get_ylim()[1] < 7, "a short run's tenth is its own"
    assert 4 < axes(drawn(target=4.0)).get_ylim()[1] < 5, "the target is in sight"
    for whole, top in ((drawn(4.0), 4.0), (drawn(last=9.0), 9.0), (drawn(target=8.9), 9.0)):
        assert axes(whole).get_ylim()[1] > top
        assert "Above" not in whole.caption


def test_k_and_its_interval(methods: list[Method]) -> None:
    with drawing():
        every, interval = figures.all_k(methods), figures.search_interval(0, methods)
        assert figures.search_interval(1, methods) is None  # a fixed k searches nothing
    assert legend(every) == ["fab-top-k, extended-sign", "fab-top-k, k = 50"]
    assert every is not None
    assert "fedavg, k = 50; send-all" in every.caption  # named, not hidden
    runs = methods[0].runs
    shortest = min(run.rounds for run in runs)
    for drawn in (every, interval):
        ((x, y),) = lines(drawn, style.look(0).colour)
        assert x.tolist() == list(range(1, shortest + 1))
        assert y == pytest.approx(np.mean([run.k[:shortest] for run in runs], axis=0))
    edges = [y.tolist() for _, y in lines(interval, style.look(0).colour, 0.7)]
    assert edges == [values[:shortest].tolist() for run in runs for values in (run.low, run.high)]


@pytest.mark.parametrize("log", [False, True])
def test_traffic(methods: list[Method], log: bool) -> None:
    # Send-all sends twenty times as much as the others: without it, a plain axis will do.
    shown = methods if log else methods[:3]
    with drawing():
        up, down = figures.traffic(shown, "up"), figures.traffic(shown, "down")
    assert axes(up).get_ylim() == axes(down).get_ylim()
    for drawn, name in ((up, "up"), (down, "down")):
        assert axes(drawn).get_yscale() == ("log" if log else "linear")
        for i, method in enumerate(shown):
            ((x, y),) = lines(drawn, style.look(i).colour)
            assert y[-1] == pytest.approx(np.mean([getattr(run, name)[int(x[-1]) - 1] for run in method.runs]))
            first = 10 if method.label.startswith("fedavg") else 1  # the first round in which something is sent
            assert (x[0], y[0] == 0) == ((first, False) if log else (0, True))
            low, high = axes(drawn).get_ylim()
            assert ((low <= y) & (y <= high)).all()
    assert "probe are not counted" in down.caption


def test_contributions_are_sorted_shares(methods: list[Method]) -> None:
    with drawing():
        drawn = figures.contributions(methods)
    for i, method in enumerate(methods):
        ((x, y),) = lines(drawn, style.look(i).colour)
        assert (np.diff(y) >= 0).all()
        assert y.mean() == pytest.approx(1)  # an equal share is the mean of all
        assert y[0] == pytest.approx(np.mean([run.contribution.min() / run.contribution.mean() for run in method.runs]))
        assert x == pytest.approx(100 * (np.arange(6) + 0.5) / 6)
    assert set(lines(drawn, style.LIGHT["ink"], 0.9)[0][1]) == {1.0}
    assert axes(drawn).get_ylim()[0] == 0


def test_one_seed_has_no_band(tmp_path: Path) -> None:
    run = load_run(write(tmp_path / "run", config(), records(20)))
    with drawing():
        drawn = figures.course(group([run])[0], "loss", "cost", None)
    assert not axes(drawn).collections
    assert drawn is not None
    assert drawn.figure.legends[0].get_title().get_text() == ""
    assert "One seed each" in drawn.caption


@pytest.mark.parametrize(
    ("costs", "label"),
    [
        ([{"class": "NormalizedTime", "comm_time": 1}], "Normalised time (computation of a round = 1)"),
        ([{"class": "NormalizedTime", "comm_time": 1, "comp_time": 2}], "Normalised time"),
        ([{"class": "LinkTime"}], "Time (s)"),
        ([{"class": "MeasuredTime"}], "Time (s)"),
        ([{"class": "Energy"}], "Energy (J)"),
        ([{"class": "Money"}], "Money (in the currency of the prices)"),
        ([{"class": "WeightedSum"}], "Cost (weighted sum)"),
        ([{"class": "Mine"}], "Cost (Mine)"),
        ([None], "Cost"),
        ([{"class": "LinkTime"}, {"class": "Energy"}], "Cost (each method by its own cost model)"),
    ],
)
def test_the_cost_axis_has_its_unit(tmp_path: Path, costs: list[Any], label: str) -> None:
    runs = [load_run(write(tmp_path / str(i), config(i, cost=cost), records(2))) for i, cost in enumerate(costs)]
    assert cost_axis(group(runs)[0]) == label
