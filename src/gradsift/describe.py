"""Convert objects to JSON values, for configurations that are saved and compared."""

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


def options(part: object) -> dict[str, Any]:
    """The fields of a dataclass instance; of any other object its ``text``."""
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return {"text": text(part)}
    return {field.name: plain(getattr(part, field.name)) for field in dataclasses.fields(part)}


def named(part: object) -> dict[str, Any]:
    """The class name of an object and its ``options``."""
    return {"class": type(part).__name__, **options(part)}


def slot(part: object) -> dict[str, Any]:
    """The name of a method's part and its ``options``; a class without a name of its own is ``module:Class``."""
    cls = type(part)
    return {"name": vars(cls).get("name") or f"{cls.__module__}:{cls.__qualname__}", **options(part)}


def plain(value: Any) -> Any:
    """A value as JSON; a value that JSON does not have becomes its ``text``."""
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


def text(value: Any) -> str:
    """The name of a function or class, or else ``repr`` without memory addresses, which differ between processes."""
    if hasattr(value, "__qualname__"):
        return qualified_name(value)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def qualified_name(function: Any) -> str:
    """The name of a function or class with its module, ``module.name``."""
    return f"{function.__module__}.{function.__qualname__}"


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """The differences between two configurations, each as ``name.key was old, not new``."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        prefix = f"{name}." if name else ""
        keys = sorted(old.keys() | new.keys())
        return [line for key in keys for line in differences(old.get(key), new.get(key), prefix + key)]
    return [] if old == new else [f"{name} was {old!r}, not {new!r}"]


def versions() -> dict[str, str]:
    """The versions of the software that a run's numbers depend on."""
    return {
        "gradsift": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": sys.platform,
    }
