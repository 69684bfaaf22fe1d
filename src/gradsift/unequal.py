"""A k for each client where links differ: one with a slow link sends fewer elements, so that no one waits for it.

A round takes as long as its slowest client. For every largest k there is a time T, and each client sends as many
elements as it can in T; what the server sends back, k elements, is the same for all. Which T is best depends on how
many rounds more are needed if some clients send less: by the law of ``control.law`` (1 + c/k)^0.7, where k is the
harmonic mean of the clients' k_i, since c/k is then the mean of c/k_i.

Shapes: N clients, C kinds of clients with equal links, P points of the table of prices.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from gradsift.control.law import Floats, Prices, guess, least_k, local_c, slowdown
from gradsift.cost import Traffic
from gradsift.method import Method
from gradsift.sparsify.base import TopKUpload

TIMES = 33  # that are tried for each largest k
Expect = Callable[[float, float], Traffic]  # (k up, k down) -> the expected traffic of all N clients


def prices(method: Method, dim: int, points: Floats, expect: Expect) -> Prices | None:
    """The prices of rounds in which each client has a k of its own; None if all have the same link.

    ``points`` are the largest k to consider, ascending.
    """
    if not isinstance(method.sparsifier, TopKUpload):  # others make all messages equally long
        return None
    up = np.array([method.cost.client_costs(expect(k, points[0])) for k in points])  # [P, N]
    if up.ndim < 2 or (up == up[:, :1]).all():
        return None
    down = np.array([method.cost.client_costs(expect(points[0], k)) for k in points])
    both, kind = np.unique(np.concatenate([up, down]), axis=1, return_inverse=True)
    share = np.bincount(kind.reshape(-1)) / up.shape[1]
    sending, receiving = both[: len(points)], both[len(points) :] - both[0]  # [P, C]: their sum is the time of a round
    c = local_c(guess(dim), method.local.computations)
    found = [_shared(points, sending, receiving[place], share, c, place, dim) for place in range(len(points))]
    mean, time, each = (np.array(column) for column in zip(*found, strict=True))
    ascending = np.flatnonzero(np.diff(np.maximum.accumulate(mean), prepend=0.0) > 0)
    table = [tuple(row) for row in each[ascending].T.tolist()]
    of_client = tuple(int(number) for number in kind.reshape(-1))
    return Prices(tuple(mean[ascending].tolist()), tuple(time[ascending].tolist()), tuple(table), of_client)


def _shared(
    points: Floats, sending: Floats, receiving: Floats, share: Floats, c: float, place: int, dim: int
) -> tuple[float, float, Any]:
    """The harmonic mean of k, the time of a round, and [C] the k of each kind, where the largest k is points[place]."""
    least = min(least_k(dim), points[place])
    times = sending + receiving  # [P, C]
    longest = times[place].max()
    shortest = max(times[place].min(), max(np.interp(least, points, column) for column in times.T))
    candidates = np.geomspace(min(shortest, longest), longest, TIMES) if longest > 0 else np.array([longest])
    each = np.stack([np.interp(candidates, column[: place + 1], points[: place + 1]) for column in times.T], axis=1)
    each = each.clip(least, points[place])
    mean = 1 / (1 / each @ share)
    best = int(np.argmin(candidates * slowdown(mean, c)))
    return float(mean[best]), float(candidates[best]), each[best]
