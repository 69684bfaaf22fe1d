"""What gradsift raises when it is given something it must not work with."""


class GradsiftError(ValueError):
    """Bad input, refused before anything changed; the message names the value."""
