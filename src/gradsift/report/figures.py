"""The figures of a report, each with a caption and a description for readers who cannot see it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from gradsift.report import text
from gradsift.report.curves import Band, Curve, band, evaluations, over_rounds, per_round
from gradsift.report.methods import Method, cost_axis
from gradsift.report.plot import Plot, spans
from gradsift.report.runs import Floats, Run
from gradsift.report.style import look

BANDS = "Line: mean over seeds. Band: lowest to highest seed."
INTERVALS = "Line: mean over seeds. Shaded: from the lowest to the highest bound.\nThin lines: the bounds of each seed."
TAILS = "\nThin line: a longer seed by itself."
EARLY = 0.1  # of a run: the axis may leave out the losses before


@dataclass(frozen=True, eq=False)
class Drawn:
    """One figure with its title, caption and description."""

    name: str  # of its files
    title: str
    caption: str
    alt: str
    figure: Figure


def course(methods: Sequence[Method], what: str, against: str, target: float | None) -> Drawn | None:
    """``what`` ("loss" or "accuracy") of the evaluations against "cost" or "rounds". None: nothing was evaluated."""
    scale = 100.0 if what == "accuracy" else 1.0

    def seed(run: Run) -> Curve:
        x, y = evaluations(run, what, against)
        return Curve(x, scale * y)

    bands = _bands(methods, seed)
    if all(len(b.x) < 2 and not b.tails for _, b in bands):
        return None
    axis = cost_axis(methods) if against == "cost" else "Rounds"
    name = "Global loss" if what == "loss" else "Test accuracy (%)"
    plot = Plot.new(axis, name)
    _draw(plot, methods, bands)
    if target is not None:
        shown = text.number(target) if what == "loss" else text.percent(target)
        plot.level(scale * target, f"target {shown}")
    cut = ""
    if what == "loss" and spans([float(v) for _, b in bands for v in b.low]):
        plot.log_y()
    elif what == "loss":
        cut = _cut(plot, [b for _, b in bands], target)
    plot.axes.set_xlim(left=0)
    subject = "Loss over all training data" if what == "loss" else "Accuracy on the test data"
    title = f"{'Loss' if what == 'loss' else 'Accuracy'} against {against}"
    caption = f"{subject}, against {_against(against)}. {_how(bands)} {cut}".rstrip()
    return Drawn(f"{what}-{against}", title, caption, _ends(title, methods, bands, axis, name), plot.done())


def all_k(methods: Sequence[Method]) -> Drawn | None:
    """k over the rounds, of every method whose messages depend on it."""
    shown = [(i, m) for i, m in enumerate(methods) if not m.dense]
    found = [(i, over_rounds([run.k for run in m.runs])) for i, m in shown]
    bands = [(i, made[0]) for i, made in found if made is not None]
    if not bands:
        return None
    each = max(made[1] for _, made in found if made is not None)
    plot = Plot.new("Rounds", "k")
    _draw(plot, methods, bands, jumpy=True)
    if spans([float(v) for _, b in bands for v in (b.low.min(), b.high.max())]):
        plot.log_y()
    else:
        plot.axes.set_ylim(bottom=0)
    plot.axes.set_xlim(left=0)
    caption = f"How many elements each client sends, as the controller asked for it. {_how(bands)}{_stretch(each)}"
    dense = [m.label for m in methods if m.dense]
    if dense:
        caption += f" Not shown, since their messages are whole or empty: {'; '.join(dense)}."
    title = "k over the rounds"
    return Drawn("k", title, caption, _ends(title, methods, bands, "Rounds", "k"), plot.done())


def search_interval(number: int, methods: Sequence[Method]) -> Drawn | None:
    """k of one method inside the interval that its controller searches. None: the records do not have it."""
    method = methods[number]
    runs = [run for run in method.runs if (run.low < run.high).any()]
    k, low, high = (over_rounds([getattr(run, name) for run in runs]) for name in ("k", "low", "high"))
    if k is None or low is None or high is None or not np.isfinite(high[0].high).any():
        return None
    chosen, plot = look(number), Plot.new("Rounds", "k")
    plot.axes.fill_between(k[0].x, low[0].low, high[0].high, color=chosen.colour, alpha=0.17, linewidth=0)
    for run in runs:
        for edge in (run.low, run.high):
            made = over_rounds([edge[: min(r.rounds for r in runs)]])
            if made is not None:
                plot.thin(Curve(made[0].x, made[0].mean), chosen._replace(dashes=()))
    plot.band(k[0]._replace(seeds=1), chosen, method.label, number, jumpy=True)
    many = len(runs) > 1
    plot.patch(chosen, "search interval")
    plot.legend_title = INTERVALS if many else ""
    ends = [float(v) for v in (np.nanmin(low[0].low), np.nanmax(high[0].high))]
    if spans(ends):
        plot.log_y()
    plot.axes.set_xlim(left=0)
    caption = f"k of {method.label}, and the interval in which its controller searches.{_stretch(k[1])}"
    alt = (
        f"Line chart: k of {method.label} goes from {text.number(k[0].mean[0])} to {text.number(k[0].mean[-1])};"
        f" its search interval from {_interval(low[0], high[0], 0)} to {_interval(low[0], high[0], -1)}."
    )
    return Drawn(f"k-interval-{number + 1}", f"Search interval of {method.label}", caption, alt, plot.done())


def traffic(methods: Sequence[Method], way: str) -> Drawn:
    """Bytes of all clients so far, "up" or "down"; both figures have the same axis."""
    totals = [float(total) for m in methods for run in m.runs for total in (run.up[-1], run.down[-1])]
    log = spans([total for total in totals if total > 0])

    def seed(run: Run) -> Curve:
        values = run.up if way == "up" else run.down
        # A logarithmic axis cannot show the rounds before anything was sent.
        return per_round(run, np.where(values > 0, values, np.nan)) if log else per_round(run, values, first=0.0)

    bands = _bands(methods, seed)
    plot = Plot.new("Rounds", f"Sent {way} so far")
    _draw(plot, methods, bands)
    if log:
        first = [v[v > 0][0] for m in methods for run in m.runs for v in (run.up, run.down) if (v > 0).any()]
        plot.axes.set_ylim(min(first) / 1.5, max(totals) * 1.5)
        plot.log_y()
    else:
        plot.axes.set_ylim(0, max(1.0, 1.05 * max(totals)))
    plot.bytes_y()
    plot.axes.set_xlim(left=0)
    charged = {bool(m.config.get("settings.charge_probe", False)) for m in methods}
    probe = (
        ""
        if len(charged) > 1 or way == "up"
        else f" The probe's messages are {'' if True in charged else 'not '}in it."
    )
    what = "from the clients to the server" if way == "up" else "from the server to the clients, each counted"
    caption = f"Bytes {what}, summed over clients and rounds.{probe}"
    title = f"Traffic {way}"
    alt = _ends(title, methods, bands, "Rounds", "bytes", text.some_bytes)
    return Drawn(f"traffic-{way}", title, f"{caption} {_how(bands)}", alt, plot.done())


def contributions(methods: Sequence[Method]) -> Drawn | None:
    """The share of each client in the elements used, least-used client first. None: nothing was used yet."""
    bands = _bands(methods, _sorted_use)
    if not bands:
        return None
    plot = Plot.new("Clients, from the least to the most used (%)", "Elements used, 1 = equal share")
    plot.level(1.0, "equal share")
    _draw(plot, methods, bands)
    plot.axes.set_xlim(0, 100)
    plot.axes.set_ylim(bottom=0)
    title = "Contributions of the clients"
    caption = (
        "Elements that the server used from each client in all rounds, over the mean of all clients; clients are sorted"
        f" by it, in each seed. A flat line at 1 is perfectly fair, 0 is a client that was never used. {_how(bands)}"
    )
    said = "; ".join(
        f"{methods[i].label}: least used {text.number(b.mean[0], 3)}, most used {text.number(b.mean[-1], 3)}"
        for i, b in bands
    )
    return Drawn("contributions", title, caption, f"Line chart of {title.lower()}. {said}.", plot.done())


def _sorted_use(run: Run) -> Curve:
    clients, mean = len(run.contribution), float(run.contribution.mean()) if len(run.contribution) else 0.0
    if mean == 0:
        return Curve(np.empty(0), np.empty(0))
    return Curve(100 * (np.arange(clients) + 0.5) / clients, np.sort(run.contribution) / mean)


def _bands(methods: Sequence[Method], seed: Callable[[Run], Curve]) -> list[tuple[int, Band]]:
    made = [(i, band([seed(run) for run in method.runs])) for i, method in enumerate(methods)]
    return [(i, b) for i, b in made if b is not None]


def _draw(plot: Plot, methods: Sequence[Method], bands: Sequence[tuple[int, Band]], *, jumpy: bool = False) -> None:
    for i, b in bands:
        plot.band(b, look(i), methods[i].label, i, jumpy=jumpy)
    if any(b.seeds > 1 for _, b in bands):
        plot.legend_title = BANDS + (TAILS if any(b.tails for _, b in bands) else "")


def _cut(plot: Plot, bands: Sequence[Band], target: float | None) -> str:
    """Cut off the losses of the first tenth of each run if they take more than half of the axis; returns a note."""
    levels = [] if target is None else [np.array([target])]
    tails = [tail.y for b in bands for tail in b.tails]
    later = np.concatenate([*levels, *tails, *(_after(b, EARLY * b.x[-1]) for b in bands if len(b.x))])
    low = float(min(later.min(), *(b.low.min(initial=np.inf) for b in bands)))
    high, highest = float(later.max()), float(max(later.max(), *(b.high.max(initial=-np.inf) for b in bands)))
    if not 0 < 2 * (high - low) < highest - low:
        return ""
    edge = 0.05 * (high - low)
    plot.axes.set_ylim(low - edge, high + edge)
    said = f"Above the axis: the first losses, up to {text.number(highest)}."
    plot.legend_title = f"{plot.legend_title}\n{said}".lstrip()
    return said


def _after(b: Band, x: float) -> Floats:
    """The highest values from x on."""
    return np.append(np.interp(x, b.x, b.high), b.high[b.x >= x])


def _how(bands: Sequence[tuple[int, Band]]) -> str:
    """How the lines and bands were made."""
    seeds = [b.seeds for _, b in bands]
    if max(seeds) == 1:
        return "One seed each, so there are no bands."
    count = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    said = f"Lines are means over {count} seeds, bands reach from the lowest to the highest seed."
    if any(b.tails for _, b in bands):
        said += " A mean ends where its shortest seed ends; thin lines are the rest of the longer ones."
    return said


def _stretch(each: int) -> str:
    if each == 1:
        return ""
    return f" One point is {each} rounds: their mean, and a band over all their values."


def _against(against: str) -> str:
    return "what the run had spent" if against == "cost" else "the rounds done"


def _interval(low: Band, high: Band, place: int) -> str:
    return f"[{text.number(low.mean[place])}, {text.number(high.mean[place])}]"


def _ends(
    title: str,
    methods: Sequence[Method],
    bands: Sequence[tuple[int, Band]],
    x: str,
    y: str,
    show: Callable[[float], str] = text.number,
) -> str:
    """Where each line starts and ends, in words."""
    said = [
        f"{methods[i].label}: from {show(float(b.mean[0]))} to {show(float(b.mean[-1]))} at {text.number(b.x[-1])}"
        for i, b in bands
        if len(b.x)
    ]
    return f"Line chart: {title.lower()}. Horizontal: {x}; vertical: {y}. {'; '.join(said)}."
