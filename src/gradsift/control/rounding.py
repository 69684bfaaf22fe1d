"""Definition 2, randomized k-element GS: unbiased stochastic rounding of a real k to an integer."""

import math

from gradsift.check import integer, real
from gradsift.draws import rng
from gradsift.errors import GradsiftError


def round_k(k: float, seed: int, number: int, client: int = 0) -> int:
    """floor(k) with probability ceil(k) - k, else ceil(k); the draw is keyed by (seed, client, round)."""
    return _round(k, seed, number, client, "rounding")


def round_probe_k(probe_k: float, used_k: int, seed: int, number: int, client: int = 0) -> int:
    """k' rounded in the same way, then clamped to [1, used_k - 1].

    It is not clamped to k_min: at k = k_min there would be no k' below k, hence no sign, and k would never change.
    """
    integer("used_k", used_k, 1)
    real("probe_k", probe_k)
    if used_k < 2:
        raise GradsiftError(f"k = {used_k} leaves no k' below it to probe")
    return min(max(_round(max(probe_k, 1.0), seed, number, client, "probe-rounding"), 1), used_k - 1)


def _round(k: float, seed: int, number: int, client: int, purpose: str) -> int:
    real("k", k, low=1)
    integer("round number", number, 1)
    floor = math.floor(k)
    return floor + (rng(seed, purpose, client=client, number=number).random() < k - floor)
