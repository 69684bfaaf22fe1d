"""Estimate the size of a message from its number of elements alone, before there is one.

The estimate takes the k indices to be any of the C(dim, k) sets alike, and the values to be the k largest of ``dim``
magnitudes with an exponential tail: x = t + E, where t = ln(dim / k) is the threshold and E is exponential with mean 1.
The high bits of a floating-point magnitude are its logarithm, so a value takes the bits of the mantissa, one for the
sign, and the differential entropy of log2 x, which is log2(e) - log2(ln 2) - E[log2 x]. Values of a few bits are taken
to be rounded to levels that are equally spaced in log x, between the smallest and the largest.
"""

import math
from itertools import pairwise

from gradsift import check
from gradsift.wire.bits import CodecError
from gradsift.wire.levels import MAX_LEVELS
from gradsift.wire.number_types import number_type

_MANTISSA = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}  # bits; int8 has equal steps instead
_ENTROPY = math.log2(math.e) - math.log2(math.log(2))
_EULER = 0.5772156649
_AT_ZERO = math.exp(-_EULER)  # exp(E[ln x]) for t = 0, where E[ln x] is minus Euler's constant
_LARGEST_INT8 = 127
# Measured on random messages: Huffman's code over the entropy, and the bytes of headers and code tables.
_INDEX_FACTOR = 1.02
_INDEX_BYTES = 4  # and half a byte for each bit of the largest gaps
_OTHER_BYTES = 19
_LEVEL_FACTOR = 1.01
_MAX_BITS = MAX_LEVELS.bit_length()


def expected_size(dim: int, k: float, *, values: str = "float32", bits: int | None = None) -> float:
    """Estimate how many bytes ``encode`` needs for the k largest of ``dim`` elements, with values of this type.

    With ``bits``, the values are rounded to a sign and one of 2**(bits - 1) levels, numbers of the type float32 or
    float64, before they are encoded.

    Clustered indices and runs of equal signs make real messages smaller: docs/plan.md has measurements.
    """
    check.integer("dim", dim, 1)
    check.real("k", k, 1, dim)
    kind = number_type(values)
    others = _OTHER_BYTES + math.log2(dim * k) / 7 + _index_bytes(dim, k)
    plain = 4 * kind.scaled + kind.base_bytes - 4 + k * _value_bits(dim, k, values) / 8
    if bits is None:
        return others + plain
    check.integer("bits", bits, 1, _MAX_BITS)
    if kind.table_code is None:
        raise CodecError(f"the levels of values of a few bits are float32 or float64, not {values}")
    return others + min(plain, _level_bytes(dim, k, 2 ** (bits - 1), kind.base_bytes))


def _value_bits(dim: int, k: float, values: str) -> float:
    """The bits of a value and its sign."""
    threshold = math.log(dim / k)
    if values in _MANTISSA:
        return 1 + _MANTISSA[values] + _ENTROPY - math.log2(threshold + _shift(threshold))
    # The largest of dim magnitudes is near ln(dim), and there are 127 steps up to it.
    return 1 + math.log2(math.e * _LARGEST_INT8 / max(1.0, math.log(dim)))


def _level_bytes(dim: int, k: float, levels: int, level_bytes: int) -> float:
    """The bytes of values rounded to levels, and of the table of those levels that occur."""
    threshold = math.log(dim / k)
    largest = threshold + math.log(k) + _EULER
    smallest = min(max(threshold + 1 / (k + 1), (threshold + 1) / 4), largest)  # as ``FewBits`` has it
    edges = [smallest * math.pow(largest / smallest, level / levels) for level in range(1, levels)]
    above = [1.0, *(math.exp(threshold - edge) for edge in edges), 0.0]
    shares = [lower - upper for lower, upper in pairwise(above)]
    entropy = -sum(share * math.log2(share) for share in shares if share > 0)
    occur = sum(1 - math.pow(1 - share, k) for share in shares)
    return (level_bytes + 0.5) * occur + k * (1 + _LEVEL_FACTOR * entropy) / 8


def _shift(threshold: float) -> float:
    """exp(E[ln(t + E)]) - t: exp(-Euler's constant) at 0, and near 1 for large t."""
    return 1 - (1 - _AT_ZERO) / (1 + threshold)


def _index_bytes(dim: int, k: float) -> float:
    """The size of a random set of k of ``dim`` indices: its entropy, nearly, or a bitmap."""
    if k >= dim:
        return 0.0
    entropy = k * math.log2(dim / k) - (dim - k) * math.log1p(-k / dim) / math.log(2)
    return min(1 + dim / 8, _INDEX_BYTES + math.log2(dim / k) / 2 + _INDEX_FACTOR * entropy / 8)
