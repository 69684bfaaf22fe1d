"""Format numbers, JSON values and tables as text."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

Table = tuple[list[str], list[list[str]]]  # column names, and the cells of each line

UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
# Control characters, surrogates and noncharacters, which XML or UTF-8 cannot hold.
UNWRITABLE = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def number(value: float, digits: int = 4) -> str:
    """Format a number to ``digits`` significant digits, the integer part in full: 0.1235, 12.35, 1,234, 123,457."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size > 14:
        return f"{value:.{digits - 1}e}"
    text = f"{value:,.{max(0, digits - 1 - size)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def fixed(values: list[float], digits: int = 4) -> list[str]:
    """Format numbers that are shown side by side, with the decimals that the largest needs for ``digits`` digits."""
    largest = max(map(abs, values))
    if largest == 0 or not 1e-4 <= largest < 1e15:
        return [number(value, digits) for value in values]
    decimals = max(0, digits - 1 - math.floor(math.log10(largest)))
    return [f"{value:,.{decimals}f}" for value in values]


def in_bytes(values: list[float]) -> tuple[list[str], str]:
    """Format numbers of bytes in the unit that suits the largest; returns also that unit."""
    largest = max(map(abs, values))
    step = 0
    while largest >= 1000 and step < len(UNITS) - 1:
        largest, step = largest / 1000, step + 1
    return fixed([value / 1000**step for value in values], 3), UNITS[step]


def some_bytes(value: float) -> str:
    """Format one number of bytes with its unit, without trailing zeros."""
    (amount,), unit = in_bytes([value])
    return f"{number(float(amount.replace(',', '')))} {unit}"


def percent(value: float) -> str:
    """Format a fraction as a percentage."""
    return f"{number(100 * value, 3)}\N{NO-BREAK SPACE}%"


def clean(value: str) -> str:
    """Replace each character that XML or UTF-8 cannot hold by U+FFFD."""
    return UNWRITABLE.sub("\ufffd", value)


def plain(value: Any) -> str:
    """Format a JSON value in full."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return number(value, 6) if isinstance(value, float) else json.dumps(value)


def shortened(value: Any, length: int) -> str:
    """Format a JSON value on one line of at most ``length`` characters."""
    text = " ".join(plain(value).split())
    return text if len(text) <= length else text[: length - 1] + "…"


def aligned(rows: Sequence[Sequence[object]]) -> str:
    """Format a table for the terminal, one line per row; the first row is the heading."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def markdown(names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    rows = [names, ["---"] * len(names), *lines]
    return "".join("| " + " | ".join(cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row) + " |\n" for row in rows)
