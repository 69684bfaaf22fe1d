"""The container: rows go to the right client, and data that no run could use is refused."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsift import GradsiftError
from gradsift.data import FederatedData


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[int], list[bool]]:
    """Owners and test marks in which each owner has a training row; -1 owns test rows only."""
    marked = draw(st.lists(st.tuples(st.integers(-1, 9), st.booleans()), max_size=40))
    client = [owner for owner, _ in marked]
    test = [mark or owner == -1 for owner, mark in marked]
    for owner in {0, *client} - {-1}:
        client.append(owner)
        test.append(False)
    return client, test


@given(rows())
def test_from_arrays_puts_every_row_where_it_belongs(given_rows: tuple[list[int], list[bool]]) -> None:
    client, test = given_rows
    count = len(client)
    x = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    y = np.arange(count) * 3
    data = FederatedData.from_arrays(x, y, client, test=test)
    owners = sorted(set(client) - {-1})
    assert data.num_clients == len(owners)
    assert data.client_names == tuple(map(str, owners))
    for number, owner in enumerate(owners):
        mine = [row for row in range(count) if client[row] == owner and not test[row]]
        assert data.x[data.rows(number)].tolist() == x[mine].tolist()
        assert data.y[data.rows(number)].tolist() == y[mine].tolist()
        assert data.size[number] == len(mine)
        assert data.start[number] == data.rows(number).start
        assert data.share[number] == len(mine) / (count - sum(test))
        assert (data.owner[data.rows(number)] == number).all()
    held = [row for row in range(count) if test[row]]
    assert data.test_x.tolist() == x[held].tolist()
    assert data.test_y.tolist() == y[held].tolist()
    assert data.y.dtype == torch.int64
    assert data.classes == 3 * (count - 1) + 1


def small(**changes: Any) -> FederatedData:
    """Clients a (2 rows), b (1), c (3); 2 test rows."""
    values: dict[str, Any] = {
        "x": torch.arange(12.0).view(6, 2),
        "y": torch.tensor([0, 1, 2, 0, 1, 2]),
        "size": np.array([2, 1, 3]),
        "test_x": torch.zeros(2, 2),
        "test_y": torch.tensor([3, 0]),
        "client_names": ("a", "b", "c"),
    }
    return FederatedData(**{**values, **changes})


def test_names_may_come_from_pandas() -> None:
    import pandas as pd

    for names in (pd.Series(["b", "a", "b"]), np.array(["b", "a", "b"], dtype=object)):
        data = FederatedData.from_arrays(np.zeros((3, 2), dtype=np.float32), [0, 1, 0], names)
        assert data.client_names == ("a", "b")
    with pytest.raises(GradsiftError, match="integers or names, got dtype object"):
        FederatedData.from_arrays(np.zeros((2, 2), dtype=np.float32), [0, 1], np.array(["b", None], dtype=object))


def test_names_as_clients() -> None:
    data = FederatedData.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 0], np.array(["zoe", "al", "zoe"]))
    assert data.client_names == ("al", "zoe")
    assert data.x.flatten().tolist() == [2, 1, 3]
    assert data.label(1) == "1 (zoe)"


def test_subset_keeps_the_order_given_and_the_test_split() -> None:
    part = small(num_classes=5).subset([2, 0])
    assert part.y.tolist() == [0, 1, 2, 0, 1]
    assert part.x[:, 0].tolist() == [6, 8, 10, 0, 2]
    assert part.size.tolist() == [3, 2]
    assert part.client_names == ("c", "a")
    assert part.test_y.tolist() == [3, 0]
    assert part.classes == 5


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 9))
def test_at_least_keeps_the_clients_that_have_enough(sizes: list[int], least: int) -> None:
    data = FederatedData.from_arrays(
        np.zeros((sum(sizes), 1)), np.zeros(sum(sizes), dtype=int), np.repeat(range(len(sizes)), sizes)
    )
    keep = [client for client, size in enumerate(sizes) if size >= least]
    if not keep:
        with pytest.raises(
            GradsiftError, match=f"no client has {least} training samples: the largest has {max(sizes)}"
        ):
            data.at_least(least)
        return
    assert data.at_least(least).client_names == tuple(map(str, keep))
    assert data.at_least(least).size.tolist() == [sizes[client] for client in keep]


def test_classes_are_those_of_both_splits_unless_said() -> None:
    assert small().classes == 4
    assert small(num_classes=62).classes == 62
    targets = small(y=torch.zeros(6), test_y=torch.zeros(2))
    assert not targets.labelled
    with pytest.raises(GradsiftError, match=r"has no class labels: y is torch.float32 \[6\]"):
        _ = targets.classes


def test_to_changes_floats_only() -> None:
    data = small().to("cpu", torch.float64)
    assert (data.x.dtype, data.test_x.dtype, data.y.dtype) == (torch.float64, torch.float64, torch.int64)
    assert data.client_names == ("a", "b", "c")


def test_fingerprint_sees_every_change_and_nothing_else() -> None:
    data = small()
    other_x, other_test = data.x.clone(), data.test_y.clone()
    other_x[5, 1] += 1
    other_test[0] = 2
    changed = [
        replace(data, x=other_x),
        replace(data, y=data.y.flip(0)),
        replace(data, test_x=data.test_x + 1),
        replace(data, test_y=other_test),
        replace(data, size=np.array([1, 2, 3])),
        replace(data, x=data.x.double(), test_x=data.test_x.double()),
        replace(data, x=data.x.view(6, 2, 1), test_x=data.test_x.view(2, 2, 1)),
        replace(data, test_x=data.test_x[:0], test_y=data.test_y[:0]),
    ]
    prints = {each.fingerprint() for each in changed}
    assert len(prints) == len(changed)
    assert data.fingerprint() not in prints
    same = replace(data, x=data.x.t().contiguous().t(), name="other", client_names=())
    assert same.fingerprint() == data.fingerprint() == small().fingerprint()
    half = replace(data, x=data.x.bfloat16(), test_x=data.test_x.bfloat16())
    assert len(half.fingerprint()) == 8


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: small(size=np.array([], dtype=int)), "'data' has no clients"),
        (lambda: small(size=np.array([2, 0, 4])), "client 1 (b) of 'data' has no training samples"),
        (lambda: small(size=np.array([6, 0, 0])), "has no training samples, nor have 1 others"),
        (lambda: small(size=np.array([2, 1, 2])), "x has 6 rows, y 6, the clients own 5"),
        (lambda: small(size=np.array([2.0, 1.0, 3.0])), "size must be one integer for each client"),
        (lambda: small(y=torch.zeros(5, dtype=torch.int64)), "x has 6 rows, y 5, the clients own 6"),
        (lambda: small(test_y=torch.tensor([1])), "test_x has 2 rows, test_y 1"),
        (lambda: small(client_names=("a",)), "1 client names for 3 clients"),
        (lambda: small(y=torch.tensor([0, 1, -1, 0, 1, 2])), "labels must not be negative, got -1 in 'data'"),
        (lambda: small(test_y=torch.tensor([0, -2])), "labels must not be negative, got -2 in 'data'"),
        (lambda: small(num_classes=3), "label 3 in 'data' is outside its 3 classes"),
        (lambda: small(num_classes=2), "label 2 in 'data' is outside its 2 classes"),
        (lambda: small(num_classes=0), "num_classes must be at least 1, got 0"),
        (lambda: small(x=torch.full((6, 2), NAN)), "x of 'data' must be finite, got nan at [0, 0]"),
        (
            lambda: small(test_x=torch.tensor([[0.0, 0], [0, -INF]])),
            "test_x of 'data' must be finite, got -inf at [1, 1]",
        ),
        (lambda: small(y=torch.full((6,), INF), test_y=torch.zeros(2)), "y of 'data' must be finite, got inf at [0]"),
        (lambda: small(test_x=torch.zeros(2, 3)), "x and test_x of 'data' differ: (torch.float32, [2]) and"),
        (lambda: small(test_y=torch.zeros(2)), "y and test_y of 'data' differ: (torch.int64, []) and"),
        (lambda: small().rows(3), "client must be in [0, 2], got 3"),
        (lambda: small().rows(-1), "client must be in [0, 2], got -1"),
        (lambda: small().subset([]), "a subset of 'data' needs at least one client"),
        (lambda: small().subset([0, 3]), "client must be in [0, 2], got 3"),
        (lambda: small().subset([1, 2, 1]), "client 1 is in the subset twice"),
    ],
)
def test_bad_data(call: Callable[[], object], message: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": [0, 1]}, "x and y differ in length: 3 and 2"),
        ({"client": [0, 1]}, "client must name the owner of each of 3 rows, got shape [2]"),
        ({"client": [[0], [1], [1]]}, "client must name the owner of each of 3 rows, got shape [3, 1]"),
        ({"client": [0.0, 1.0, 1.0]}, "client must hold integers or names, got dtype float64"),
        ({"client": [0, -2, 1]}, "client must not be negative, got -2 in row 1"),
        ({"client": [0, -1, 1]}, "client must not be negative, got -1 in row 1"),
        ({"client": [0, 1, 7], "test": [0, 0, 1]}, "client 2 (7) of 'data' has no training samples"),
        ({"test": [0, 1]}, "test must mark each of 3 rows, got shape [2]"),
        ({"test": [0, 1, 2]}, "test must hold 0 (train) or 1 (test), got 2 in row 2"),
        ({"test": ["a", "b", "c"]}, "test must hold 0 (train) or 1 (test), got dtype <U1"),
        ({"test": [0, 1, 0.5]}, "test must hold 0 (train) or 1 (test), got 0.5 in row 2"),
        ({"client_names": ["only"]}, "1 client names for 2 clients"),
        ({"x": 3.0}, "x must have one row for each sample, got the number 3.0"),
        ({"x": [[1.0], [2.0, 3.0], [4.0]]}, "x is not one array of numbers"),
        ({"x": np.array(["a", "b", "c"])}, "x must hold numbers, got dtype <U1"),
        ({"y": np.array([None, 1, 2])}, "y must hold numbers, got dtype object"),
        ({"x": np.zeros((0, 1)), "y": [], "client": []}, "'data' has no clients"),
    ],
)
def test_bad_arrays(arguments: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"x": [[1.0], [2.0], [3.0]], "y": [0, 1, 0], "client": [0, 1, 1]}
    with pytest.raises(GradsiftError, match=re.escape(message)):
        FederatedData.from_arrays(**{**good, **arguments})
