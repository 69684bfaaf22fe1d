"""Rounding to few bits in plain Python: the slow obvious twin of ``gradsift.values.FewBits``.

A message is a dict from index to value. Loops and lists, no torch but where a message is taken apart.
"""

import struct

import torch

from gradsift.sparse import Sparse
from gradsift.values import ValueType
from tests.reference.literal import Message, as_message

WORD = 2**64
UNITS = 2**40  # means are taken of whole numbers, of so many to the largest: in any order they are the same


def level_count(bits: int) -> int:
    """One bit is the sign. A table of the wire format has room for 127 levels and zero."""
    return int(min(2 ** (bits - 1), 127))


def smallest_of(parts: list[float]) -> float:
    """Where the bins begin: at the smallest, or at a quarter of the mean if that is larger."""
    return min(1.0, max(min(parts), mean(parts) / 4))


def mean(parts: list[float]) -> float:
    """The mean of numbers from 0 to 1."""
    return sum(round(part * UNITS) for part in parts) / len(parts) / UNITS


def edges(smallest: float, levels: int) -> list[float]:
    """The borders between ``levels`` bins from ``smallest`` to 1 that are equally wide in the logarithm."""
    return [smallest ** (1 - n / levels) for n in range(1, levels)]


def few_bits(message: Message, bits: int) -> Message:
    """Each value replaced by its sign times the mean size of those in its bin; zeros stay zeros."""
    sizes = {j: abs(value) for j, value in message.items() if value != 0}
    if not sizes:
        return dict(message)
    largest = max(sizes.values())
    parts = {j: size / largest for j, size in sizes.items()}
    borders = edges(smallest_of(list(parts.values())), level_count(bits))
    bins: dict[int, list[float]] = {}
    for part in parts.values():
        bins.setdefault(bin_of(part, borders), []).append(part)
    rounded = dict(message)
    for j, part in parts.items():
        fellows = bins[bin_of(part, borders)]
        level = mean(fellows) * largest
        rounded[j] = level if message[j] > 0 else -level
    return rounded


def bin_of(part: float, borders: list[float]) -> int:
    """How many borders are not above it."""
    return sum(border <= part for border in borders)


def few_bits_at_random(message: Message, bits: int) -> Message:
    """Each value replaced by its sign times the level below its size, or the one above it; zero is a level too."""
    sizes = {j: abs(value) for j, value in message.items() if value != 0}
    if not sizes:
        return dict(message)
    largest, count = max(sizes.values()), level_count(bits)
    smallest = smallest_of([size / largest for size in sizes.values()])
    levels = [0.0, *(smallest ** (1 - n / (count - 1)) for n in range(count - 1)), 1.0]
    rounded = dict(message)
    for j, size in sizes.items():
        part = size / largest
        below = max(level for level in levels if level <= part)
        above = min((level for level in levels if level > part), default=below)
        level = (above if draw(message[j], j) * (above - below) < part - below else below) * largest
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
