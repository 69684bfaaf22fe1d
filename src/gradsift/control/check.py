"""Checks of plain numbers: options, observations, rounds. Each error names the value. Torch-free, as all of control."""

import math
import numbers
import operator

from gradsift.errors import GradsiftError


def real(name: str, value: object, low: float = -math.inf, *, above: float = -math.inf) -> None:
    """``value`` is a finite real number (not a bool), at least ``low`` and more than ``above``."""
    try:
        finite = isinstance(value, (float, numbers.Real)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond the floats
        finite = False
    if not finite:
        raise GradsiftError(f"{name} must be a finite number, got {value!r}")
    if value < low:  # type: ignore[operator]
        raise GradsiftError(f"{name} must be at least {low:g}, got {value!r}")
    if value <= above:  # type: ignore[operator]
        raise GradsiftError(f"{name} must be above {above:g}, got {value!r}")


def integer(name: str, value: object, low: int) -> None:
    """``value`` is an integer (not a bool, not 2.0), at least ``low``."""
    try:
        if isinstance(value, bool):
            raise TypeError
        fine = operator.index(value) >= low  # type: ignore[arg-type]
    except TypeError:
        raise GradsiftError(f"{name} must be an integer, got {value!r}") from None
    if not fine:
        raise GradsiftError(f"{name} must be at least {low}, got {value!r}")
