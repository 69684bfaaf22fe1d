"""The description: its numbers are those of their definitions."""

from dataclasses import asdict
from fractions import Fraction
from statistics import median

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsift.data import FederatedData, describe


def data_of(clients: list[list[int]], shape: tuple[int, ...] = (2,)) -> FederatedData:
    labels = torch.tensor([label for mine in clients for label in mine])
    size = np.array([len(mine) for mine in clients])
    return FederatedData(torch.zeros(len(labels), *shape), labels, size, torch.zeros(0, *shape), labels[:0], "some")


def literal_skew(clients: list[list[int]]) -> Fraction:
    """1/N sum_i 1/2 sum_c | p_i(c) - p(c) |."""
    everything = [label for mine in clients for label in mine]
    total = Fraction(0)
    for mine in clients:
        for label in set(everything):
            there = Fraction(everything.count(label), len(everything))
            total += abs(Fraction(mine.count(label), len(mine)) - there)
    return total / 2 / len(clients)


@given(st.lists(st.lists(st.sampled_from([0, 1, 5, 10**12]), min_size=1, max_size=8), min_size=1, max_size=6))
def test_the_numbers_are_those_of_the_definitions(clients: list[list[int]]) -> None:
    said = describe(data_of(clients))
    sizes = [len(mine) for mine in clients]
    assert (said.clients, said.train_samples, said.test_samples) == (len(clients), sum(sizes), 0)
    assert (said.smallest_client, said.median_client, said.largest_client) == (min(sizes), median(sizes), max(sizes))
    assert said.classes == max(map(max, clients)) + 1
    assert said.input_shape == (2,)
    assert said.skew == pytest.approx(float(literal_skew(clients)), abs=1e-12)


def test_the_ends_of_the_scale() -> None:
    assert describe(data_of([[0, 1, 2]] * 4)).skew == 0
    assert describe(data_of([[label] * 7 for label in range(5)])).skew == pytest.approx(1 - 1 / 5)


def test_chance_is_that_of_the_same_samples_dealt_out_at_random() -> None:
    labels = np.random.default_rng(1).integers(0, 10, 2000)
    dealt = describe(data_of(labels.reshape(100, 20).tolist()))
    ordered = describe(data_of(np.sort(labels).reshape(100, 20).tolist()))
    assert dealt.skew is not None
    assert ordered.skew is not None
    assert dealt.chance_skew == pytest.approx(dealt.skew, abs=0.02)
    assert ordered.chance_skew == pytest.approx(dealt.skew, abs=0.02)
    assert ordered.skew > 0.85 > 0.3 > dealt.skew > 0.2  # clients of 20 samples are never quite alike


def test_the_table_and_the_dict() -> None:
    said = describe(data_of([[0, 0], [1, 1], [0, 1]], shape=(1, 8, 8)))
    assert str(said).splitlines() == [
        "data              some",
        "clients           3",
        "training samples  6",
        "test samples      0",
        "input shape       1 x 8 x 8",
        "classes           2",
        "client sizes      2 to 2, median 2",
        f"label skew        0.333 (in a random partition: {said.chance_skew:.3f})",
    ]
    assert asdict(said)["largest_client"] == 2
    targets = FederatedData(torch.zeros(2), torch.zeros(2), np.array([2]), torch.zeros(0), torch.zeros(0))
    assert (describe(targets).classes, describe(targets).skew, describe(targets).chance_skew) == (None, None, None)
    assert "targets, not classes" in str(describe(targets))
    assert "label skew" not in str(describe(targets))
