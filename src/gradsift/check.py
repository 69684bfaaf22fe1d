"""Checks of numbers, flags and paths, whose errors quote the value; ``Checked`` wraps an object to check every call.

This module does not import torch.
"""

import math
import numbers
import operator
import os
from pathlib import Path
from typing import Any, TypeVar

from gradsift.errors import GradsiftError

T = TypeVar("T")


def integer(name: str, value: object, low: int, high: int | None = None, *, optional: bool = False) -> None:
    """Require an integer (not a bool, not 2.0) in [low, high], or None if ``optional`` is set."""
    if optional and value is None:
        return
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise GradsiftError(f"{name} must be an integer, got {value!r}") from None
    _in_range(name, value, number, low, math.inf if high is None else high)


def real(
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: float = -math.inf,
    optional: bool = False,
) -> None:
    """Require a finite real number (not a bool) in [low, high] and above ``above``, or None if ``optional`` is set."""
    if optional and value is None:
        return
    try:
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer too large for a float
        number = math.nan
    if not math.isfinite(number):
        raise GradsiftError(f"{name} must be a finite number, got {value!r}")
    _in_range(name, value, number, low, high)
    if number <= above:
        raise GradsiftError(f"{name} must be above {above:g}, got {value!r}")


def boolean(name: str, value: object) -> None:
    """Require True or False themselves, not another value that counts as true or false."""
    if not isinstance(value, bool):
        raise GradsiftError(f"{name} must be True or False, got {value!r}")


def path(name: str, value: object) -> Path:
    """``value`` as a path; require a non-empty string or a path."""
    if not isinstance(value, str | Path) or not str(value):
        raise GradsiftError(f"{name} must be a path, got {value!r:.80}")
    return Path(value)


def folder(name: str, value: Path) -> None:
    """Require a path that is a folder or can become one: its nearest existing parent is a folder."""
    existing = next((path for path in (value, *value.parents) if os.path.lexists(path)), None)
    if existing is not None and not existing.is_dir():
        raise GradsiftError(f"{name} must be a folder, got {str(value)!r}: {str(existing)!r} is not one")


def _in_range(name: str, value: object, number: float, low: float, high: float) -> None:
    if low <= number <= high:
        return
    span = f"at least {low:g}" if high == math.inf else f"in [{low}, {high}]"
    raise GradsiftError(f"{name} must be {span}, got {value!r}")


class Checked:
    """Base of a class that checks the arguments of every call before it passes the call to ``inner``."""

    def __init__(self, inner: Any, *constants: str) -> None:
        self.inner = inner
        # Class attributes, which ``__getattr__`` is not called for.
        vars(self).update({name: getattr(inner, name) for name in constants})

    def __getattr__(self, name: str) -> Any:
        if "inner" not in vars(self):  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return repr(self.inner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checked) and self.inner == other.inner

    def __hash__(self) -> int:
        return hash(self.inner)


def unchecked(part: T) -> T:
    """The object inside a ``Checked``, for a driver that has checked its arguments; any other object as it is."""
    return part.inner if isinstance(part, Checked) else part
