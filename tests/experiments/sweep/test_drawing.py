"""The figures of ``gradsift regret``, caught before they are written."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from gradsift.cost import NormalizedTime
from gradsift.experiments.store import Store
from gradsift.experiments.sweep import drawing
from gradsift.experiments.sweep.plan import Clock, Measured, Plan
from gradsift.experiments.sweep.tables import assumption2
from gradsift.experiments.work import as_jobs, work
from gradsift.regret.reach import unit_cost
from gradsift.report import export, style, text
from gradsift.report.figures import BANDS
from tests.experiments.tiny import SETUP, TINY

CLOCK = Clock("comm_time 1", NormalizedTime(1.0), 1.0)
KS, TARGETS = (50, 500, 2000), (2.2, 2.1)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Two seeds of the sweep and of Algorithm 3, one of Algorithm 2."""
    place = tmp_path_factory.mktemp("runs")
    plan = Plan(SETUP, (CLOCK,), ("extended-sign", "sign"), 2, 60, TARGETS, TINY.eval_every)
    experiments = [e for e in plan.experiments(KS) if (e.label, e.seed) != ("Algorithm 2", 1)]
    assert work(as_jobs(experiments), place, quiet=True) == "done"
    return Measured.of(plan, KS, Store(place, place / "results", []))


@pytest.fixture
def caught(measured: Measured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    monkeypatch.setattr(export, "save", lambda figure, path: found.update({path.stem: figure}))
    drawing.draw(measured, assumption2(measured)[2], "tiny", tmp_path)
    return found


def legend(figure: Figure) -> tuple[str, list[str]]:
    (found,) = figure.legends
    return found.get_title().get_text(), [entry.get_text() for entry in found.get_texts()]


def test_the_cost_of_a_unit_of_loss_names_its_losses_and_shows_its_seeds(
    caught: dict[str, Figure], measured: Measured
) -> None:
    figure = caught["tiny-unit-comm_time1"]
    start = measured.start
    assert legend(figure) == (BANDS, [f"l from {text.number(start)} to 2.2", "l from 2.2 to 2.1"])
    bands = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection)]
    for number, (high, low) in enumerate([(start, 2.2), (2.2, 2.1)]):
        (line,) = (one for one in figure.axes[0].get_lines() if one.get_color() == style.look(number).colour)
        (points,) = (path.vertices for path in bands[number].get_paths())
        for k, mean in zip(KS, np.asarray(line.get_ydata()), strict=True):
            curves = [measured.curves[CLOCK.label][k, seed] for seed in range(2)]
            each = [float(unit_cost(curve, [(high + low) / 2], (high - low) / 2)[0]) for curve in curves]
            assert mean == pytest.approx(np.mean(each))
            drawn = [y for x, y in np.asarray(points) if x == k]
            assert (min(drawn), max(drawn)) == pytest.approx((min(each), max(each)))


def test_a_controller_with_fewer_seeds_than_the_sweep_says_so(caught: dict[str, Figure]) -> None:
    title, labels = legend(caught["tiny-cost-comm_time1"])
    assert title == BANDS
    assert labels == ["loss 2.2", "loss 2.1", "Algorithm 3, loss 2.1", "Algorithm 2, loss 2.1, 1 seed"]
