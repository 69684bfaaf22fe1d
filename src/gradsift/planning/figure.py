"""Draw the predicted time over k, with the planned k, sending everything, FedAvg, and what a wrong c would change."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from gradsift.planning.predict import WRONG, Plan
from gradsift.report import export, text
from gradsift.report.plot import Plot, drawing
from gradsift.report.style import look

POINTS = 200  # of the curve


def save(plan: Plan, path: Path) -> None:
    """Write the figure in the format of the path's suffix."""
    with drawing():
        export.save(draw(plan), path)


def draw(plan: Plan) -> Figure:
    """The figure; the vertical axis is in hours if R0 is known, else relative to sending everything."""
    hours = 1.0 if plan.r0 is None else plan.r0 * plan.everything.seconds / 3600
    plot = Plot.new("k", "Relative time" if plan.r0 is None else "Time (hours)")
    plot.axes.set_xscale("log")
    plot.axes.xaxis.set_major_locator(LogLocator(numticks=7))
    plot.axes.xaxis.set_major_formatter(lambda value, _: text.number(value))
    plot.axes.xaxis.set_minor_formatter(NullFormatter())
    k = np.geomspace(plan.k_min, plan.k_max, POINTS).clip(plan.k_min, plan.k_max)
    low, mean, high = (hours * np.array(plan.relative(k.tolist(), plan.c * f)) for f in (1 / WRONG, 1, WRONG))
    first = look(0)
    plot.axes.fill_between(k, low, high, color=first.colour, alpha=0.17, linewidth=0)
    plot.axes.plot(k, mean, **first.line)
    plot.entry(Line2D([], [], **first.line), "predicted time at k")
    plot.entry(Patch(facecolor=first.colour, alpha=0.17), f"c {WRONG:g} times smaller or larger")
    points = [(1, plan.dim, plan.everything, "send everything")]
    if not plan.dense:
        points.insert(0, (0, plan.k, plan.planned, f"planned k = {plan.k:,}"))
    for number, x, way, label in points:
        marker = {**look(number).markers, "markersize": 7, "color": look(number).colour, "linestyle": "none"}
        plot.axes.plot([x], [hours * way.relative], **marker, zorder=4)
        plot.entry(Line2D([], [], **marker), label)
    fedavg = {f"FedAvg, {plan.fedavg.gradients:,} steps, at best": plan.fedavg}
    if not plan.dense:
        fedavg["FedAvg, same traffic, at best"] = plan.fedavg_same_traffic
    for number, (label, way) in enumerate(fedavg.items(), start=2):
        line = {**look(number).line, "linewidth": 1.0}
        plot.axes.axhline(hours * way.relative, **line)
        plot.entry(Line2D([], [], **line), label)
    plot.log_y()
    return plot.done()
