"""Partitioners: what each promises, for any labels."""

import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradsift import GradsiftError
from gradsift.data import dirichlet, holdout, iid, natural, one_class
from gradsift.data.describe import skew
from gradsift.data.partition import PARTITIONS, assign
from gradsift.draws import rng

Labels = NDArray[np.int64]

SEEDS = st.integers(0, 2**64 - 1)


@st.composite
def labelled(draw: st.DrawFn) -> Labels:
    classes = draw(st.lists(st.integers(0, 300), min_size=1, max_size=6, unique=True))
    return np.array(draw(st.lists(st.sampled_from(classes), min_size=1, max_size=80)), dtype=np.int64)


def check_shared_out(owner: Labels, samples: int, clients: int) -> None:
    """Every sample has an owner, every client a sample."""
    assert owner.dtype == np.int64
    assert owner.shape == (samples,)
    assert np.array_equal(np.unique(owner), np.arange(clients))


@given(labelled(), st.data(), SEEDS)
def test_iid_deals_all_samples_evenly(labels: Labels, data: st.DataObject, seed: int) -> None:
    clients = data.draw(st.integers(1, len(labels)))
    owner = iid(labels, clients, seed=seed)
    check_shared_out(owner, len(labels), clients)
    assert np.ptp(np.bincount(owner)) <= 1
    assert np.array_equal(owner, iid(labels, clients, seed=seed))


@given(labelled(), st.data(), SEEDS)
def test_one_class_gives_each_client_its_class(labels: Labels, data: st.DataObject, seed: int) -> None:
    classes, counts = np.unique(labels, return_counts=True)
    # As many clients as the rarest class allows.
    clients = data.draw(st.integers(len(classes), len(classes) * int(counts.min())))
    owner = one_class(labels, clients, seed=seed)
    check_shared_out(owner, len(labels), clients)
    sizes: dict[int, set[int]] = {}
    for client in range(clients):
        mine = labels[owner == client]
        assert set(mine.tolist()) == {int(classes[client % len(classes)])}
        sizes.setdefault(int(mine[0]), set()).add(len(mine))
    assert all(max(each) - min(each) <= 1 for each in sizes.values())
    assert np.array_equal(owner, one_class(labels, clients, seed=seed))


def literal_dirichlet(labels: Labels, clients: int, alpha: float, at_least: int, seed: int) -> list[int]:
    """The docstring of ``dirichlet`` with lists and loops."""
    source = rng(seed, "partition")
    hands: list[dict[int, list[int]]] = [{} for _ in range(clients)]
    for label in sorted(set(labels.tolist())):
        rows = source.permutation(np.flatnonzero(labels == label)).tolist()
        proportions = source.dirichlet([alpha] * clients).tolist()
        total, start = 0.0, 0
        for client in range(clients):
            total += proportions[client]
            stop = len(rows) if client == clients - 1 else int(total * len(rows))
            hands[client][label] = sorted(rows[start:stop])
            start = stop
    sizes = [sum(map(len, hand.values())) for hand in hands]
    for client in range(clients):
        given: list[tuple[int, int]] = []
        while sizes[client] + len(given) < at_least:
            donor = sizes.index(max(sizes))
            most = max(map(len, hands[donor].values()))
            label = min(label for label, rows in hands[donor].items() if len(rows) == most)
            given.append((label, hands[donor][label].pop()))
            sizes[donor] -= 1
        for label, row in given:
            hands[client][label] = [*hands[client][label], row]
        sizes[client] += len(given)
    owner = [-1] * len(labels)
    for client, hand in enumerate(hands):
        for rows in hand.values():
            for row in rows:
                owner[row] = client
    return owner


@given(labelled(), st.data(), st.sampled_from([1e-300, 1e-3, 0.1, 0.5, 1.0, 10.0, 1e300]), st.integers(0, 1000))
def test_dirichlet_is_what_its_docstring_says(labels: Labels, data: st.DataObject, alpha: float, seed: int) -> None:
    clients = data.draw(st.integers(1, min(12, len(labels))))
    at_least = data.draw(st.integers(1, len(labels) // clients))
    owner = dirichlet(labels, clients, alpha=alpha, at_least=at_least, seed=seed)
    check_shared_out(owner, len(labels), clients)
    assert np.bincount(owner).min() >= at_least
    assert owner.tolist() == literal_dirichlet(labels, clients, alpha, at_least, seed)


def test_dirichlet_proportions_have_the_moments_of_the_distribution() -> None:
    # One class among 4 clients: client 0's proportion has mean 1/4 and variance (1/4)(3/4)/(4 alpha + 1).
    labels, alpha, runs = np.zeros(1000, dtype=np.int64), 0.5, 3000
    proportions = np.array([np.mean(dirichlet(labels, 4, alpha=alpha, seed=seed) == 0) for seed in range(runs)])
    variance = 0.25 * 0.75 / (4 * alpha + 1)
    assert abs(proportions.mean() - 0.25) < 5 * np.sqrt(variance / runs) + 1e-3
    assert abs(proportions.var() / variance - 1) < 0.15


def test_the_knob_goes_from_one_class_to_iid() -> None:
    labels = np.arange(20_000) % 10

    def skewness(owner: Labels) -> float:
        return skew(labels[np.argsort(owner, kind="stable")], np.bincount(owner))

    skews = [skewness(dirichlet(labels, 20, alpha=alpha)) for alpha in (0.01, 0.1, 1.0, 10.0, 1000.0)]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.8
    assert skews[-1] < 0.05
    assert skewness(iid(labels, 20)) < 0.1
    assert skewness(one_class(labels, 20)) == pytest.approx(0.9)


PINNED = {
    "iid": [0, 1, 2, 2, 0, 0, 1, 1, 3, 2, 3, 0, 3, 1, 2],
    "one-class": [0, 1, 2, 0, 1, 2, 3, 1, 2, 3, 4, 2, 0, 4, 2],
    "dirichlet": [0, 2, 1, 3, 3, 1, 0, 2, 1, 1, 2, 3, 0, 2, 2],
    "holdout": [0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0],
}


def test_the_same_everywhere() -> None:
    # Pinned: another answer on another machine or version would be another experiment under the same seed.
    labels = np.array([0, 1, 2] * 5)
    assert iid(labels, 4, seed=3).tolist() == PINNED["iid"]
    assert one_class(labels, 5, seed=3).tolist() == PINNED["one-class"]
    assert dirichlet(labels, 4, alpha=0.5, at_least=3, seed=3).tolist() == PINNED["dirichlet"]
    assert holdout(labels, 0.4, seed=3).astype(int).tolist() == PINNED["holdout"]


@pytest.mark.parametrize("share_out", [iid, one_class, dirichlet])
def test_seeds_differ_and_nothing_global_is_touched(share_out: Callable[..., Labels]) -> None:
    labels = np.arange(600) % 5
    before, global_state = labels.copy(), np.random.get_state(legacy=False)  # noqa: NPY002
    owners = {share_out(labels, 10, seed=seed).tobytes() for seed in range(5)}
    assert len(owners) == 5
    assert np.array_equal(labels, before)
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    assert str(global_state) == str(after)


@given(st.lists(st.one_of(st.integers(-5, 5)), min_size=1))
def test_natural_numbers_the_owners_in_order(ids: list[int]) -> None:
    assert natural(ids).tolist() == [sorted(set(ids)).index(i) for i in ids]
    names = [f"user {i}" for i in ids]
    assert natural(names).tolist() == [sorted(set(names)).index(name) for name in names]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.floats(0, 0.999), SEEDS)
def test_holdout_takes_the_fraction_of_each_group(groups: list[int], fraction: float, seed: int) -> None:
    held = holdout(groups, fraction, seed=seed)
    assert held.dtype == np.bool_
    count = Counter(group for group, mark in zip(groups, held, strict=True) if mark)
    for group, size in Counter(groups).items():
        assert count[group] == min(round(fraction * size), size - 1)
    # A group's test rows do not depend on which groups come after it.
    more = holdout([*groups, 5, 5, 5], fraction, seed=seed)
    assert np.array_equal(held, more[: len(held)])


def test_holdout_is_random() -> None:
    splits = np.array([holdout(np.zeros(10), 0.3, seed=seed) for seed in range(400)])
    assert (abs(splits.mean(axis=0) - 0.3) < 0.1).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid([1, 2], 3), "3 clients cannot share 2 samples"),
        (lambda: one_class([1, 1, 2], 4), "4 clients cannot share 3 samples"),
        (lambda: dirichlet([1, 2], 3), "3 clients cannot share 2 samples"),
        (lambda: iid([1, 2], 0), "clients must be at least 1, got 0"),
        (lambda: iid([1, 2], True), "clients must be an integer, got True"),
        (lambda: iid([1, 2], 1, seed=-1), "seed must be in [0, 18446744073709551615], got -1"),
        (lambda: one_class([0, 1, 2, 3], 2), "2 clients with one class each cannot hold 4 classes"),
        (lambda: one_class([7, 8, 8, 8], 4), "class 7 has 1 samples for 2 clients"),
        (lambda: one_class([0.5, 1.5], 2), "labels must be [n] class labels, got float64 [2]"),
        (lambda: one_class([[0], [1]], 2), "labels must be [n] class labels, got int64 [2, 1]"),
        (lambda: dirichlet([0, 1], 2, alpha=0), "alpha must be above 0, got 0"),
        (lambda: dirichlet([0, 1], 2, alpha=-0.5), "alpha must be above 0, got -0.5"),
        (lambda: dirichlet([0, 1], 2, alpha=float("nan")), "alpha must be a finite number, got nan"),
        (lambda: dirichlet([0, 1], 2, alpha=float("inf")), "alpha must be a finite number, got inf"),
        (lambda: dirichlet([0, 1, 1], 2, at_least=0), "at_least must be at least 1, got 0"),
        (lambda: dirichlet([0, 1, 1], 2, at_least=2), "2 clients with at least 2 samples each need more than 3"),
        (lambda: natural([]), "ids must name one owner for each sample, got shape [0]"),
        (lambda: natural([[1]]), "ids must name one owner for each sample, got shape [1, 1]"),
        (lambda: holdout([0, 0], 1.0), "the fraction held out for test must be below 1, got 1.0"),
        (lambda: holdout([0, 0], -0.1), "fraction must be at least 0, got -0.1"),
        (lambda: assign("dirichelt", [0, 1], 2), "unknown partition 'dirichelt'; did you mean 'dirichlet'?"),
        (lambda: assign("natural", [0, 1], 2), "partition 'natural' needs data that names the client of each sample"),
        (lambda: assign("iid", [0, 1], None), "partition 'iid' needs a number of clients (--clients)"),
        (lambda: assign("iid", [0, 1], 2, alpha=1.0), "alpha=1.0 is for partition 'dirichlet', not for 'iid'"),
        (lambda: assign("one-class", [0, 1], 2, at_least=1), "at_least=1 is for partition 'dirichlet', not for"),
    ],
)
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(message)):
        call()


def test_assign_reaches_each_partitioner_with_its_options() -> None:
    labels = np.arange(60) % 3
    assert np.array_equal(assign("iid", labels, 6, seed=1), iid(labels, 6, seed=1))
    assert np.array_equal(assign("one-class", labels, 6, seed=1), one_class(labels, 6, seed=1))
    mine = assign("dirichlet", labels, 6, alpha=0.2, at_least=4, seed=1)
    assert np.array_equal(mine, dirichlet(labels, 6, alpha=0.2, at_least=4, seed=1))
    assert np.array_equal(assign("dirichlet", labels, 6, seed=1), dirichlet(labels, 6, alpha=0.5, seed=1))
    assert PARTITIONS == ["natural", "one-class", "dirichlet", "iid"]
