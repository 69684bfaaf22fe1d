"""The exceptions that gradsift raises."""


class GradsiftError(ValueError):
    """Invalid input, refused before anything is changed; the message quotes the value."""


class UsageError(GradsiftError):
    """A command or a setting that cannot be carried out as given."""


class TakenError(GradsiftError):
    """A run folder that already exists or is in use by another process."""


class RunError(RuntimeError):
    """A run that cannot continue; the message names the round, and what is saved."""


def install(extra: str) -> str:
    """The command that installs the dependencies of an optional feature, for an error message."""
    return f"pip install '.[{extra}]' in a checkout of gradsift"
