"""The figure of a plan has its curve, its band and its marks."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

import gradsift
from gradsift import GradsiftError, Plan
from gradsift.planning import figure
from gradsift.report.plot import drawing


def planned(up_mbit: float = 10, rounds: float | None = None) -> Plan:
    return gradsift.plan(11_000_000, up_mbit=up_mbit, down_mbit=5 * up_mbit, compute=0.2, clients=20, rounds=rounds)


def drawn(plan: Plan) -> tuple[Axes, list[str]]:
    with drawing():
        made = figure.draw(plan)
    (legend,) = made.legends
    return made.axes[0], [entry.get_text() for entry in legend.get_texts()]


@pytest.mark.parametrize(
    ("rounds", "unit"), [(None, "Relative time (log scale)"), (1000.0, "Time (hours) (log scale)")]
)
def test_the_marks_are_where_the_plan_says(rounds: float | None, unit: str) -> None:
    plan = planned(rounds=rounds)
    axes, labels = drawn(plan)
    hours = 1.0 if rounds is None else (plan.everything.total or 0.0) / 3600
    assert axes.get_ylabel() == unit
    curve, best, everything, fedavg, same = (
        (np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in axes.get_lines()
    )
    assert (best[0].tolist(), best[1].tolist()) == ([plan.k], [hours * plan.planned.relative])
    assert (everything[0].tolist(), everything[1].tolist()) == ([plan.dim], [hours])
    assert fedavg[1].tolist() == [hours * plan.fedavg.relative] * 2
    assert same[1].tolist() == [hours * plan.fedavg_same_traffic.relative] * 2
    assert curve[1].min() == pytest.approx(hours * plan.planned.relative, rel=0.01)
    assert curve[1].min() >= best[1][0] * (1 - 1e-6)
    (band,) = (artist for artist in axes.collections if isinstance(artist, PolyCollection))
    edges = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert edges.min() < curve[1].min()
    assert edges.max() > curve[1].max()
    assert labels == [
        "predicted time at k",
        "c 3 times smaller or larger",
        f"planned k = {plan.k:,}",
        "send everything",
        "FedAvg, 20 steps, at best",
        "FedAvg, same traffic, at best",
    ]


def test_a_plan_to_send_everything_has_one_mark() -> None:
    plan = planned(up_mbit=1e9)
    assert plan.dense
    axes, labels = drawn(plan)
    assert len(axes.get_lines()) == 3
    assert not any("planned" in label for label in labels)


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_it_is_written(kind: str, tmp_path: Path) -> None:
    planned().draw(tmp_path / f"plan.{kind}")
    assert (tmp_path / f"plan.{kind}").stat().st_size > 5000


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GradsiftError, match=r"must be a \.svg, \.png or \.pdf file, got '.*plan\.gif'"):
        planned().draw(tmp_path / "plan.gif")
