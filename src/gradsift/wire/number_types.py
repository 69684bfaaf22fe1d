"""The number types in which values may be sent, each value as a sign and a magnitude.

A magnitude is an unsigned integer that grows with |value|: the bits of a floating-point number without its sign, or the
rounded integer of int8. float16 and int8 hold value / scale, with one scale for each message, so that the largest value
always fits: the scale of float16 is a power of two, that of int8 is largest / 127.

Shapes: values [k], or [N, k] with one scale for each row.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsift.wire.bits import CodecError, Mask, Unsigned

Floats = NDArray[np.floating[Any]]

_SMALLEST_SCALE = 2.0**-126  # a normal float32: processors that flush subnormal numbers to zero keep it


class Signed(NamedTuple):
    """Values as signs and magnitudes."""

    negative: Mask
    magnitude: Unsigned
    scale: Floats  # float32, [] or [N, 1]; 1 if the type has no scale


class NumberType(NamedTuple):
    """One number type: its fields in the layout, and how to split values into signs and magnitudes and back."""

    code: int  # in the header
    width: int  # bits of a magnitude
    largest: int  # the magnitude of the largest finite number
    base_bytes: int  # of a magnitude, in the layout
    scaled: bool
    split: Callable[[Floats], Signed]  # for finite values; raises CodecError for a value that would become infinite
    join: Callable[[Signed], Floats]  # float64 for float64, else float32; decoded bytes may make it overflow
    table_code: int | None = None  # in the header, if the magnitudes are in a table; None: they never are


def number_type(name: str) -> NumberType:
    """Return the number type called ``name``."""
    if name not in TYPES:
        raise CodecError(f"unknown value type {name!r}; valid: {', '.join(TYPES)}")
    return TYPES[name]


def _split_bits(values: Floats) -> Signed:
    bits = values.view(f"u{values.itemsize}")
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    return Signed((bits & sign) != 0, bits & ~sign, np.ones((), np.float32))


def _join_bits(signed: Signed, size: int) -> Floats:
    """Return floating-point numbers of ``size`` bytes."""
    bits = signed.magnitude.astype(f"u{size}")
    bits |= signed.negative.astype(bits.dtype) << bits.dtype.type(8 * size - 1)
    return bits.view(f"f{size}")


def _float32(values: Floats) -> Floats:
    with np.errstate(over="ignore", under="ignore"):
        rounded = values.astype(np.float32, copy=False)
    _refuse(values, ~np.isfinite(rounded), "float32")
    return rounded


def _refuse(values: Floats, overflow: Mask, name: str) -> None:
    if overflow.any():
        raise CodecError(f"{values[overflow][0]} is too large for {name}")


def _split_float32(values: Floats) -> Signed:
    return _split_bits(_float32(values))


def _split_float64(values: Floats) -> Signed:
    return _split_bits(values.astype(np.float64, copy=False))


def _split_bfloat16(values: Floats) -> Signed:
    negative, bits, scale = _split_float32(values)
    # The upper half of a float32, rounded to nearest, ties to even.
    magnitude = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    _refuse(values, magnitude > 0x7F7F, "bfloat16")
    return Signed(negative, magnitude.astype(np.uint16), scale)


def _join_bfloat16(signed: Signed) -> Floats:
    return _join_bits(signed._replace(magnitude=signed.magnitude.astype(np.uint32) << np.uint32(16)), 4)


def _largest(values: Floats) -> Floats:
    """Return the largest |value| of each row, in the shape of a scale."""
    largest: Floats = np.abs(values).max(axis=-1, keepdims=values.ndim > 1, initial=0)
    return np.asarray(largest, np.float64)


def _scale(largest: Floats, scale: Floats) -> Floats:
    return np.asarray(np.where(largest > 0, np.maximum(scale, _SMALLEST_SCALE), 1.0), np.float32)


def _split_float16(values: Floats) -> Signed:
    values = _float32(values)
    largest = _largest(values)
    # The largest value is scaled to just below float16's overflow, which keeps the small ones far from its underflow.
    # Values that are float16 already stay exact, because their scale is never above 1.
    fraction, exponent = np.frexp(largest)
    scale = _scale(largest, np.ldexp(1.0, exponent - np.where(fraction * 2**16 <= 65504, 16, 15)))
    signed = _split_bits((values / scale.astype(np.float64)).astype(np.float16))._replace(scale=scale)
    _refuse(values, ~np.isfinite(_join_float16(signed)), "float16")
    return signed


def _join_float16(signed: Signed) -> Floats:
    with np.errstate(over="ignore", under="ignore"):
        return _join_bits(signed, 2).astype(np.float32) * signed.scale


def _split_int8(values: Floats) -> Signed:
    values = _float32(values)
    largest = _largest(values)
    scale = _scale(largest, largest / 127)
    with np.errstate(over="ignore", under="ignore"):
        scale = np.where(np.isfinite(scale * np.float32(127)), scale, np.nextafter(scale, np.float32(0)))
    magnitude = np.minimum(np.rint(np.abs(values) / scale.astype(np.float64)), 127).astype(np.uint8)
    return Signed(np.signbit(values), magnitude, scale)


def _join_int8(signed: Signed) -> Floats:
    magnitude = signed.magnitude.astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        return np.where(signed.negative, -magnitude, magnitude) * signed.scale


TYPES = {
    "float32": NumberType(1, 31, 0x7F7F_FFFF, 4, False, _split_float32, partial(_join_bits, size=4), 6),
    "float64": NumberType(2, 63, 0x7FEF_FFFF_FFFF_FFFF, 8, False, _split_float64, partial(_join_bits, size=8), 7),
    "float16": NumberType(3, 15, 0x7BFF, 2, True, _split_float16, _join_float16),
    "bfloat16": NumberType(4, 15, 0x7F7F, 2, False, _split_bfloat16, _join_bfloat16),
    "int8": NumberType(5, 7, 127, 1, True, _split_int8, _join_int8),
}
NAMES = {code: name for name, kind in TYPES.items() for code in (kind.code, kind.table_code) if code is not None}
