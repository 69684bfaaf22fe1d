"""torch datasets: one a client, or one shared out."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from gradsift import GradsiftError
from gradsift.data import FederatedData, dirichlet, one_class


class Pairs(Dataset[Any]):
    """A map-style dataset of whatever is given."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield torch.zeros(1), 0


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_one_dataset_a_client(sizes: list[int]) -> None:
    total = sum(sizes)
    x, y = torch.randn(total, 1, 3, generator=torch.Generator().manual_seed(0)), torch.arange(total) % 4
    whole = TensorDataset(x, y)
    ends = np.cumsum(sizes)
    clients = [Subset(whole, list(range(end - size, end))) for size, end in zip(sizes, ends, strict=True)]
    names = [f"site {i}" for i in range(len(sizes))]
    data = FederatedData.from_datasets(clients, test=whole, client_names=names, num_classes=7)
    assert torch.equal(data.x, x)
    assert torch.equal(data.y, y)
    assert data.size.tolist() == sizes
    assert torch.equal(data.test_x, x)
    assert torch.equal(data.test_y, y)
    assert data.client_names == tuple(names)
    assert data.classes == 7


@pytest.mark.parametrize("kind", [int, np.int32, torch.tensor, np.array])
def test_labels_of_every_kind(kind: Any) -> None:
    data = FederatedData.from_datasets([Pairs([(np.ones(2, dtype=np.float32), kind(label)) for label in (2, 0)])])
    assert data.y.tolist() == [2, 0]
    assert data.y.dtype == torch.int64
    assert data.x.dtype == torch.float32
    assert (len(data.test_x), list(data.test_x.shape[1:])) == (0, [2])


def test_targets_stay_targets() -> None:
    data = FederatedData.from_datasets([Pairs([([1.0, 2.0], 0.5), ([3.0, 4.0], 1.5)])])
    assert data.y.tolist() == [0.5, 1.5]
    assert not data.labelled


def test_one_dataset_shared_out_by_a_partitioner_or_by_ids() -> None:
    y = torch.arange(60) % 3
    whole: ConcatDataset[Any] = ConcatDataset([TensorDataset(torch.arange(60.0)[:, None], y)])
    for share_out in (partial(dirichlet, clients=5, alpha=0.3, at_least=3), partial(one_class, clients=6)):
        owner = share_out(y.numpy())
        data = FederatedData.from_dataset(whole, share_out, test=whole)
        again = FederatedData.from_dataset(whole, owner, test=whole)
        assert data.fingerprint() == again.fingerprint()
        for client in range(data.num_clients):
            assert data.x[data.rows(client)].flatten().tolist() == np.flatnonzero(owner == client).tolist()
        assert torch.equal(data.test_y, y)
    assert len(FederatedData.from_dataset(whole, np.zeros(60, dtype=int)).test_x) == 0


class Image:
    """Looks like an image to numpy."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.zeros((2, 2, 3), dtype=np.uint8)


GOOD = (torch.zeros(2), 0)


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ([], "from_datasets needs at least one dataset"),
        ([Pairs([GOOD]), Pairs([])], "dataset 1 has no samples"),
        ([Stream()], "dataset 0 is not a map-style dataset (len() and [i]): Stream"),
        ([Pairs([GOOD, torch.zeros(2)])], "dataset 0[1] is not a pair (x, y) but Tensor"),
        ([Pairs([(torch.zeros(2), 0, 1)])], "dataset 0[0] is not a pair (x, y) but tuple"),
        ([Pairs([(Image(), 0)])], "x of dataset 0[0] is a Image, not numbers: give the dataset a transform"),
        ([Pairs([(torch.zeros(2), "cat")])], "y of dataset 0[0] is a str, not numbers"),
        ([Pairs([GOOD, (torch.zeros(3), 0)])], "x of dataset 0: sample 1 is torch.float32 [3], sample 0 is"),
        ([Pairs([GOOD, (torch.zeros(2), 0.5)])], "y of dataset 0: sample 1 is torch.float64 [], sample 0 is"),
        ([Pairs([GOOD]), Pairs([(torch.zeros(3), 0)])], "dataset 1 gives (x, y) as [(torch.float32, [3])"),
        ([Pairs([(torch.zeros(2), -1)])], "labels must not be negative, got -1"),
    ],
)
def test_bad_datasets(datasets: list[Any], message: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(message)):
        FederatedData.from_datasets(datasets)


def test_a_bad_test_set_or_partition() -> None:
    with pytest.raises(GradsiftError, match="test has no samples"):
        FederatedData.from_datasets([Pairs([GOOD])], test=Pairs([]))
    with pytest.raises(GradsiftError, match="x and test_x of 'data' differ"):
        FederatedData.from_dataset(Pairs([GOOD]), [0], test=Pairs([(torch.zeros(3), 0)]))
    with pytest.raises(GradsiftError, match="client must name the owner of each of 1 rows"):
        FederatedData.from_dataset(Pairs([GOOD]), [0, 1])
