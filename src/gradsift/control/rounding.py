"""Definition 2, randomized k-element GS: unbiased stochastic rounding of a real k to an integer."""

import math

from gradsift.check import integer, real
from gradsift.control.base import K
from gradsift.draws import rng
from gradsift.errors import GradsiftError

UsedK = int | tuple[int, ...]  # one number for all clients, or one per client


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


def rounded(k: K, seed: int, number: int) -> UsedK:
    """The proposed k as integers: one for all clients, or one per client."""
    if isinstance(k, tuple):
        return tuple(round_k(real_k, seed, number, client) for client, real_k in enumerate(k))
    return round_k(k, seed, number)


def rounded_probe(probe_k: K, k: UsedK, seed: int, number: int) -> UsedK:
    """The proposed k' as integers below ``k``, the k in use."""
    if isinstance(k, int):
        if isinstance(probe_k, tuple):
            raise GradsiftError(f"the controller proposed one k for all clients, but {len(probe_k)} values of k'")
        return round_probe_k(probe_k, k, seed, number)
    probe_ks = probe_k if isinstance(probe_k, tuple) else (probe_k,) * len(k)
    if len(probe_ks) != len(k):
        raise GradsiftError(f"the controller proposed k for {len(k)} clients, but k' for {len(probe_ks)}")
    # A client with k = 1 also has k' = 1: there is no k' below 1.
    return tuple(
        round_probe_k(smaller, client_k, seed, number, client) if client_k > 1 else 1
        for client, (smaller, client_k) in enumerate(zip(probe_ks, k, strict=True))
    )


def _round(k: float, seed: int, number: int, client: int, purpose: str) -> int:
    real("k", k, low=1)
    integer("round number", number, 1)
    floor = math.floor(k)
    return int(floor + (rng(seed, purpose, client=client, number=number).random() < k - floor))
