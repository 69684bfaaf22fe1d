"""The clients of each round and the samples of their minibatches, drawn by (seed, purpose, client, round)."""

import numpy as np
from numpy.typing import NDArray

from gradsift.draws import rng, uniform_rows

Ints = NDArray[np.int64]
NO_SAMPLE = -1  # padding in the row of a client with fewer samples than the row has places


def participants(num_clients: int, per_round: int | None, seed: int, number: int) -> Ints:
    """The clients of the round or period that starts with round ``number``, in ascending order."""
    if per_round is None or per_round == num_clients:
        return np.arange(num_clients)
    return np.sort(rng(seed, "participants", number=number).choice(num_clients, per_round, replace=False))


def minibatches(size: Ints, batch_size: int, seed: int, step: int) -> Ints:
    """[N, b] the samples in each client's minibatch of a local step: distinct numbers below its ``size``.

    The row of a client with fewer than ``batch_size`` samples has all of them, padded with ``NO_SAMPLE``.
    """
    return subsets(size, uniform_rows(seed, "minibatch", step, range(len(size)), batch_size))


def minibatch(size: int, batch_size: int, seed: int, client: int, step: int) -> Ints:
    """[b] one client's row of ``minibatches`` without padding, drawn without drawing the other rows."""
    return _subset(size, batch_size, seed, "minibatch", client, step)


def probe_samples(batch: Ints, samples: int, seed: int, step: int) -> Ints:
    """[N, s] the places in each client's minibatch, below ``batch``, of the samples to compute probe losses on."""
    return subsets(batch, uniform_rows(seed, "probe-sample", step, range(len(batch)), samples))


def probe_sample(batch: int, samples: int, seed: int, client: int, step: int) -> Ints:
    """[s] one client's row of ``probe_samples`` without padding, drawn without drawing the other rows."""
    return _subset(batch, samples, seed, "probe-sample", client, step)


def _subset(size: int, count: int, seed: int, purpose: str, client: int, step: int) -> Ints:
    row: Ints = subsets(np.array([size]), uniform_rows(seed, purpose, step, range(client, client + 1), count))[0, :size]
    return row


def subsets(size: Ints, draws: NDArray[np.float64]) -> Ints:
    """[N, b] in each row i a uniform random subset of range(size[i]) with b elements, from uniform draws [N, b].

    Floyd's algorithm (Bentley and Floyd, CACM 1987) for all rows at once: each of b steps draws from a range one longer
    than before, and takes the new end of the range if the drawn number is already taken. If size[i] < b, the row has
    all of range(size[i]), padded with ``NO_SAMPLE``.
    """
    wanted = np.minimum(size, draws.shape[1])
    chosen = np.full(draws.shape, NO_SAMPLE, dtype=np.int64)
    for j in range(wanted.max()):
        last = size - wanted + j
        picked = np.minimum((draws[:, j] * (last + 1)).astype(np.int64), last)
        taken = (chosen[:, :j] == picked[:, None]).any(axis=1)
        chosen[:, j] = np.where(taken, last, picked)
    if wanted.min() < draws.shape[1]:
        chosen[np.arange(draws.shape[1]) >= wanted[:, None]] = NO_SAMPLE
    return chosen
