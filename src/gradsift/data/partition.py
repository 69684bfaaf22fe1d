"""Partition samples among clients: pure functions from labels [n] to client numbers [n], 0 to clients - 1.

Every client gets at least one sample. The same labels, clients and seed give the same partition on every machine.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsift import check
from gradsift.draws import rng
from gradsift.errors import GradsiftError
from gradsift.registry import nearest

Clients = NDArray[np.int64]

PARTITIONS = ["natural", "one-class", "dirichlet", "iid"]
DEFAULT_ALPHA = 0.5


def natural(ids: ArrayLike) -> Clients:
    """Keep the clients of the data (a writer, a site): number ids of any type in sorted order."""
    owners = np.asarray(ids)
    if owners.ndim != 1 or len(owners) == 0:
        raise GradsiftError(f"ids must name one owner for each sample, got shape {list(owners.shape)}")
    return np.unique(owners, return_inverse=True)[1].astype(np.int64)


def iid(labels: ArrayLike, clients: int, *, seed: int = 0) -> Clients:
    """Distribute the samples at random; the sizes of clients differ by at most one sample."""
    samples = len(np.asarray(labels))
    _check(samples, clients, seed)
    owner = np.empty(samples, dtype=np.int64)
    owner[rng(seed, "partition").permutation(samples)] = np.arange(samples) % clients
    return owner


def one_class(labels: ArrayLike, clients: int, *, seed: int = 0) -> Clients:
    """Give each client one class, as the paper does for CIFAR-10: client i has the (i mod K)-th of the K classes.

    The samples of a class are distributed at random among its clients, whose sizes differ by at most one sample.
    """
    number, classes = _numbered(labels)
    _check(len(number), clients, seed)
    if clients < len(classes):
        raise GradsiftError(f"{clients} clients with one class each cannot hold {len(classes)} classes")
    source = rng(seed, "partition")
    owner = np.empty(len(number), dtype=np.int64)
    for index, label in enumerate(classes):
        holders = np.arange(index, clients, len(classes))
        rows = source.permutation(np.flatnonzero(number == index))
        if len(rows) < len(holders):
            raise GradsiftError(f"class {label} has {len(rows)} samples for {len(holders)} clients")
        owner[rows] = holders[np.arange(len(rows)) % len(holders)]
    return owner


def dirichlet(
    labels: ArrayLike, clients: int, *, alpha: float = DEFAULT_ALPHA, at_least: int = 1, seed: int = 0
) -> Clients:
    """Split each class among the clients in proportions drawn from a symmetric Dirichlet(alpha).

    With a small alpha few clients have most of a class; a large alpha is nearly i.i.d. Clients with fewer than
    ``at_least`` samples are then filled up, in ascending order, one sample at a time. A sample is taken from the client
    with most samples: the last of the class of which it has most. In a tie the lowest client or class is taken.
    """
    number, classes = _numbered(labels)
    _check(len(number), clients, seed)
    check.real("alpha", alpha, above=0)
    check.integer("at_least", at_least, 1)
    if clients * at_least > len(number):
        raise GradsiftError(f"{clients} clients with at least {at_least} samples each need more than {len(number)}")
    source = rng(seed, "partition")
    owner = np.empty(len(number), dtype=np.int64)
    for index in range(len(classes)):
        rows = source.permutation(np.flatnonzero(number == index))
        proportions = source.dirichlet(np.full(clients, alpha))
        cuts = (np.cumsum(proportions)[:-1] * len(rows)).astype(np.int64)
        owner[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    return _filled(owner, number, clients, at_least)


def _filled(owner: Clients, number: Clients, clients: int, at_least: int) -> Clients:
    classes = int(number.max()) + 1
    held = np.bincount(owner * classes + number, minlength=clients * classes).reshape(clients, classes)
    size = held.sum(axis=1)
    if size.min() >= at_least:
        return owner
    # With rows ordered by (client, class, row), the samples that client i has of class c end at end[i, c].
    order = np.lexsort((number, owner))
    end = np.cumsum(held).reshape(clients, classes)
    owner = owner.copy()
    for needy in np.flatnonzero(size < at_least):
        while size[needy] < at_least:
            # The largest client is above the average, so above at_least: it was never filled up and stays large enough.
            donor = int(size.argmax())
            largest = int(held[donor].argmax())
            end[donor, largest] -= 1
            owner[order[end[donor, largest]]] = needy
            held[donor, largest] -= 1
            size[donor] -= 1
            size[needy] += 1
    return owner


def assign(
    partition: str,
    labels: ArrayLike,
    clients: int | None,
    *,
    alpha: float | None = None,
    at_least: int | None = None,
    seed: int = 0,
) -> Clients:
    """Partition by the function called ``partition``: any but "natural", which needs ids and not labels."""
    if partition not in PARTITIONS:
        raise GradsiftError(f"unknown partition {partition!r}{nearest(partition, PARTITIONS)}")
    if partition == "natural":
        raise GradsiftError("partition 'natural' needs data that names the client of each sample")
    if clients is None:
        raise GradsiftError(f"partition {partition!r} needs a number of clients (--clients)")
    if partition == "dirichlet":
        alpha, at_least = DEFAULT_ALPHA if alpha is None else alpha, 1 if at_least is None else at_least
        return dirichlet(labels, clients, alpha=alpha, at_least=at_least, seed=seed)
    check_options(partition, alpha, at_least)
    return (iid if partition == "iid" else one_class)(labels, clients, seed=seed)


def check_options(partition: str, alpha: float | None, at_least: int | None) -> None:
    """Refuse the options of the Dirichlet partition for another one."""
    for name, value in (("alpha", alpha), ("at_least", at_least)):
        if value is not None:
            raise GradsiftError(f"{name}={value!r} is for partition 'dirichlet', not for {partition!r}")


def holdout(groups: ArrayLike, fraction: float, *, seed: int = 0) -> NDArray[np.bool_]:
    """Choose test samples at random: returns True for about this fraction of each group (a client, a class).

    Of s samples, round(fraction * s) are held out, but at least one stays in each group.
    """
    check.real("fraction", fraction, 0.0)
    if fraction >= 1:
        raise GradsiftError(f"the fraction held out for test must be below 1, got {fraction!r}")
    check.integer("seed", seed, 0, 2**64 - 1)
    number = natural(groups)
    test = np.zeros(len(number), dtype=bool)
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number))
    for group, rows in enumerate(np.split(order, ends[:-1])):
        count = min(round(fraction * len(rows)), len(rows) - 1)
        test[rng(seed, "holdout", client=group).permutation(rows)[:count]] = True
    return test


def _numbered(labels: ArrayLike) -> tuple[Clients, NDArray[np.int64]]:
    """Return each label as its place among the classes that occur, and these classes."""
    values = np.asarray(labels)
    if values.ndim != 1 or values.dtype.kind not in "iub":
        raise GradsiftError(f"labels must be [n] class labels, got {values.dtype} {list(values.shape)}")
    classes, number = np.unique(values, return_inverse=True)
    return number.astype(np.int64), classes.astype(np.int64)


def _check(samples: int, clients: int, seed: int) -> None:
    check.integer("clients", clients, 1)
    check.integer("seed", seed, 0, 2**64 - 1)
    if clients > samples:
        raise GradsiftError(f"{clients} clients cannot share {samples} samples: each needs one")
