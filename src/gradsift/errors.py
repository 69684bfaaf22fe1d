"""What gradsift raises when it is given something it must not work with."""


class GradsiftError(ValueError):
    """Bad input, refused before anything changed; the message names the value."""


class UsageError(GradsiftError):
    """A command or a setting that cannot be carried out as it was given."""


class TakenError(GradsiftError):
    """A run folder that another process has, or that was there before."""


class RunError(RuntimeError):
    """A run that could not go on; the message says where it stood and what is kept."""


def install(extra: str) -> str:
    """How to get what an optional part needs, for its message."""
    return f"pip install '.[{extra}]' in a checkout of gradsift"
