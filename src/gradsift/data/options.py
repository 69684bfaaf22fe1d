"""Functions called by name with options from outside: an option they do not have is refused with the nearest one."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from gradsift.errors import GradsiftError
from gradsift.registry import nearest

T = TypeVar("T")


def check_options(what: str, function: Callable[..., T], options: dict[str, Any], hidden: tuple[str, ...] = ()) -> None:
    """Refuse an option that is not a parameter of ``function``, or that is ``hidden`` from the caller."""
    valid = [name for name in inspect.signature(function).parameters if name not in hidden]
    for option in options:
        if option not in valid:
            raise GradsiftError(f"{what} has no option {option!r}{nearest(option, valid)}")
