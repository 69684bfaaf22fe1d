"""Every random draw of gradsift, keyed by (seed, purpose, client, round) and made on the host.

A counter-based generator (Philox, Salmon et al. 2011) makes the key the whole state: any driver, on any device, in any
order, draws the same numbers, and a resumed run needs no saved generator.
"""

import functools
import hashlib

import numpy as np

from gradsift.errors import GradsiftError

_LIMIT = 2**64


def rng(seed: int, purpose: str, *, client: int = 0, number: int = 0) -> np.random.Generator:
    """The generator for one purpose ("minibatch", "rounding", ...) of one client in one round."""
    for name, value in (("seed", seed), ("client", client), ("number", number)):
        if not isinstance(value, int | np.integer) or not 0 <= value < _LIMIT:
            raise GradsiftError(f"{name} must be an integer in [0, 2**64), got {value!r}")
    key = np.array([seed, _code(purpose)], dtype=np.uint64)
    # The generator counts in the two low words; the two high ones are ours.
    counter = np.array([0, 0, client, number], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


@functools.cache
def _code(purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
