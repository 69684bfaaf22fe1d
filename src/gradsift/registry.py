"""Tables of named classes, from which ``gradsift.sparsifier("fab-top-k")`` and the like build objects."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from gradsift.errors import GradsiftError

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(Generic[T]):
    """The named classes of one kind, such as all sparsifiers."""

    def __init__(self, kind: str, base: type[T]) -> None:
        self.kind, self.base = kind, base
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator that enters a class under ``name`` and sets its attribute ``name``."""

        def add(cls: C) -> C:
            if not isinstance(name, str) or not name:
                raise GradsiftError(f"a {self.kind} needs a name, got {name!r}")
            if not (isinstance(cls, type) and issubclass(cls, self.base)):
                raise GradsiftError(f"{cls!r} is not a {self.kind}: it must be a subclass of {self.base.__name__}")
            if name in self._classes:
                raise GradsiftError(f"a {self.kind} named {name!r} is registered already: {self._classes[name]!r}")
            if cls in self._classes.values():  # its attribute can hold one name only
                raise GradsiftError(f"{cls!r} is registered already, as {self.kind} {cls.name!r}")  # type: ignore[attr-defined]
            cls.name = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            return cls  # type: ignore[return-value]

        return add

    def registered(self, instance: object) -> bool:
        """Whether the class of ``instance`` is itself registered, and not only a base class that it inherits from."""
        return type(instance) in self._classes.values()

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._classes)

    def describe(self, name: str) -> str:
        """The first line of the docstring of the class registered as ``name``."""
        return first_line(self._class(name))

    def _class(self, name: str) -> type[T]:
        if not isinstance(name, str) or name not in self._classes:
            raise GradsiftError(f"unknown {self.kind} {name!r}{nearest(name, self.names())}")
        return self._classes[name]

    def make(self, name: str, **options: Any) -> T:
        """An instance of the class registered as ``name``; errors about a wrong name or option suggest the nearest."""
        return construct(f"{self.kind} {name!r}", self._class(name), options)


class MissingOptions(GradsiftError):
    """Required options are missing; ``options`` lists them."""

    def __init__(self, what: str, options: list[str]) -> None:
        super().__init__(f"{what} needs the option{'s' if len(options) > 1 else ''} {', '.join(options)}")
        self.options = options


def construct(what: str, cls: Callable[..., T], options: Mapping[str, Any]) -> T:
    """Call ``cls`` with ``options``, or raise an error that names the unknown or missing ones."""
    check_options(what, cls, options)
    missing = [
        name
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in _VARIABLE and name not in options
    ]
    if missing:
        raise MissingOptions(what, missing)
    return cls(**options)


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_options(
    what: str, function: Callable[..., Any], options: Mapping[str, Any], hidden: Sequence[str] = ()
) -> None:
    """Refuse an option that ``function`` does not take, or that is ``hidden``, and suggest the nearest valid one."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    valid = [name for name, parameter in parameters.items() if name not in hidden and parameter.kind not in _VARIABLE]
    for option in options:
        if option not in valid:
            raise GradsiftError(f"{what} has no option {option!r}{nearest(option, valid)}")


def first_line(documented: object) -> str:
    """The first line of the docstring of a class or function."""
    return (documented.__doc__ or "").strip().split("\n")[0]


_MAX_LISTED = 40  # names in an error message


def nearest(given: object, valid: list[str]) -> str:
    """The end of an error message about a wrong name: the closest valid name, if one is close, and all valid names."""
    # Case is ignored: otherwise "FAB-top-k", as the paper writes it, is as close to "fub-top-k" as to "fab-top-k".
    lower = {name.lower(): name for name in valid}
    close = difflib.get_close_matches(str(given).lower(), lower, n=1)
    guess = f"; did you mean {lower[close[0]]!r}?" if close else ";"
    listed = valid if len(valid) <= _MAX_LISTED else [*valid[:_MAX_LISTED], f"and {len(valid) - _MAX_LISTED} more"]
    return f"{guess} valid: {', '.join(listed) or 'none'}"
