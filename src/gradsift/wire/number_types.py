"""The number types that values may travel as: each value a sign and a magnitude, an integer that grows with |value|.

The magnitude of a floating-point number is its bits without the sign. float16 and int8 are taken of value / scale, with
one scale a message, so that the largest value always fits: float16 by a power of two, int8 by largest / 127.

Shapes: values [k], or [N, k] with one scale a row.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsift.wire.bits import Mask, Unsigned
from gradsift.wire.errors import CodecError

Floats = NDArray[np.floating[Any]]

_SMALLEST_SCALE = 2.0**-126  # a normal float32: it survives where subnormal numbers are flushed to zero


class Signed(NamedTuple):
    """Values as signs and magnitudes."""

    negative: Mask
    magnitude: Unsigned
    scale: Floats  # float32, [] or [N, 1]; 1 where the type has none


class NumberType(NamedTuple):
    """How one type splits a value, and puts it together again."""

    code: int  # in the header
    width: int  # bits of a magnitude
    largest: int  # the magnitude of the largest finite number
    base_bytes: int  # of a magnitude, in the layout
    scaled: bool
    split: Callable[[Floats], Signed]  # of finite values; refuses what would become infinite
    join: Callable[[Signed], Floats]  # float32 (float64 for its own type); may overflow on what ``split`` never made


def number_type(name: str) -> NumberType:
    """The number type of that name."""
    if name not in TYPES:
        raise CodecError(f"unknown value type {name!r}; there are {', '.join(TYPES)}")
    return TYPES[name]


def _split_bits(values: Floats, unsigned: str, width: int) -> Signed:
    bits = values.view(unsigned)
    sign = bits.dtype.type(1 << width)
    return Signed((bits & sign) != 0, bits & (sign - bits.dtype.type(1)), np.ones((), np.float32))


def _join_bits(signed: Signed, unsigned: str, width: int) -> Floats:
    bits = signed.magnitude.astype(unsigned)
    bits |= signed.negative.astype(unsigned) << bits.dtype.type(width)
    return bits.view(f"f{bits.itemsize}")


def _single(values: Floats) -> Floats:
    with np.errstate(over="ignore", under="ignore"):
        single = values.astype(np.float32, copy=False)
    _refuse(values, ~np.isfinite(single), "float32")
    return single


def _refuse(values: Floats, overflow: Mask, name: str) -> None:
    if overflow.any():
        raise CodecError(f"{values[overflow][0]} is too large for {name}")


def _split_single(values: Floats) -> Signed:
    return _split_bits(_single(values), "u4", 31)


def _join_single(signed: Signed) -> Floats:
    return _join_bits(signed, "u4", 31)


def _split_double(values: Floats) -> Signed:
    return _split_bits(values.astype(np.float64, copy=False), "u8", 63)


def _join_double(signed: Signed) -> Floats:
    return _join_bits(signed, "u8", 63)


def _split_brain(values: Floats) -> Signed:
    negative, bits, scale = _split_single(values)
    # The upper half of a float32, rounded to nearest, ties to even.
    magnitude = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    _refuse(values, magnitude > 0x7F7F, "bfloat16")
    return Signed(negative, magnitude.astype(np.uint16), scale)


def _join_brain(signed: Signed) -> Floats:
    return _join_single(signed._replace(magnitude=signed.magnitude.astype(np.uint32) << np.uint32(16)))


def _largest(values: Floats) -> Floats:
    """The largest |value| of each row, shaped as a scale is."""
    largest: Floats = np.abs(values).max(axis=-1, keepdims=values.ndim > 1, initial=0)
    return np.asarray(largest, np.float64)


def _scale(largest: Floats, scale: Floats) -> Floats:
    return np.asarray(np.where(largest > 0, np.maximum(scale, _SMALLEST_SCALE), 1.0), np.float32)


def _split_half(values: Floats) -> Signed:
    values = _single(values)
    largest = _largest(values)
    # The largest comes as high as float16 goes, so the small ones are as far as can be from its underflow; the scale is
    # never above 1 for values that are float16 already, so these stay exact.
    fraction, exponent = np.frexp(largest)
    scale = _scale(largest, np.ldexp(1.0, exponent - np.where(fraction * 2**16 <= 65504, 16, 15)))
    signed = _split_bits((values / scale.astype(np.float64)).astype(np.float16), "u2", 15)._replace(scale=scale)
    _refuse(values, ~np.isfinite(_join_half(signed)), "float16")
    return signed


def _join_half(signed: Signed) -> Floats:
    with np.errstate(over="ignore", under="ignore"):
        return _join_bits(signed, "u2", 15).astype(np.float32) * signed.scale


def _split_byte(values: Floats) -> Signed:
    values = _single(values)
    largest = _largest(values)
    scale = _scale(largest, largest / 127)
    with np.errstate(over="ignore", under="ignore"):
        scale = np.where(np.isfinite(scale * np.float32(127)), scale, np.nextafter(scale, np.float32(0)))
    magnitude = np.minimum(np.rint(np.abs(values) / scale.astype(np.float64)), 127).astype(np.uint8)
    return Signed(np.signbit(values), magnitude, scale)


def _join_byte(signed: Signed) -> Floats:
    magnitude = signed.magnitude.astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        return np.where(signed.negative, -magnitude, magnitude) * signed.scale


TYPES = {
    "float32": NumberType(1, 31, 0x7F7F_FFFF, 4, False, _split_single, _join_single),
    "float64": NumberType(2, 63, 0x7FEF_FFFF_FFFF_FFFF, 8, False, _split_double, _join_double),
    "float16": NumberType(3, 15, 0x7BFF, 2, True, _split_half, _join_half),
    "bfloat16": NumberType(4, 15, 0x7F7F, 2, False, _split_brain, _join_brain),
    "int8": NumberType(5, 7, 127, 1, True, _split_byte, _join_byte),
}
NAMES = {kind.code: name for name, kind in TYPES.items()}
