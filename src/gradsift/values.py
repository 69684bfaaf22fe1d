"""Value types: how the values of an upload are rounded, and how many bytes they take.

What rounding takes from a value stays in the client's residual: it settles with the value that arrived.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradsift import wire
from gradsift.registry import Registry
from gradsift.sparse import Sparse


class ValueType(ABC):
    """How values travel. A new one defines ``rounded``; it is sent without a further loss, in the type it returns."""

    name: ClassVar[str] = ""
    wire_type: ClassVar[str | None] = None  # the type of the wire format that rounds; None: the values' own, exact

    @abstractmethod
    def rounded(self, message: Sparse) -> Sparse:
        """The message [k] or [N, k] as it arrives; the indices stay as they are."""

    def encode(self, message: Sparse) -> bytes:
        """One message [k] as bytes: decoding gives what ``rounded`` gives."""
        return wire.encode(self.rounded(message), values=self.wire_type)

    def encoded_size(self, rounded: Sparse) -> NDArray[np.int64]:
        """Bytes of a message that was rounded: [] for one [k], [N] for one a row of [N, k]; none for an empty one."""
        if not rounded.size:
            return np.zeros(rounded.indices.shape[:-1], dtype=np.int64)
        return wire.encoded_size(rounded, values=self.wire_type)


_REGISTRY: Registry[ValueType] = Registry("value type", ValueType)  # type: ignore[type-abstract]
register_value_type = _REGISTRY.register
describe = _REGISTRY.describe
registered = _REGISTRY.holds
value_types = _REGISTRY.names


def value_type(name: str, **options: Any) -> ValueType:
    """The value type called ``name``, such as ``"int8"``; ``value_types()`` lists them."""
    return _REGISTRY.make(name, **options)


@register_value_type("exact")
@dataclass(frozen=True)
class Exact(ValueType):
    """Values travel as they are."""

    def rounded(self, message: Sparse) -> Sparse:
        """The message itself."""
        return message


class _WireType(ValueType):
    """Rounded by the wire format."""

    def rounded(self, message: Sparse) -> Sparse:
        """Rounded as ``wire.encode`` rounds."""
        return wire.transmitted(message, values=self.wire_type)

    def encode(self, message: Sparse) -> bytes:
        """The wire format rounds while it encodes."""
        return wire.encode(message, values=self.wire_type)


@register_value_type("float32")
@dataclass(frozen=True)
class Float32(_WireType):
    """Single precision: 32 bits before entropy coding."""

    wire_type: ClassVar[str | None] = "float32"


@register_value_type("float64")
@dataclass(frozen=True)
class Float64(_WireType):
    """Double precision: 64 bits before entropy coding."""

    wire_type: ClassVar[str | None] = "float64"


@register_value_type("float16")
@dataclass(frozen=True)
class Float16(_WireType):
    """Half precision with one scale a message: 16 bits before entropy coding."""

    wire_type: ClassVar[str | None] = "float16"


@register_value_type("bfloat16")
@dataclass(frozen=True)
class BFloat16(_WireType):
    """The upper half of a float32: 16 bits before entropy coding."""

    wire_type: ClassVar[str | None] = "bfloat16"


@register_value_type("int8")
@dataclass(frozen=True)
class Int8(_WireType):
    """Whole multiples of one scale a message, -127 to 127: 8 bits before entropy coding."""

    wire_type: ClassVar[str | None] = "int8"
