"""Who takes part in a round, and on which samples; every draw keyed by (seed, purpose, client, round)."""

import numpy as np
from numpy.typing import NDArray

from gradsift.draws import rng

Ints = NDArray[np.int64]


def participants(num_clients: int, per_round: int | None, seed: int, number: int) -> Ints:
    """The clients of the round (or period) that starts at ``number``, ascending."""
    if per_round is None or per_round == num_clients:
        return np.arange(num_clients)
    return np.sort(rng(seed, "participants", number=number).choice(num_clients, per_round, replace=False))


def minibatch(size: int, batch_size: int, seed: int, client: int, number: int) -> Ints:
    """[b] which of a client's ``size`` samples make its minibatch, without repetition."""
    return rng(seed, "minibatch", client=client, number=number).choice(size, batch_size, replace=False)


def probe_sample(batch_size: int, samples: int, seed: int, client: int, number: int) -> Ints:
    """[s] which samples of a client's minibatch its losses are taken on."""
    return rng(seed, "probe-sample", client=client, number=number).choice(batch_size, samples, replace=False)
