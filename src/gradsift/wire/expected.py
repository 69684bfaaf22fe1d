"""Estimate the size of a message from its number of elements alone, before there is one.

The estimate takes the k indices to be any of the C(dim, k) sets alike, and the values to be the k largest of ``dim``
magnitudes with an exponential tail: x = t + E, where t = ln(dim / k) is the threshold and E is exponential with mean 1.
The high bits of a floating-point magnitude are its logarithm, so a value takes the bits of the mantissa, one for the
sign, and the differential entropy of log2 x, which is log2(e) - log2(ln 2) - E[log2 x].
"""

import math

from gradsift import check
from gradsift.wire.number_types import number_type

_MANTISSA = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}  # bits; int8 has equal steps instead
_ENTROPY = math.log2(math.e) - math.log2(math.log(2))
_AT_ZERO = math.exp(-0.5772156649)  # exp(E[ln x]) for t = 0, where E[ln x] is minus Euler's constant
_LARGEST_INT8 = 127
# Measured on random messages: Huffman's code over the entropy, and the bytes of headers and code tables.
_INDEX_FACTOR = 1.02
_INDEX_BYTES = 4  # and half a byte for each bit of the largest gaps
_OTHER_BYTES = 19


def expected_size(dim: int, k: float, *, values: str = "float32") -> float:
    """Estimate how many bytes ``encode`` needs for the k largest of ``dim`` elements, with values of this type.

    Clustered indices and runs of equal signs make real messages smaller: docs/plan.md has measurements.
    """
    check.integer("dim", dim, 1)
    check.real("k", k, 1, dim)
    kind = number_type(values)
    threshold = math.log(dim / k)
    if values in _MANTISSA:
        bits = 1 + _MANTISSA[values] + _ENTROPY - math.log2(threshold + _shift(threshold))
    else:  # the largest of dim magnitudes is near ln(dim), and there are 127 steps up to it
        bits = 1 + math.log2(math.e * _LARGEST_INT8 / max(1.0, math.log(dim)))
    header = _OTHER_BYTES + math.log2(dim * k) / 7 + 4 * kind.scaled + kind.base_bytes - 4
    return header + _index_bytes(dim, k) + k * bits / 8


def _shift(threshold: float) -> float:
    """exp(E[ln(t + E)]) - t: exp(-Euler's constant) at 0, and near 1 for large t."""
    return 1 - (1 - _AT_ZERO) / (1 + threshold)


def _index_bytes(dim: int, k: float) -> float:
    """The size of a random set of k of ``dim`` indices: its entropy, nearly, or a bitmap."""
    if k >= dim:
        return 0.0
    entropy = k * math.log2(dim / k) - (dim - k) * math.log1p(-k / dim) / math.log(2)
    return min(1 + dim / 8, _INDEX_BYTES + math.log2(dim / k) / 2 + _INDEX_FACTOR * entropy / 8)
