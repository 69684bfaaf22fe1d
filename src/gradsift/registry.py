"""Names reach objects: the one table behind ``gradsift.sparsifier("fab-top-k")`` and its like."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from gradsift.errors import GradsiftError

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(Generic[T]):
    """Named classes of one kind."""

    def __init__(self, kind: str, base: type[T]) -> None:
        self.kind, self.base = kind, base
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator: make the class reachable as ``name``, which it then carries as ``.name``."""

        def add(cls: C) -> C:
            if not isinstance(name, str) or not name:
                raise GradsiftError(f"a {self.kind} needs a name, got {name!r}")
            if not (isinstance(cls, type) and issubclass(cls, self.base)):
                raise GradsiftError(f"{cls!r} is not a {self.kind}: it must be a subclass of {self.base.__name__}")
            if name in self._classes:
                raise GradsiftError(f"a {self.kind} named {name!r} is registered already: {self._classes[name]!r}")
            if cls in self._classes.values():  # it carries one name only
                raise GradsiftError(f"{cls!r} is registered already, as {self.kind} {cls.name!r}")  # type: ignore[attr-defined]
            cls.name = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            return cls  # type: ignore[return-value]

        return add

    def holds(self, thing: object) -> bool:
        """Whether ``thing`` is what its name makes, and not of a subclass that only inherited the name."""
        return self._classes.get(getattr(thing, "name", "")) is type(thing)

    def names(self) -> list[str]:
        """Every registered name, sorted."""
        return sorted(self._classes)

    def describe(self, name: str) -> str:
        """What the class called ``name`` says of itself, in one line."""
        return first_line(self._class(name))

    def _class(self, name: str) -> type[T]:
        if not isinstance(name, str) or name not in self._classes:
            raise GradsiftError(f"unknown {self.kind} {name!r}{nearest(name, self.names())}")
        return self._classes[name]

    def make(self, name: str, **options: Any) -> T:
        """Build the object called ``name``; an unknown name or option is refused with the nearest valid one."""
        return construct(f"{self.kind} {name!r}", self._class(name), options)


class MissingOptions(GradsiftError):
    """Options that have no default and were not given."""

    def __init__(self, what: str, options: list[str]) -> None:
        super().__init__(f"{what} needs the option{'s' if len(options) > 1 else ''} {', '.join(options)}")
        self.options = options


def construct(what: str, cls: Callable[..., T], options: Mapping[str, Any]) -> T:
    """Call ``cls`` with ``options``; those it does not take, and those that are missing, are refused by name."""
    check_options(what, cls, options)
    parameters = inspect.signature(cls).parameters.items()
    needed = [name for name, each in parameters if each.default is each.empty and each.kind not in _VARIABLE]
    missing = [name for name in needed if name not in options]
    if missing:
        raise MissingOptions(what, missing)
    return cls(**options)


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_options(
    what: str, function: Callable[..., Any], options: Mapping[str, Any], hidden: Sequence[str] = ()
) -> None:
    """Refuse an option that ``function`` does not take, or that is ``hidden`` from the caller, with the nearest one."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    valid = [name for name, parameter in parameters.items() if name not in hidden and parameter.kind not in _VARIABLE]
    for option in options:
        if option not in valid:
            raise GradsiftError(f"{what} has no option {option!r}{nearest(option, valid)}")


_MOST = 40  # names listed in a message


def first_line(thing: object) -> str:
    """What a class or a function says of itself, in one line."""
    return (thing.__doc__ or "").strip().split("\n")[0]


def nearest(given: object, valid: list[str]) -> str:
    """The end of an error message: the closest valid name if one is close, and all of them."""
    # Without regard to case: "FAB-top-k", as the paper writes it, is as near to "fub-top-k" otherwise.
    lower = {name.lower(): name for name in valid}
    close = difflib.get_close_matches(str(given).lower(), lower, n=1)
    guess = f"; did you mean {lower[close[0]]!r}?" if close else ";"
    listed = valid if len(valid) <= _MOST else [*valid[:_MOST], f"and {len(valid) - _MOST} more"]
    return f"{guess} valid: {', '.join(listed) or 'none'}"
