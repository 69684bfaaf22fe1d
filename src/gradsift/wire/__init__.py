"""The wire format: encode a sparse vector in few bytes, and decode bytes from untrusted senders.

    data = encode(upload)                        # lossless; or values="float16", "bfloat16", "int8"
    back = decode(data, Limits.of(dim, k))       # raises CodecError, and nothing else, if data is not a valid message
    sent = transmitted(upload, values="int8")    # the values after rounding, which settle must subtract
    up_bytes = encoded_size(uploads)             # [N], for Traffic.of(..., up_bytes=...)
    about = expected_size(dim, k, bits=2)        # an estimate, before there is a message

docs/wire.md describes the layout.
"""

from gradsift.wire.bits import CodecError
from gradsift.wire.codec import encode, encoded_size, transmitted
from gradsift.wire.expected import expected_size
from gradsift.wire.message import Limits, decode
from gradsift.wire.number_types import TYPES

VALUE_TYPES = tuple(TYPES)

__all__ = ["VALUE_TYPES", "CodecError", "Limits", "decode", "encode", "encoded_size", "expected_size", "transmitted"]
