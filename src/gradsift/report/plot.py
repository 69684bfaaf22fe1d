"""Draw what all figures share, without matplotlib's global state: axes, means with bands, and a legend below."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from gradsift.report import style, text
from gradsift.report.curves import Band, Curve
from gradsift.report.style import Look

WIDTH, HEIGHT = 4.2, 2.6  # inches; letters can still be read if a phone shows the figure at the width of its screen
LOG_FROM = 20.0  # an axis is logarithmic if its largest value is at least this many times its smallest
STEPS = [1, 2, 2.5, 5, 10]  # between ticks
THIN = 0.7  # width of a thin line
LABEL_LENGTH = 52  # characters of a label in a legend


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with this package's settings of matplotlib, whatever the user has set; restores the user's afterwards."""
    with matplotlib.style.context(["default", style.MATPLOTLIB]), warnings.catch_warnings():
        # DejaVu draws letters that it does not have as boxes; the page has the name in full.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@dataclass
class Plot:
    """A figure under construction; ``done`` returns it."""

    figure: Figure
    axes: Axes
    handles: list[Artist] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    legend_title: str = ""

    @classmethod
    def new(cls, x: str, y: str) -> "Plot":
        """Make a figure with empty axes that have these labels."""
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.add_subplot(xlabel=x, ylabel=y)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS, integer=x == "Rounds"))
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: text.number(value))
        return cls(figure, axes)

    def band(self, band: Band, look: Look, label: str, number: int, *, jumpy: bool = False) -> None:
        """Draw the mean with markers, the band around it, and the tails of longer seeds as thin lines.

        ``number`` is that of the method; ``jumpy`` means that the line goes up and down a lot.
        """
        if band.seeds > 1:
            self.axes.fill_between(band.x, band.low, band.high, color=look.colour, alpha=0.17, linewidth=0)
        for tail in band.tails:
            self.thin(tail, look)
        every: tuple[float, float] | None = None
        if len(band.x) > 8:  # markers of each method start elsewhere, so that they do not cover each other
            step = -(-len(band.x) // 8)
            # A marker every ``step`` points for a jumpy line, otherwise at equal distances along the line.
            every = (number % 7 * step // 7, step) if jumpy else (0.03 + 0.02 * (number % 7), 0.16)
        self.axes.plot(band.x, band.mean, **look.line, **look.markers, markevery=every, zorder=3)
        self.entry(Line2D([], [], **look.line, **look.markers), label)

    def thin(self, curve: Curve, look: Look) -> None:
        """Draw a thin line: a single seed, or a method that is put aside."""
        self.axes.plot(*curve, **{**look.line, "linewidth": THIN})

    def level(self, y: float, label: str) -> None:
        """Draw a horizontal reference line."""
        options: dict[str, Any] = {"color": style.LIGHT["ink"], "linewidth": 0.9, "linestyle": (0, (1, 2))}
        self.axes.axhline(y, **options, zorder=2)
        self.entry(Line2D([], [], **options), label)

    def entry(self, handle: Artist, label: str) -> None:
        """Add an entry to the legend."""
        self.handles.append(handle)
        self.labels.append(text.shortened(label, LABEL_LENGTH))

    def log_y(self) -> None:
        """Make the vertical axis logarithmic, and add "(log scale)" to its label."""
        self.axes.set_yscale("log")
        low, high = self.axes.get_ylim()
        # Below a factor of 100 there are too few powers of ten to read a value from.
        locator = LogLocator(subs=(1, 2, 5), numticks=12) if high / low < 100 else LogLocator(numticks=7)
        self.axes.yaxis.set_major_locator(locator)
        self.axes.yaxis.set_major_formatter(lambda value, _: text.number(value))
        self.axes.yaxis.set_minor_formatter(NullFormatter())
        self.axes.set_ylabel(f"{self.axes.get_ylabel()} (log scale)")

    def done(self) -> Figure:
        """Add the legend below the axes, in as many columns as fit, and make the figure higher by its height."""
        dpi = self.figure.dpi
        for columns in range(min(3, len(self.handles)), 0, -1):
            legend = self.figure.legend(
                self.handles,
                self.labels,
                loc="outside lower left",
                ncols=columns,
                title=self.legend_title or None,
                alignment="left",
                borderaxespad=0.3,
            )
            size = legend.get_window_extent()
            if size.width <= WIDTH * dpi or columns == 1:
                break
            legend.remove()
        self.figure.set_size_inches(max(WIDTH, size.width / dpi), HEIGHT + size.height / dpi)
        # Compute the layout once, not again for every file format.
        self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")
        return self.figure


def needs_log_axis(values: Sequence[float]) -> bool:
    """Return whether the values are positive and the largest is at least LOG_FROM times the smallest."""
    return len(values) > 0 and min(values) > 0 and max(values) / min(values) >= LOG_FROM
