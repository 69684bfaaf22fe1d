"""The error that the wire format raises."""

from gradsift.errors import GradsiftError


class CodecError(GradsiftError):
    """Bytes that are not a valid message within the limits, or a sparse vector that cannot be encoded."""
