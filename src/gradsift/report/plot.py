"""Parts of every figure: one pair of axes, a legend below it, and bands over seeds. Matplotlib without its globals."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from gradsift.report import style, text
from gradsift.report.curves import Band, Curve
from gradsift.report.style import Look

WIDTH, HEIGHT = 4.2, 2.6  # inches; a phone shows the width as its own, with letters that can still be read
LOG_FROM = 20.0  # an axis whose largest value is so many times its smallest is logarithmic
STEPS = [1, 2, 2.5, 5, 10]  # from one tick to the next
LABEL_LENGTH = 52  # characters of a label in a legend


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib's own defaults and ours, whatever the user has set; put back afterwards."""
    with matplotlib.style.context(["default", style.MATPLOTLIB]), warnings.catch_warnings():
        # A name in a script that DejaVu has no letters for is drawn as boxes; the page has it in full.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@dataclass
class Plot:
    """A figure in the making."""

    figure: Figure
    axes: Axes
    handles: list[Artist] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    legend_title: str = ""

    @classmethod
    def new(cls, x: str, y: str) -> "Plot":
        """Empty axes with these labels."""
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS, integer=x == "Rounds"))
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS))
        plain = FuncFormatter(lambda value, _: text.number(value))
        axes.xaxis.set_major_formatter(plain)
        axes.yaxis.set_major_formatter(plain)
        return cls(figure, axes)

    def band(self, band: Band, look: Look, label: str, number: int, *, jumpy: bool = False) -> None:
        """The mean with its markers, the band around it, and the tails of longer seeds as thin lines."""
        if band.seeds > 1:
            self.axes.fill_between(band.x, band.low, band.high, color=look.colour, alpha=0.17, linewidth=0)
        for tail in band.tails:
            self.thin(tail, look)
        every: tuple[float, float] | None = None
        if len(band.x) > 8:  # each method starts elsewhere
            step = -(-len(band.x) // 8)
            # In points of a line that jumps up and down, in parts of the diagonal along any other.
            every = (number % 7 * step // 7, step) if jumpy else (0.03 + 0.02 * (number % 7), 0.16)
        self.axes.plot(band.x, band.mean, **look.line, **look.markers, markevery=every, zorder=3)
        self.entry(Line2D([], [], **look.line, **look.markers), label)

    def thin(self, curve: Curve, look: Look) -> None:
        """One seed by itself."""
        self.axes.plot(*curve, **{**look.line, "linewidth": 0.7})

    def level(self, y: float, label: str) -> None:
        """A horizontal line to compare with."""
        options: dict[str, Any] = {"color": style.LIGHT["ink"], "linewidth": 0.9, "linestyle": (0, (1, 2))}
        self.axes.axhline(y, **options, zorder=2)
        self.entry(Line2D([], [], **options), label)

    def patch(self, look: Look, label: str) -> None:
        """A legend entry for a shaded area."""
        self.entry(Patch(facecolor=look.colour, alpha=0.17), label)

    def entry(self, handle: Artist, label: str) -> None:
        """A line of the legend."""
        self.handles.append(handle)
        self.labels.append(text.shortened(label, LABEL_LENGTH))

    def log_y(self) -> None:
        """A logarithmic axis, which says so."""
        self.axes.set_yscale("log")
        self.axes.yaxis.set_major_locator(LogLocator(numticks=7))
        self.axes.yaxis.set_minor_formatter(NullFormatter())
        low, high = self.axes.get_ylim()
        if high / low < 100:  # too few powers of ten to read a value from
            self.axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        self.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text.number(value)))
        self.axes.set_ylabel(f"{self.axes.get_ylabel()} (log scale)")

    def bytes_y(self) -> None:
        """Bytes with their unit at each tick."""
        self.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick_bytes(value)))

    def done(self) -> Figure:
        """Add the legend below the axes, in as many columns as fit, and make the figure higher by its height."""
        if not self.handles:
            return self.figure
        renderer = self.figure.canvas.get_renderer()  # type: ignore[attr-defined]
        room = WIDTH * self.figure.dpi
        for columns in (3, 2, 1):
            if columns > len(self.handles):
                continue
            legend = self.figure.legend(
                self.handles,
                self.labels,
                loc="outside lower left",
                ncols=columns,
                title=self.legend_title or None,
                alignment="left",
                borderaxespad=0.3,
            )
            size = legend.get_window_extent(renderer)
            if size.width <= room or columns == 1:
                break
            legend.remove()
        self.figure.set_size_inches(max(WIDTH, size.width / self.figure.dpi), HEIGHT + size.height / self.figure.dpi)
        # Find the places once, not again for every format.
        self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")
        return self.figure


def spans(values: Sequence[float]) -> bool:
    """Whether positive values are so far apart that they need a logarithmic axis."""
    return len(values) > 0 and min(values) > 0 and max(values) / min(values) >= LOG_FROM


def _tick_bytes(value: float) -> str:
    (amount,), unit = text.in_bytes([value])
    return f"{text.number(float(amount.replace(',', '')))} {unit}"
