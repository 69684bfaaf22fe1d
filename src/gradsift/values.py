"""Value types: how the values of a message are rounded, and how many bytes they take.

The rounding error stays in the client's residual, because the client subtracts the rounded value from it, and in the
server's memory.

Shapes: a message [k], or [N, k] of N clients.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradsift import check, wire
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

    def expected_size(self, dim: int, k: float) -> float:
        """An estimate of the encoded size in bytes of the k largest of ``dim`` elements."""
        return wire.expected_size(dim, k, values=self.wire_type or "float32")


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


@register_value_type("few-bits")
@dataclass(frozen=True)
class FewBits(ValueType):
    """A sign and one of 2^(bits - 1) levels, which each message has in a table of its own: 1 to 8 bits.

    Zeros stay zeros. Levels are the means of bins that are equally wide in log |value|. With ``stochastic``, levels are
    equally far apart in log |value|, and a value goes up or down at random, so that it is right on average. The draw
    depends only on the value and its index: a repeated run repeats it.
    """

    bits: int = 2
    stochastic: bool = False

    def __post_init__(self) -> None:
        check.integer("bits", self.bits, 1, 8)
        check.boolean("stochastic", self.stochastic)

    def rounded(self, message: Sparse) -> Sparse:
        """The message with each value replaced by its level."""
        if not message.size:
            return message
        levels = min(2 ** (self.bits - 1), 127)  # a table of the wire format has 128 entries, one of them for zero
        size = message.values.abs().double()
        largest = size.amax(-1, keepdim=True)
        part = size / largest.where(largest > 0, 1.0)  # of the largest
        rounded = _drawn(part, levels, _uniform(message)) if self.stochastic else _means(part, levels)
        return message.with_values((rounded * largest).to(message.values.dtype).copysign(message.values))

    def expected_size(self, dim: int, k: float) -> float:
        """That of an index, a sign and a level for each element, and of the table."""
        return wire.expected_size(dim, k, bits=self.bits)


def _fixed_point(part: Tensor) -> tuple[Tensor, float]:
    """Numbers from 0 to 1 as integers, and their unit: a sum of integers does not depend on its order or the device."""
    unit = 2.0 ** -min(40, 62 - part.shape[-1].bit_length())
    return (part / unit).round().long(), unit


def _smallest(part: Tensor, positive: Tensor, total: Tensor) -> Tensor:
    """The smallest size of each row that bins are made for, given which are ``positive`` and what all are together.

    In a dense message sizes may be arbitrarily small: those below a quarter of the mean, which a message of the largest
    elements hardly has, all go to the first bin.
    """
    mean = total / positive.sum(-1, keepdim=True).clamp(min=1)
    smallest = part.where(positive, 1.0).amin(-1, keepdim=True)
    return torch.maximum(smallest, mean / 4).clamp(max=1.0)


def _means(part: Tensor, levels: int) -> Tensor:
    """Each size replaced by the mean of its bin."""
    whole, unit = _fixed_point(part)
    positive = part > 0
    power = 1 - torch.arange(1, levels, dtype=part.dtype, device=part.device) / levels
    smallest = _smallest(part, positive, whole.sum(-1, keepdim=True) * unit)
    bins = torch.searchsorted(smallest**power, part, right=True)
    totals = whole.new_zeros((*part.shape[:-1], levels)).scatter_add_(-1, bins, whole)
    counts = torch.zeros_like(totals).scatter_add_(-1, bins, positive.long())
    return (totals / counts.clamp(min=1) * unit).gather(-1, bins).where(positive, 0.0)


def _drawn(part: Tensor, levels: int, uniform: Tensor) -> Tensor:
    """Each size replaced by the level below or above it at random, or by zero if there is none below."""
    power = torch.linspace(0.0 if levels == 1 else 1.0, 0.0, levels, dtype=part.dtype, device=part.device)
    whole, unit = _fixed_point(part)
    above = _smallest(part, part > 0, whole.sum(-1, keepdim=True) * unit) ** power
    nodes = torch.cat([torch.zeros_like(above[..., :1]), above], dim=-1)
    place = torch.searchsorted(above, part, right=True)
    low, high = nodes.gather(-1, place), nodes.gather(-1, (place + 1).clamp(max=levels))
    return torch.where(uniform * (high - low) < part - low, high, low)


def _uniform(message: Sparse) -> Tensor:
    """A number in [0, 1) for each value and its index, by the mixing function of SplitMix64 (Steele et al., 2014)."""
    mixed = message.values.double().view(torch.int64) ^ (message.indices * -7046029254386353131)  # products wrap around
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ (mixed >> shift & (1 << 64 - shift) - 1)) * factor
    mixed ^= mixed >> 31 & (1 << 33) - 1
    return (mixed >> 11 & (1 << 53) - 1).double() * 2.0**-53
