"""Numbers and JSON values as a reader wants them."""

import json
import math
from typing import Any

UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def number(value: float, digits: int = 4) -> str:
    """``digits`` significant digits, all digits of the integer part, thousands apart: 0.1235, 12.35, 1,234, 123,457."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size > 14:
        return f"{value:.{digits - 1}e}"
    text = f"{value:,.{max(0, digits - 1 - size)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def fixed(values: list[float], digits: int = 4) -> list[str]:
    """Numbers that stand side by side, all with the decimals that the largest needs for ``digits`` digits."""
    largest = max(map(abs, values))
    if largest == 0 or not 1e-4 <= largest < 1e15:
        return [number(value, digits) for value in values]
    decimals = max(0, digits - 1 - math.floor(math.log10(largest)))
    if all(float(value).is_integer() for value in values):
        decimals = 0
    return [f"{value:,.{decimals}f}" for value in values]


def in_bytes(values: list[float]) -> list[str]:
    """Numbers of bytes, all in the unit of the largest."""
    largest = max(map(abs, values))
    step = 0
    while largest >= 1000 and step < len(UNITS) - 1:
        largest, step = largest / 1000, step + 1
    return [f"{text} {UNITS[step]}" for text in fixed([value / 1000**step for value in values], 3)]


def percent(values: list[float]) -> list[str]:
    """Fractions as percentages with one decimal."""
    return [f"{100 * value:.1f} %" for value in values]


def shortened(value: Any, length: int) -> str:
    """A JSON value on one line of at most ``length`` characters."""
    if isinstance(value, bool) or value is None:
        text = {True: "yes", False: "no", None: "none"}[value]
    elif isinstance(value, int | float):
        text = number(value, 6) if float(value).is_integer() is False else str(int(value))
    else:
        text = " ".join((value if isinstance(value, str) else json.dumps(value)).split())
    return text if len(text) <= length else text[: length - 1] + "…"
