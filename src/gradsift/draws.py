"""Random numbers keyed by (seed, purpose, client, round), drawn on the host.

The generator is counter-based (Philox, Salmon et al. 2011) and has no state besides its key: every driver draws the
same numbers on any device and in any order, and a resumed run needs no saved generator.
"""

import functools
import hashlib

import numpy as np
from numpy.typing import NDArray

from gradsift.errors import GradsiftError

_LIMIT = 2**64
_BLOCK = 4  # numbers that Philox generates from one value of its counter


def rng(seed: int, purpose: str, *, client: int = 0, number: int = 0) -> np.random.Generator:
    """The generator for one purpose ("minibatch", "rounding", ...) of one client in one round."""
    for name, value in (("seed", seed), ("client", client), ("number", number)):
        if not isinstance(value, int | np.integer) or not 0 <= value < _LIMIT:
            raise GradsiftError(f"{name} must be an integer in [0, 2**64), got {value!r}")
    key = np.array([seed, _code(purpose)], dtype=np.uint64)
    # The generator increments the two low words; the two high words select the stream.
    counter = np.array([0, 0, client, number], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def uniform_rows(seed: int, purpose: str, number: int, clients: range, count: int) -> NDArray[np.float64]:
    """[n, count] uniform draws in [0, 1), a row for each of ``clients``.

    A client's row does not depend on which other clients are drawn: each client has a fixed part of the round's stream,
    to which the generator can advance.
    """
    if clients.step != 1 or clients.start < 0:
        raise GradsiftError(f"clients must be consecutive and not negative, got {clients!r}")
    generator = rng(seed, purpose, number=number)
    blocks = -(-count // _BLOCK)
    generator.bit_generator.advance(clients.start * blocks)  # type: ignore[attr-defined]
    return generator.random((len(clients), blocks * _BLOCK))[:, :count]


@functools.cache
def _code(purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
