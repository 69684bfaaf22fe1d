"""The figures of ``gradsift regret``: cost to a target and t(k, l), both against k."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from gradsift.experiments.experiment import CONTROLLERS
from gradsift.experiments.sweep.plan import Measured
from gradsift.experiments.sweep.tables import intervals, reached
from gradsift.regret.assumption2 import Shape
from gradsift.regret.interval import ratio
from gradsift.report import export, text
from gradsift.report.curves import Band
from gradsift.report.figures import BANDS
from gradsift.report.plot import Plot, drawing
from gradsift.report.style import look

WIDE = 4.0  # times the best: a higher cost would hide the minimum on a linear axis


def draw(measured: Measured, shapes: Mapping[str, Sequence[Shape]], name: str, folder: Path) -> list[Path]:
    """Draw two figures for each cost model; returns the files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with drawing():
        for clock in measured.plan.clocks:
            for what, plot in (
                ("cost", _costs(measured, clock.label)),
                ("unit", _units(measured, shapes[clock.label])),
            ):
                if plot is None:
                    continue
                path = folder / f"{name}-{what}-{clock.label.replace(' ', '')}.svg"
                export.save(plot.done(), path)
                paths.append(path)
    return paths


def _costs(measured: Measured, label: str) -> Plot | None:
    """The cost of each fixed k to each target over that of the best; controllers are horizontal lines."""
    plot, drawn = Plot.new("Fixed k", "Cost over the best"), False
    highest = 1.0
    for number, target in enumerate(measured.targets()):
        best = measured.bests.get((label, target))
        if best is None:
            continue
        costs = measured.costs(label, target) / np.array(best.costs)  # [K, S], paired
        there = np.isfinite(costs).all(axis=1)
        x, kept = np.array(measured.ks, dtype=np.float64)[there], costs[there]
        made = Band(x, kept.mean(axis=1), kept.min(axis=1), kept.max(axis=1), (), kept.shape[1])
        plot.band(made, look(number), f"loss {text.number(target)}", number)
        highest, drawn = max(highest, float(made.high.max())), True
    if not drawn:
        return None
    target = min(t for t in measured.targets() if measured.bests.get((label, t)) is not None)
    best = measured.bests[label, target]
    assert best is not None
    for number, name in enumerate(measured.plan.controllers, start=len(measured.targets())):
        own = reached(measured, name, label, target)
        if own:
            line = {**look(number).line, "linewidth": 1.0}
            mean = ratio(list(own.values()), [best.costs[seed] for seed in own]).mean
            plot.axes.axhline(mean, **line)
            highest = max(highest, mean)
            some = "" if len(own) == measured.plan.seeds else f", {len(own)} seed{'s' if len(own) > 1 else ''}"
            plot.entry(Line2D([], [], **line), f"{CONTROLLERS.get(name, name)}, loss {text.number(target)}{some}")
    _log_k(plot)
    if highest > WIDE:
        plot.log_y()
    if measured.plan.seeds > 1:
        plot.legend_title = BANDS
    return plot


def _units(measured: Measured, shapes: Sequence[Shape]) -> Plot | None:
    """t(k, l) against k, for each interval of losses that it is averaged over."""
    if all(len(shape.ks) < 2 for shape in shapes):
        return None
    plot = Plot.new("Fixed k", "Cost per unit loss")
    for number, ((high, low), shape) in enumerate(zip(intervals(measured), shapes, strict=True)):
        if len(shape.ks) > 1:
            x, means = np.array(shape.ks, dtype=np.float64), np.array(shape.means)
            made = Band(x, means, np.array(shape.lowest), np.array(shape.highest), (), measured.plan.seeds)
            plot.band(made, look(number), f"l from {text.number(high)} to {text.number(low)}", number)
    _log_k(plot)
    plot.log_y()
    if measured.plan.seeds > 1:
        plot.legend_title = BANDS
    return plot


def _log_k(plot: Plot) -> None:
    plot.axes.set_xscale("log")
    plot.axes.xaxis.set_major_locator(LogLocator(numticks=7))
    plot.axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text.number(value)))
    plot.axes.xaxis.set_minor_formatter(NullFormatter())
