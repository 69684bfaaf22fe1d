"""Who takes part in a round, and on which samples; every draw keyed by (seed, purpose, client, round)."""

import numpy as np
from numpy.typing import NDArray

from gradsift.draws import rng, uniform_rows

Ints = NDArray[np.int64]


def participants(num_clients: int, per_round: int | None, seed: int, number: int) -> Ints:
    """The clients of the round (or period) that starts at ``number``, ascending."""
    if per_round is None or per_round == num_clients:
        return np.arange(num_clients)
    return np.sort(rng(seed, "participants", number=number).choice(num_clients, per_round, replace=False))


def minibatches(size: Ints, batch_size: int, seed: int, number: int) -> Ints:
    """[N, b] which of its ``size`` samples make each client's minibatch, without repetition."""
    return subsets(size, uniform_rows(seed, "minibatch", number, range(len(size)), batch_size))


def minibatch(size: int, batch_size: int, seed: int, client: int, number: int) -> Ints:
    """[b] one client's row of ``minibatches``, drawn without the others."""
    draws = uniform_rows(seed, "minibatch", number, range(client, client + 1), batch_size)
    row: Ints = subsets(np.array([size]), draws)[0]
    return row


def probe_samples(num_clients: int, batch_size: int, samples: int, seed: int, number: int) -> Ints:
    """[N, s] which samples of its minibatch each client takes its losses on."""
    draws = uniform_rows(seed, "probe-sample", number, range(num_clients), samples)
    return subsets(np.full(num_clients, batch_size), draws)


def probe_sample(batch_size: int, samples: int, seed: int, client: int, number: int) -> Ints:
    """[s] one client's row of ``probe_samples``, drawn without the others."""
    draws = uniform_rows(seed, "probe-sample", number, range(client, client + 1), samples)
    row: Ints = subsets(np.array([batch_size]), draws)[0]
    return row


def subsets(size: Ints, draws: NDArray[np.float64]) -> Ints:
    """[N, b] a uniform random subset of b of range(size[i]) in each row, from uniform draws [N, b].

    Floyd's algorithm (Bentley and Floyd, CACM 1987), all rows at once: b steps, each a draw from a range one longer
    than the last; where it was taken already, the new end of the range is taken.
    """
    count = draws.shape[1]
    chosen = np.empty(draws.shape, dtype=np.int64)
    for j in range(count):
        last = size - count + j
        picked = np.minimum((draws[:, j] * (last + 1)).astype(np.int64), last)
        taken = (chosen[:, :j] == picked[:, None]).any(axis=1)
        chosen[:, j] = np.where(taken, last, picked)
    return chosen
