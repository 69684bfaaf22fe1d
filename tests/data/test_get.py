"""What is downloaded is written in the layout that ``load`` reads; the download itself needs a network."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradsift import GradsiftError, RunError
from gradsift.data import load
from gradsift.data.get import get, write_cifar10, write_femnist


def writers(split: str) -> list[dict[str, Any]]:
    assert split == "train"
    source = np.random.default_rng(0)
    return [
        {
            "image": source.integers(0, 256, (28, 28), dtype=np.uint8),
            "writer_id": f"f{writer:04d}",
            "hsf_id": 0,
            "character": (writer + number) % 62,
        }
        for writer in range(5)
        for number in range(20)
    ]


def pictures(split: str) -> list[dict[str, Any]]:
    source = np.random.default_rng(len(split))
    count = {"train": 40, "test": 20}[split]
    return [{"img": source.integers(0, 256, (32, 32, 3), dtype=np.uint8), "label": i % 10} for i in range(count)]


def test_femnist_is_read_back_by_writer(tmp_path: Path) -> None:
    write_femnist(writers, tmp_path)
    data = load("femnist", clients=5, folder=tmp_path)
    assert (data.num_clients, len(data.x), len(data.test_x)) == (5, 90, 10)
    assert set(data.size) == {18}
    # Every image comes back as it was, paper 1 and ink 0, under its own label and writer.
    rows = writers("train")
    for client, name in enumerate(data.client_names):
        own = [row for row in rows if row["writer_id"] == name]
        labels = sorted(row["character"] for row in own)
        assert set(data.y[data.rows(client)].tolist()) <= set(labels)
        first = data.x[data.rows(client)][0, 0]
        assert any(torch.equal(first, torch.from_numpy(row["image"]) / 255) for row in own)


def test_cifar10_is_read_back(tmp_path: Path) -> None:
    write_cifar10(pictures, tmp_path)
    data = load("cifar10", clients=10, folder=tmp_path)
    assert (data.num_clients, len(data.x), len(data.test_x)) == (10, 40, 20)
    wanted = np.stack([row["img"] for row in pictures("test")]).transpose(0, 3, 1, 2) / np.float32(255)
    np.testing.assert_allclose(data.test_x.numpy(), wanted, rtol=1e-6)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_femnist(writers, tmp_path)
    before = (tmp_path / "femnist.npz").read_bytes()
    with pytest.raises(GradsiftError, match=r"femnist\.npz exists already"):
        write_femnist(writers, tmp_path)
    assert (tmp_path / "femnist.npz").read_bytes() == before


def test_images_of_another_kind_are_refused(tmp_path: Path) -> None:
    wrong = [{**row, "image": np.zeros((8, 8))} for row in writers("train")]
    with pytest.raises(GradsiftError, match=re.escape("an image is float64 [8, 8], expected uint8 [28, 28]")):
        write_femnist(lambda _: wrong, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unknown_names_suggest_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(GradsiftError, match="cannot get 'femnst'; did you mean 'femnist'"):
        get("femnst", tmp_path)


def hub(monkeypatch: pytest.MonkeyPatch, source: Any) -> None:
    module = types.ModuleType("flwr_datasets")
    module.FederatedDataset = source  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flwr_datasets", module)


def test_get_asks_the_hub_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Source:
        def __init__(self, **options: Any) -> None:
            asked.append(options["dataset"])

        def load_split(self, split: str) -> list[dict[str, Any]]:
            return writers(split)

    hub(monkeypatch, Source)
    assert get("femnist", tmp_path) == tmp_path
    assert asked == ["flwrlabs/femnist"]
    assert (tmp_path / "femnist.npz").is_file()


def test_without_a_network_it_says_so_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(**_: Any) -> None:
        raise ConnectionError("no route to the hub")

    hub(monkeypatch, unreachable)
    with pytest.raises(RunError, match="could not get 'cifar10' from uoft-cs/cifar10: ConnectionError: no route"):
        get("cifar10", tmp_path)
    assert list(tmp_path.iterdir()) == []
