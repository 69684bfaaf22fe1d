"""The wire format: a ``Sparse`` as bytes, near or below its entropy, exact, and safe to decode from strangers.

    data = encode(upload)                        # lossless; or values="float16", "bfloat16", "int8"
    back = decode(data, Limits.of(dim, k))       # CodecError, never anything else, on bytes that are not a message
    sent = transmitted(upload, values="int8")    # what arrives: settle must subtract this
    up_bytes = encoded_size(uploads)             # [N], for Traffic.of(..., up_bytes=...)

docs/wire.md has the layout.
"""

from gradsift.wire.codec import encode, encoded_size, transmitted
from gradsift.wire.errors import CodecError
from gradsift.wire.message import Limits, decode
from gradsift.wire.number_types import TYPES

VALUE_TYPES = tuple(TYPES)

__all__ = ["VALUE_TYPES", "CodecError", "Limits", "decode", "encode", "encoded_size", "transmitted"]
