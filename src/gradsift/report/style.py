"""Choose the colour, the dashes and the marker of each method, so that two methods never differ by colour alone.

The colours are Okabe and Ito's, changed until each has a contrast of 3 to 1 with the paper and all can be told apart
with protanopia, deuteranopia and tritanopia (tests/report/test_style.py measures both). Figures are drawn in the light
colours; the page replaces each by a CSS variable, which has another value in dark mode.
"""

from typing import Any, NamedTuple

LIGHT = {"ink": "#1b1f24", "paper": "#ffffff", "axis": "#6b7480", "grid": "#dfe3e8"}
DARK = {"ink": "#eef1f4", "paper": "#15181c", "axis": "#99a3af", "grid": "#2f353d"}
LIGHT_LINES = ("#0a558c", "#d96500", "#009e73", "#c46aa0", "#70480c", "#4c94f0", "#1b1f25")
DARK_LINES = ("#56a9f0", "#f0843c", "#2bc79a", "#e79ac8", "#f2cb4c", "#a9dbff", "#f2f4f7")

# In points, for a line of width 1.5. With five dashes and seven colours, 35 methods have different pairs.
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2), (2, 1.5), (7, 2, 1.5, 2), (10, 2, 3, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")

MATPLOTLIB: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so figures are the same everywhere
    "font.size": 9,
    "text.parse_math": False,  # a method's name may contain a dollar sign
    "text.hinting": "none",  # so that letters have the same size in the layout as in SVG
    "text.color": LIGHT["ink"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.edgecolor": LIGHT["axis"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.7,
    "xtick.color": LIGHT["axis"],
    "ytick.color": LIGHT["axis"],
    "xtick.labelcolor": LIGHT["ink"],
    "ytick.labelcolor": LIGHT["ink"],
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.title_fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 3.4,
    "legend.columnspacing": 1.4,
    "legend.labelspacing": 0.45,
    "lines.markersize": 4.2,
    "figure.facecolor": LIGHT["paper"],
    "axes.facecolor": LIGHT["paper"],
}


class Look(NamedTuple):
    """The look of one method in every figure."""

    colour: str
    dashes: tuple[float, ...]
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Matplotlib's options for the line."""
        return {"color": self.colour, "linestyle": (0, self.dashes) if self.dashes else "solid", "linewidth": 1.5}

    @property
    def markers(self) -> dict[str, Any]:
        """Matplotlib's options for the markers; an edge in the colour of the paper sets them off from lines below."""
        return {"marker": self.marker, "markeredgecolor": LIGHT["paper"], "markeredgewidth": 0.6}


ASIDE = Look(LIGHT["axis"], (), "")  # of a method that is put aside: thin and without markers


def look(method: int) -> Look:
    """Return the look of the method with this number, counted from 0."""
    return Look(LIGHT_LINES[method % len(LIGHT_LINES)], DASHES[method % len(DASHES)], MARKERS[method % len(MARKERS)])


def css_variables(dark: bool) -> dict[str, str]:
    """Return the colour of each CSS variable, for light or dark mode."""
    named, lines = (DARK, DARK_LINES) if dark else (LIGHT, LIGHT_LINES)
    colours = named | {f"line{i}": colour for i, colour in enumerate(lines)}
    return {f"--{name}": colour for name, colour in colours.items()}
