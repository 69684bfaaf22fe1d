"""Drawings of ``gradsift regret``: the cost to a target and t(k, l), both against k."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from gradsift.experiments.sweep.plan import Measured, in_words
from gradsift.experiments.sweep.tables import intervals, reached
from gradsift.regret.assumption2 import Shape
from gradsift.regret.interval import ratio
from gradsift.report import export, text
from gradsift.report.curves import Band
from gradsift.report.figures import BANDS
from gradsift.report.plot import Plot, drawing
from gradsift.report.runs import Floats
from gradsift.report.style import look

WIDE = 4.0  # times the best: with a higher cost, a linear axis would hide the minimum


def draw(measured: Measured, shapes: Mapping[str, Sequence[Shape]], name: str, folder: Path) -> list[Path]:
    """Draw two figures for each cost model; returns the files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with drawing():
        for label in (clock.label for clock in measured.plan.clocks):
            for what, plot in (("cost", _costs(measured, label)), ("unit", _units(measured, shapes[label]))):
                if plot is not None:
                    paths.append(folder / f"{name}-{what}-{label.replace(' ', '')}.svg")
                    export.save(plot.done(), paths[-1])
    return paths


def _costs(measured: Measured, label: str) -> Plot | None:
    """Plot the cost of each fixed k to each target over that of the best; controllers are horizontal lines."""
    bests = {target: best for target in measured.targets if (best := measured.bests.get((label, target))) is not None}
    if not bests:
        return None
    plot, highest = _new_plot(measured, "Cost over the best"), 1.0
    for number, target in enumerate(measured.targets):
        if target in bests:
            costs = measured.costs(label, target) / np.array(bests[target].costs)  # [K, S], paired
            rows = np.isfinite(costs).all(axis=1)
            low, high = costs[rows].min(axis=1), costs[rows].max(axis=1)
            band = _band(measured, np.array(measured.ks)[rows], costs[rows].mean(axis=1), low, high)
            plot.band(band, look(number), f"loss {text.number(target)}", number)
            highest = max(highest, float(high.max()))
    target = min(bests)
    for number, name in enumerate(measured.plan.controllers, start=len(measured.targets)):
        spent = reached(measured, name, label, target)
        if spent:
            line = {**look(number).line, "linewidth": 1.0}
            mean = ratio(list(spent.values()), [bests[target].costs[seed] for seed in spent]).mean
            plot.axes.axhline(mean, **line)
            highest = max(highest, mean)
            some = "" if len(spent) == measured.plan.seeds else f", {len(spent)} seed{'s' if len(spent) > 1 else ''}"
            plot.entry(Line2D([], [], **line), f"{in_words(name)}, loss {text.number(target)}{some}")
    if highest > WIDE:
        plot.log_y()
    return plot


def _units(measured: Measured, shapes: Sequence[Shape]) -> Plot | None:
    """Plot t(k, l) against k, for each interval of losses that it is averaged over."""
    if all(len(shape.ks) < 2 for shape in shapes):
        return None
    plot = _new_plot(measured, "Cost per unit loss")
    for number, ((high, low), shape) in enumerate(zip(intervals(measured), shapes, strict=True)):
        if len(shape.ks) > 1:
            band = _band(measured, *map(np.array, (shape.ks, shape.means, shape.lowest, shape.highest)))
            plot.band(band, look(number), f"l from {text.number(high)} to {text.number(low)}", number)
    plot.log_y()
    return plot


def _band(measured: Measured, ks: Floats, mean: Floats, low: Floats, high: Floats) -> Band:
    return Band(ks.astype(np.float64), mean, low, high, (), measured.plan.seeds)


def _new_plot(measured: Measured, y: str) -> Plot:
    plot = Plot.new("Fixed k", y)
    plot.axes.set_xscale("log")
    plot.axes.xaxis.set_major_locator(LogLocator(numticks=7))
    plot.axes.xaxis.set_major_formatter(lambda value, _: text.number(value))
    plot.axes.xaxis.set_minor_formatter(NullFormatter())
    if measured.plan.seeds > 1:
        plot.legend_title = BANDS
    return plot
