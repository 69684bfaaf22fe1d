"""Rounding to few bits in plain Python: the slow obvious twin of ``gradsift.values.FewBits``.

A message is a dict from index to value. Loops and lists, no torch but where a message is taken apart.
"""

import math
import struct

import torch

from gradsift.sparse import Sparse
from gradsift.values import ValueType
from tests.reference.literal import Message, as_message

WORD = 2**64
UNITS = 2**40  # means are taken of whole numbers, of so many to a power of two: in any order they are the same


def level_count(bits: int) -> int:
    """One bit is the sign. A table of the wire format has room for 127 levels and zero."""
    return int(min(2 ** (bits - 1), 127))


def power_of_two(largest: float) -> float:
    """The largest power of two that is not above it."""
    return math.ldexp(0.5, math.frexp(largest)[1])


def mean(sizes: list[float]) -> float:
    """The mean of numbers that are not far above 1."""
    return sum(round(size * UNITS) for size in sizes) / len(sizes) / UNITS


def smallest_of(sizes: list[float]) -> float:
    """Where the bins begin: at the smallest, or at a quarter of the mean if that is larger."""
    return min(max(sizes), max(min(sizes), mean(sizes) / 4))


def between(smallest: float, largest: float, part: float) -> float:
    """What is this part of the way from the smallest to the largest, in the logarithm."""
    return float(largest * (smallest / largest) ** (1 - part))


def edges(sizes: list[float], levels: int) -> list[float]:
    """The borders between bins that are equally wide in the logarithm."""
    smallest, largest = smallest_of(sizes), max(sizes)
    return [between(smallest, largest, n / levels) for n in range(1, levels)]


def nodes(sizes: list[float], levels: int) -> list[float]:
    """Zero, and levels that are equally far apart in the logarithm."""
    smallest, largest = smallest_of(sizes), max(sizes)
    return [0.0, *(between(smallest, largest, n / (levels - 1)) for n in range(levels - 1)), largest]


def few_bits(message: Message, bits: int) -> Message:
    """Each value replaced by its sign times the mean size of those in its bin; zeros stay zeros."""
    sizes = {j: abs(value) for j, value in message.items() if value != 0}
    if not sizes:
        return dict(message)
    scale = power_of_two(max(sizes.values()))
    scaled = {j: size / scale for j, size in sizes.items()}
    borders = edges(list(scaled.values()), level_count(bits))
    bins: dict[int, list[float]] = {}
    for size in scaled.values():
        bins.setdefault(bin_of(size, borders), []).append(size)
    rounded = dict(message)
    for j, size in scaled.items():
        level = min(max(mean(bins[bin_of(size, borders)]), min(scaled.values())), max(scaled.values())) * scale
        rounded[j] = level if message[j] > 0 else -level
    return rounded


def bin_of(size: float, borders: list[float]) -> int:
    """How many borders are not above it."""
    return sum(border <= size for border in borders)


def few_bits_at_random(message: Message, bits: int) -> Message:
    """Each value replaced by its sign times the level below its size, or the one above it; zero is a level too."""
    sizes = {j: abs(value) for j, value in message.items() if value != 0}
    if not sizes:
        return dict(message)
    scale = power_of_two(max(sizes.values()))
    scaled = {j: size / scale for j, size in sizes.items()}
    levels, rounded = nodes(list(scaled.values()), level_count(bits)), dict(message)
    for j, size in scaled.items():
        below = max(level for level in levels if level <= size)
        above = min((level for level in levels if level > size), default=below)
        level = (above if draw(message[j], j) * (above - below) < size - below else below) * scale
        rounded[j] = level if message[j] > 0 else -level
    return rounded


def draw(value: float, index: int) -> float:
    """A number in [0, 1) for a value and its index: the finalizer of SplitMix64, on integers without a size."""
    mixed = struct.unpack("<Q", struct.pack("<d", value))[0] ^ (index * 0x9E3779B97F4A7C15 % WORD)
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % WORD
    mixed ^= mixed >> 31
    return float((mixed >> 11) / 2**53)


class LiteralFewBits(ValueType):
    """The value type for one message [k]: tensors in, tensors out."""

    def __init__(self, bits: int, stochastic: bool = False) -> None:
        self.bits, self.stochastic = bits, stochastic

    def rounded(self, message: Sparse) -> Sparse:
        """The message with each value replaced by its level."""
        rounding = few_bits_at_random if self.stochastic else few_bits
        rounded = rounding(as_message(message), self.bits)
        values = [rounded[j] for j in message.indices.tolist()]
        return message.with_values(torch.tensor(values, dtype=message.values.dtype))
