"""Who takes part in a round, and on which samples; every draw keyed by (seed, purpose, client, round)."""

import numpy as np
from numpy.typing import NDArray

from gradsift.draws import rng, uniform_rows

Ints = NDArray[np.int64]
NO_SAMPLE = -1  # in the row of a client that has fewer samples than the others


def participants(num_clients: int, per_round: int | None, seed: int, number: int) -> Ints:
    """The clients of the round (or period) that starts at ``number``, ascending."""
    if per_round is None or per_round == num_clients:
        return np.arange(num_clients)
    return np.sort(rng(seed, "participants", number=number).choice(num_clients, per_round, replace=False))


def minibatches(size: Ints, batch_size: int, seed: int, step: int) -> Ints:
    """[N, b] which of its ``size`` samples make each client's minibatch of a local step, without repetition.

    A client with fewer than ``batch_size`` takes all it has; the rest of its row is ``NO_SAMPLE``.
    """
    return subsets(size, uniform_rows(seed, "minibatch", step, range(len(size)), batch_size))


def minibatch(size: int, batch_size: int, seed: int, client: int, step: int) -> Ints:
    """[b] one client's row of ``minibatches``, drawn without the others; as long as its data, where that is less."""
    draws = uniform_rows(seed, "minibatch", step, range(client, client + 1), batch_size)
    row: Ints = subsets(np.array([size]), draws)[0, :size]
    return row


def probe_samples(batch: Ints, samples: int, seed: int, step: int) -> Ints:
    """[N, s] which samples of its minibatch of ``batch`` samples each client takes its losses on."""
    return subsets(batch, uniform_rows(seed, "probe-sample", step, range(len(batch)), samples))


def probe_sample(batch: int, samples: int, seed: int, client: int, step: int) -> Ints:
    """[s] one client's row of ``probe_samples``, drawn without the others."""
    draws = uniform_rows(seed, "probe-sample", step, range(client, client + 1), samples)
    row: Ints = subsets(np.array([batch]), draws)[0, :batch]
    return row


def subsets(size: Ints, draws: NDArray[np.float64]) -> Ints:
    """[N, b] a uniform random subset of b of range(size[i]) in each row, from uniform draws [N, b].

    Floyd's algorithm (Bentley and Floyd, CACM 1987), all rows at once: b steps, each a draw from a range one longer
    than the last; where it was taken already, the new end of the range is taken. A row with fewer than b to choose from
    has all of them, and ``NO_SAMPLE`` behind.
    """
    wanted = np.minimum(size, draws.shape[1])
    chosen = np.empty(draws.shape, dtype=np.int64)
    for j in range(draws.shape[1]):
        last = size - wanted + j
        picked = np.minimum((draws[:, j] * (last + 1)).astype(np.int64), last)
        taken = (chosen[:, :j] == picked[:, None]).any(axis=1)
        chosen[:, j] = np.where(taken, last, picked)
    if wanted.min() < draws.shape[1]:
        chosen[np.arange(draws.shape[1]) >= wanted[:, None]] = NO_SAMPLE
    return chosen
