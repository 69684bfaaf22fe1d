"""Objects as JSON values, for configurations that are written down and compared."""

import dataclasses
import math
import platform
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradsift.version import __version__


def options(thing: object) -> dict[str, Any]:
    """The fields of a dataclass; anything else by its text."""
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        return {"text": text(thing)}
    return {field.name: plain(getattr(thing, field.name)) for field in dataclasses.fields(thing)}


def named(thing: object) -> dict[str, Any]:
    """The class of an object and its options."""
    return {"class": type(thing).__name__, **options(thing)}


def plain(value: Any) -> Any:
    """A value as JSON; what JSON does not have, by its text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return named(value)
    if isinstance(value, np.ndarray | np.generic | Tensor):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return text(value)


def text(thing: Any) -> str:
    """The name of a function or class, else ``repr``, without addresses, which differ from process to process."""
    if hasattr(thing, "__qualname__"):
        return qualified_name(thing)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def qualified_name(thing: Any) -> str:
    """module.name."""
    return f"{thing.__module__}.{thing.__qualname__}"


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """Where two configurations differ, each as ``name.part was old, not new``."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        within = f"{name}." if name else ""
        parts = sorted(old.keys() | new.keys())
        return [line for part in parts for line in differences(old.get(part), new.get(part), within + part)]
    return [] if old == new else [f"{name} was {old!r}, not {new!r}"]


def versions() -> dict[str, str]:
    """The versions of what decides the numbers of a run."""
    return {
        "gradsift": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": sys.platform,
    }
