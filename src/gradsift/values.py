"""Value types: how the values of an upload are rounded, and how many bytes they take.

The rounding error stays in the client's residual, because the client subtracts the rounded value from it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradsift import wire
from gradsift.registry import Registry
from gradsift.sparse import Sparse


class ValueType(ABC):
    """How values are rounded. A new one defines ``rounded``, whose result is sent exactly, in its own dtype."""

    name: ClassVar[str] = ""
    wire_type: ClassVar[str | None] = None  # the wire format's type that rounds the values; None sends them exactly

    @abstractmethod
    def rounded(self, message: Sparse) -> Sparse:
        """The message [k] or [N, k] as it is received: the same indices with rounded values."""

    def encode(self, message: Sparse) -> bytes:
        """One message [k] as bytes, which decode to the result of ``rounded``."""
        return wire.encode(self.rounded(message), values=self.wire_type)

    def encoded_size(self, rounded: Sparse) -> NDArray[np.int64]:
        """The encoded size in bytes of a rounded message: [] for [k], [N] for [N, k]; 0 for an empty message."""
        if not rounded.size:
            return np.zeros(rounded.indices.shape[:-1], dtype=np.int64)
        return wire.encoded_size(rounded, values=self.wire_type)


_REGISTRY: Registry[ValueType] = Registry("value type", ValueType)  # type: ignore[type-abstract]
value_type = _REGISTRY.make  # such as value_type("int8"); ``value_types()`` lists the names
register_value_type = _REGISTRY.register
describe = _REGISTRY.describe
registered = _REGISTRY.registered
value_types = _REGISTRY.names


@register_value_type("exact")
@dataclass(frozen=True)
class Exact(ValueType):
    """Values are sent without rounding."""

    def rounded(self, message: Sparse) -> Sparse:
        """The message itself."""
        return message


class _WireType(ValueType):
    """A value type that the wire format rounds to while it encodes."""

    type: ClassVar[str]  # the name in the wire format

    def __init_subclass__(cls) -> None:
        """Leave the rounding to the wire format, unless a subclass rounds in its own way."""
        cls.wire_type = None if "rounded" in vars(cls) else vars(cls).get("type", cls.wire_type)

    def rounded(self, message: Sparse) -> Sparse:
        """The message with its values rounded as ``wire.encode`` rounds them."""
        return wire.transmitted(message, values=self.type)

    def encode(self, message: Sparse) -> bytes:
        """One message [k] as bytes."""
        return super().encode(message) if self.wire_type is None else wire.encode(message, values=self.wire_type)


@register_value_type("float32")
@dataclass(frozen=True)
class Float32(_WireType):
    """Single precision: 32 bits before entropy coding."""

    type: ClassVar[str] = "float32"


@register_value_type("float64")
@dataclass(frozen=True)
class Float64(_WireType):
    """Double precision: 64 bits before entropy coding."""

    type: ClassVar[str] = "float64"


@register_value_type("float16")
@dataclass(frozen=True)
class Float16(_WireType):
    """Half precision with one scale per message: 16 bits before entropy coding."""

    type: ClassVar[str] = "float16"


@register_value_type("bfloat16")
@dataclass(frozen=True)
class BFloat16(_WireType):
    """The upper half of a float32: 16 bits before entropy coding."""

    type: ClassVar[str] = "bfloat16"


@register_value_type("int8")
@dataclass(frozen=True)
class Int8(_WireType):
    """Integers from -127 to 127 times one scale per message: 8 bits before entropy coding."""

    type: ClassVar[str] = "int8"
