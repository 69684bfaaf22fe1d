"""Fits, table and figure of ``growth``'s points.

``python -m benchmarks.growth_report growth.json growth.svg`` draws what another machine has measured.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import markdown

LEAST = 3  # rounds after the warm-up that make a point
AXES = {"clients": "clients N", "dim": "weights D", "k": "elements k"}


def extrapolated(axis: str, measured: list[dict[str, Any]], size: int) -> float:
    """Seconds a round at ``size``, by the line through the last two points; 0 before there are two."""
    if len(measured) < 2:
        return 0.0
    (x, y), (last_x, last_y) = ((float(point[axis]), float(point["seconds"])) for point in measured[-2:])
    return last_y + (last_y - y) / (last_x - x) * (size - last_x)


def fit(axis: str, measured: list[dict[str, Any]]) -> dict[str, float] | None:
    """A line through the points, and how it looks in log-log; None for less than three points.

    seconds = fixed + each * size by least squares of the relative errors, since the sizes span decades; ``farthest`` is
    the largest of those errors. ``r2`` is that of the usual line, by which the largest points decide.
    """
    if len(measured) < 3:
        return None
    x, y = (np.array([point[name] for point in measured], dtype=float) for name in (axis, "seconds"))
    each, fixed = np.polyfit(x, y, 1, w=1 / y)
    log_x, log_y = np.log(x), np.log(y)
    return {
        "fixed": float(fixed),
        "each": float(each),
        "farthest": float(np.abs((fixed + each * x) / y - 1).max()),
        "r2": float(np.corrcoef(x, y)[0, 1] ** 2),
        "slope": float(np.polyfit(log_x, log_y, 1)[0]),
        "steepest": float((np.diff(log_y) / np.diff(log_x)).max()),
    }


def table(record: dict[str, Any]) -> str:
    """The fits, as docs/results/speed.md shows them."""
    rows = []
    for axis, found in record["sweeps"].items():
        if not found["points"]:
            rows.append([AXES[axis], *["-"] * 7])
            continue
        first, last, line = found["points"][0], found["points"][-1], found["fit"]
        span = f"{first[axis]:,} to {last[axis]:,}"
        times = f"{1e3 * first['seconds']:.3g} to {1e3 * last['seconds']:.3g}"
        numbers = ["-"] * 4
        if line is not None:
            numbers = [
                f"{line['r2']:.4f}",
                f"{line['farthest']:.0%}",
                f"{line['slope']:.2f}",
                f"{line['steepest']:.2f}",
            ]
        others = ", ".join(f"{name} = {first[name]:,}" for name in AXES if name != axis)
        rows.append([AXES[axis], span, others, times, *numbers])
    return markdown(
        ["", "from to", "at", "ms a round", "R2 of a line", "farthest from it", "log-log slope", "steepest step"], rows
    )


def plot(record: dict[str, Any], path: Path) -> None:
    """One panel a sweep: the points and the line."""
    import matplotlib
    from matplotlib.figure import Figure

    from gradsift.report.style import LIGHT_LINES, MATPLOTLIB

    # Powers of ten on the axes are mathematics to matplotlib.
    style: dict[str, Any] = {**MATPLOTLIB, "text.parse_math": True, "svg.fonttype": "none", "svg.hashsalt": "growth"}
    with matplotlib.rc_context(style):  # type: ignore[arg-type]  # newer stubs list every key
        figure = Figure(figsize=(9, 2.8), layout="constrained")
        panels = figure.subplots(1, len(record["sweeps"]))
        for panel, (axis, found) in zip(panels, record["sweeps"].items(), strict=True):
            x = np.array([point[axis] for point in found["points"]], dtype=float)
            panel.loglog(x, [1e3 * point["seconds"] for point in found["points"]], "o", color=LIGHT_LINES[0])
            if found["fit"] is not None:
                fine = np.geomspace(x.min(), x.max(), 50)
                line = 1e3 * (found["fit"]["fixed"] + found["fit"]["each"] * fine)
                panel.loglog(fine[line > 0], line[line > 0], color=LIGHT_LINES[1], linewidth=1)
            panel.minorticks_off()
            panel.set(xlabel=AXES[axis], ylabel="ms a round")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


if __name__ == "__main__":
    plot(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
