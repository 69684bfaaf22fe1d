"""What the codec raises."""

from gradsift.errors import GradsiftError


class CodecError(GradsiftError):
    """Bytes that are not a valid message within the limits, or a message that cannot be encoded as asked."""
