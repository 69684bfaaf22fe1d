"""Draw the figures of a report, each with a caption and a description for readers who cannot see it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gradsift.report import text
from gradsift.report.curves import Band, Curve, band, curve, evaluations, over_rounds
from gradsift.report.methods import Method, cost_axis, look_number
from gradsift.report.plot import THIN, Plot, needs_log_axis
from gradsift.report.runs import Run
from gradsift.report.style import ASIDE, look

BANDS = "Line: mean over seeds. Band: lowest to highest seed."
INTERVALS = "Line: mean over seeds. Shaded: from the lowest to the highest bound.\nThin lines: the bounds of each seed."
TAILS = "\nThin line: a longer seed by itself."
EARLY = 0.1  # the axis may leave out the losses of this first part of a run

Bands = Mapping[int, Band]  # keyed by the number of the method


@dataclass(frozen=True, eq=False)
class Drawn:
    """A figure with its title, caption and description."""

    name: str  # the name of its files, without suffix
    title: str
    caption: str
    alt: str
    figure: Figure


class Section(NamedTuple):
    """A section of the page: a heading, sentences, and figures."""

    id: str
    title: str
    text: list[str]
    figures: list[Drawn]


def sections(methods: Sequence[Method], target_loss: float | None, target_accuracy: float | None) -> list[Section]:
    """Draw every figure for which there are data, grouped in the sections of the page."""
    loss = [course(methods, "loss", against, target_loss) for against in ("cost", "rounds")]
    accuracy = [course(methods, "accuracy", against, target_accuracy) for against in ("cost", "rounds")]
    missing: list[str] = []
    if loss[0] is None:
        missing.append("No run has been evaluated after its start, so there is no loss to show yet.")
    elif accuracy[0] is None:
        missing.append("The runs have no test accuracy: there are no test data, or no classes.")
    intervals = [search_interval(i, methods) for i in range(len(methods))]
    # With one sparse method, the figure of its search interval already shows its k.
    one_sparse = sum(not method.dense for method in methods) == 1
    every_k = None if one_sparse and any(intervals) else all_k(methods)
    no_k = ["No message is sparse, so there is no k to show."] if every_k is None and not any(intervals) else []
    return [
        Section("course", "Loss and accuracy", missing, _present([*loss, *accuracy])),
        Section("k-over-rounds", "How many elements are sent", no_k, _present([every_k, *intervals])),
        Section("traffic", "Traffic", [], [traffic(methods, way) for way in ("up", "down")]),
        Section("fairness", "Fairness", [], _present([contributions(methods)])),
    ]


def course(methods: Sequence[Method], what: str, against: str, target: float | None) -> Drawn | None:
    """Draw ``what`` ("loss" or "accuracy") against "cost" or "rounds"; returns None if no run was evaluated."""
    scale = 100.0 if what == "accuracy" else 1.0

    def seed(run: Run) -> Curve:
        x, y = evaluations(run, what, against)
        return Curve(x, scale * y)

    bands = _bands(methods, lambda m: band([seed(run) for run in m.runs]))
    if all(len(b.x) < 2 and not b.tails for b in bands.values()):
        return None
    axis = cost_axis(methods) if against == "cost" else "Rounds"
    name = "Global loss" if what == "loss" else "Test accuracy (%)"
    plot = Plot.new(axis, name)
    _draw(plot, methods, bands)
    if target is not None:
        plot.level(scale * target, f"target {text.number(target) if what == 'loss' else text.percent(target)}")
    cut = ""
    if what == "loss" and needs_log_axis([float(v) for b in bands.values() for v in b.low]):
        plot.log_y()
    elif what == "loss":
        cut = _crop_early_losses(plot, list(bands.values()), target)
    plot.axes.set_xlim(left=0)
    subject = "Loss over all training data" if what == "loss" else "Accuracy on the test data"
    title = f"{what.capitalize()} against {against}"
    spent = "what the run had spent" if against == "cost" else "the rounds done"
    caption = f"{subject}, against {spent}. {_band_note(bands)} {cut}".rstrip()
    return Drawn(f"{what}-{against}", title, caption, _description(title, methods, bands, axis, name), plot.done())


def all_k(methods: Sequence[Method]) -> Drawn | None:
    """Draw k over the rounds for every method that is not dense; returns None if all are."""
    bands = _bands(methods, lambda m: None if m.dense else over_rounds([run.k for run in m.runs]))
    if not bands:
        return None
    plot = Plot.new("Rounds", "k")
    _draw(plot, methods, bands, jumpy=True)
    if needs_log_axis([float(v) for b in bands.values() for v in (b.low.min(), b.high.max())]):
        plot.log_y()
    else:
        plot.axes.set_ylim(bottom=0)
    plot.axes.set_xlim(left=0)
    caption = f"How many elements each client sends, as the controller proposed it. {_band_note(bands)}"
    dense = [m.label for m in methods if m.dense]
    if dense:
        caption += f" Not shown, since their messages are full vectors or empty: {'; '.join(dense)}."
    title = "k over the rounds"
    return Drawn("k", title, caption, _description(title, methods, bands, "Rounds", "k"), plot.done())


def search_interval(number: int, methods: Sequence[Method]) -> Drawn | None:
    """Draw k of one method and the interval that its controller searches; returns None if the records have none."""
    method = methods[number]
    runs = [run for run in method.runs if (run.low < run.high).any()]
    k, low, high = (over_rounds([getattr(run, name) for run in runs]) for name in ("k", "low", "high"))
    if k is None or low is None or high is None or not np.isfinite(high.high).any():
        return None
    style, plot = look(look_number(methods, number) or 0), Plot.new("Rounds", "k")
    plot.axes.fill_between(k.x, low.low, high.high, color=style.colour, alpha=0.17, linewidth=0)
    rounds = min(run.rounds for run in runs)
    for bound in (over_rounds([edge[:rounds]]) for run in runs for edge in (run.low, run.high)):
        if bound is not None:
            plot.thin(Curve(bound.x, bound.mean), style._replace(dashes=()))
    plot.band(k._replace(seeds=1), style, method.label, number, jumpy=True)
    plot.entry(Patch(facecolor=style.colour, alpha=0.17), "search interval")
    plot.legend_title = INTERVALS if len(runs) > 1 else ""
    if needs_log_axis([float(np.nanmin(low.low)), float(np.nanmax(high.high))]):
        plot.log_y()
    plot.axes.set_xlim(left=0)
    caption = f"k of {method.label}, and the interval in which its controller searches.{_points(k.rounds_per_point)}"
    first, last = (f"[{text.number(low.mean[i])}, {text.number(high.mean[i])}]" for i in (0, -1))
    alt = (
        f"Line chart: k of {method.label} goes from {text.number(k.mean[0])} to {text.number(k.mean[-1])};"
        f" its search interval from {first} to {last}."
    )
    return Drawn(f"k-interval-{number + 1}", f"Search interval of {method.label}", caption, alt, plot.done())


def traffic(methods: Sequence[Method], way: str) -> Drawn:
    """Draw the total bytes of all clients, "up" or "down"; both figures have the same vertical axis."""
    sent = [values for m in methods for run in m.runs for values in (run.up, run.down)]
    highest = max(float(values[-1]) for values in sent)
    log = needs_log_axis([float(values[-1]) for values in sent if values[-1] > 0])

    def seed(run: Run) -> Curve:
        values = np.append(0.0, run.up if way == "up" else run.down)
        # A logarithmic axis cannot show the rounds before anything was sent.
        return curve(np.arange(len(values), dtype=np.float64), np.where((values > 0) | (not log), values, np.nan))

    bands = _bands(methods, lambda m: band([seed(run) for run in m.runs]))
    plot = Plot.new("Rounds", f"Sent {way} so far")
    _draw(plot, methods, bands)
    if log:
        plot.axes.set_ylim(min(values[values > 0][0] for values in sent if values[-1] > 0) / 1.5, highest * 1.5)
        plot.log_y()
    else:
        plot.axes.set_ylim(0, max(1.0, 1.05 * highest))
    plot.axes.yaxis.set_major_formatter(lambda value, _: text.some_bytes(value))
    plot.axes.set_xlim(left=0)
    charged = {bool(m.config.get("settings.charge_probe", False)) for m in methods}
    probe = ""
    if way == "down" and len(charged) == 1:
        probe = f" Messages of the probe are {'' if charged.pop() else 'not '}counted."
    what = (
        "from the clients to the server" if way == "up" else "from the server to the clients, counted for each client"
    )
    caption = f"Bytes {what}, summed over clients and rounds.{probe} {_band_note(bands)}"
    title = f"Traffic {way}"
    alt = _description(title, methods, bands, "Rounds", "bytes", text.some_bytes)
    return Drawn(f"traffic-{way}", title, caption, alt, plot.done())


def contributions(methods: Sequence[Method]) -> Drawn | None:
    """Draw each client's share of the elements used, least-used client first; returns None if nothing was used yet."""

    def seed(run: Run) -> Curve:
        if not run.contribution.any():
            return Curve(np.empty(0), np.empty(0))
        clients = len(run.contribution)
        return Curve(100 * (np.arange(clients) + 0.5) / clients, np.sort(run.contribution) / run.contribution.mean())

    bands = _bands(methods, lambda m: band([seed(run) for run in m.runs]))
    if not bands:
        return None
    plot = Plot.new("Clients, from the least to the most used (%)", "Elements used, 1 = equal share")
    plot.level(1.0, "equal share")
    _draw(plot, methods, bands)
    plot.axes.set_xlim(0, 100)
    plot.axes.set_ylim(bottom=0)
    title = "Contributions of the clients"
    caption = (
        "Elements that the server used from each client in all rounds, divided by the mean of all clients; clients are"
        " sorted by it in each seed. A flat line at 1 is perfectly fair, 0 is a client that was never used."
        f" {_band_note(bands)}"
    )
    shares = "; ".join(
        f"{methods[i].label}: least used {text.number(b.mean[0], 3)}, most used {text.number(b.mean[-1], 3)}"
        for i, b in bands.items()
    )
    return Drawn("contributions", title, caption, f"Line chart of {title.lower()}. {shares}.", plot.done())


def _present(figures: Sequence[Drawn | None]) -> list[Drawn]:
    return [figure for figure in figures if figure is not None]


def _bands(methods: Sequence[Method], make: Callable[[Method], Band | None]) -> Bands:
    bands = ((i, make(method)) for i, method in enumerate(methods))
    return {i: b for i, b in bands if b is not None}


def _draw(plot: Plot, methods: Sequence[Method], bands: Bands, *, jumpy: bool = False) -> None:
    for i, b in bands.items():
        number = look_number(methods, i)
        if number is None:
            plot.thin(Curve(b.x, b.mean), ASIDE)
        else:
            plot.band(b, look(number), methods[i].label, number, jumpy=jumpy)
    if others := sum(methods[i].aside for i in bands):
        plot.entry(Line2D([], [], **{**ASIDE.line, "linewidth": THIN}), f"{others} other fixed k")
    if any(b.seeds > 1 for b in bands.values()):
        plot.legend_title = BANDS + (TAILS if any(b.tails for b in bands.values()) else "")


def _crop_early_losses(plot: Plot, bands: Sequence[Band], target: float | None) -> str:
    """Cut off the losses of the first tenth of each run if they take more than half of the axis; returns a note."""
    later = [np.array([] if target is None else [target]), *(tail.y for b in bands for tail in b.tails)]
    for b in bands:
        if len(b.x):
            start = EARLY * b.x[-1]
            later += [np.interp([start], b.x, b.high), b.high[b.x >= start]]
    shown = np.concatenate(later)
    low = float(min(shown.min(), *(b.low.min(initial=np.inf) for b in bands)))
    high, highest = float(shown.max()), float(max(shown.max(), *(b.high.max(initial=-np.inf) for b in bands)))
    if not 0 < 2 * (high - low) < highest - low:
        return ""
    edge = 0.05 * (high - low)
    plot.axes.set_ylim(low - edge, high + edge)
    note = f"Above the axis: the first losses, up to {text.number(highest)}."
    plot.legend_title = f"{plot.legend_title}\n{note}".lstrip()
    return note


def _band_note(bands: Bands) -> str:
    """Explain the lines and bands, for a caption."""
    seeds = [b.seeds for b in bands.values()]
    points = _points(max(b.rounds_per_point for b in bands.values()))
    if max(seeds) == 1:
        return f"One seed each, so there are no bands.{points}"
    count = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    tails = ""
    if any(b.tails for b in bands.values()):
        tails = " A mean ends where its shortest seed ends; thin lines continue the longer ones."
    return f"Lines are means over {count} seeds, bands reach from the lowest to the highest seed.{tails}{points}"


def _points(rounds: int) -> str:
    return "" if rounds == 1 else f" One point is {rounds} rounds: their mean, and a band over all their values."


def _description(
    title: str, methods: Sequence[Method], bands: Bands, x: str, y: str, show: Callable[[float], str] = text.number
) -> str:
    """Describe a figure in words: its axes, and where each line starts and ends."""
    ends = [
        f"{methods[i].label}: from {show(float(b.mean[0]))} to {show(float(b.mean[-1]))} at {text.number(b.x[-1])}"
        for i, b in bands.items()
        if len(b.x)
    ]
    return f"Line chart: {title.lower()}. Horizontal: {x}; vertical: {y}. {'; '.join(ends)}."
