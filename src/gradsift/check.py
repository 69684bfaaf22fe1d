"""Checks of plain values: options, observations, rounds, places. Each error names the value; torch is not imported."""

import math
import numbers
import operator
import os
from pathlib import Path

from gradsift.errors import GradsiftError


def integer(name: str, value: object, low: int, high: int | None = None) -> None:
    """``value`` is an integer (not a bool, not 2.0) in [low, high]."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise GradsiftError(f"{name} must be an integer, got {value!r}") from None
    _in_range(name, value, number, low, math.inf if high is None else high)


def real(name: str, value: object, low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf) -> None:
    """``value`` is a finite real number (not a bool) in [low, high], and more than ``above``."""
    try:
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer beyond the floats
        number = math.nan
    if not math.isfinite(number):
        raise GradsiftError(f"{name} must be a finite number, got {value!r}")
    _in_range(name, value, number, low, high)
    if number <= above:
        raise GradsiftError(f"{name} must be above {above:g}, got {value!r}")


def boolean(name: str, value: object) -> None:
    """``value`` is True or False, not what passes for them."""
    if not isinstance(value, bool):
        raise GradsiftError(f"{name} must be True or False, got {value!r}")


def path(name: str, value: object) -> Path:
    """``value`` as a path; what is neither text nor a path, or empty, is refused."""
    if not isinstance(value, str | Path) or not str(value):
        raise GradsiftError(f"{name} must be a path, got {value!r:.80}")
    return Path(value)


def folder(name: str, value: Path) -> None:
    """``value`` is a folder, or can become one: the nearest of its parents that exists is a folder."""
    there = next((place for place in (value, *value.parents) if os.path.lexists(place)), None)
    if there is not None and not there.is_dir():
        raise GradsiftError(f"{name} must be a folder, got {str(value)!r}: {str(there)!r} is not one")


def _in_range(name: str, value: object, number: float, low: float, high: float) -> None:
    if low <= number <= high:
        return
    span = f"at least {low:g}" if high == math.inf else f"in [{low}, {high}]"
    raise GradsiftError(f"{name} must be {span}, got {value!r}")
