"""Data by name: the embedded digits, and FEMNIST and CIFAR-10 on small files in their layout."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradsift import GradsiftError
from gradsift.data import cifar10, digits, femnist, load, one_class, sources


def test_digits_are_the_real_ones_in_the_stated_form() -> None:
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    original = sklearn_datasets.load_digits()
    data = load("digits")
    assert (list(data.x.shape), list(data.test_x.shape)) == ([1438, 1, 8, 8], [359, 1, 8, 8])
    assert data.x.dtype == torch.float32
    assert (float(data.x.min()), float(data.x.max())) == (0, 1)
    assert (data.num_clients, data.classes, data.name) == (20, 10, "digits")
    assert data.size.min() >= 32
    # All images are there, once, with their labels.
    rows = torch.cat(
        [torch.cat([data.x, data.test_x]).flatten(1) * 16, torch.cat([data.y, data.test_y])[:, None]], dim=1
    )
    expected = np.column_stack([original.data, original.target])
    assert sorted(rows.tolist()) == sorted(expected.tolist())
    # The test split has its share of each class.
    assert np.bincount(data.test_y.numpy()).tolist() == [round(0.2 * n) for n in np.bincount(original.target)]


DIGITS_SIZES = [103, 101, 84, 83, 60, 54, 110, 40, 102, 104, 93, 32, 56, 46, 36, 69, 45, 74, 66, 80]


def test_digits_repeat_and_their_test_split_is_fixed() -> None:
    default = digits()
    assert default.fingerprint() == digits().fingerprint()
    # Pinned: examples and tests elsewhere stand on it.
    assert default.size.tolist() == DIGITS_SIZES
    others = [
        digits(seed=1),
        digits(clients=40),
        digits(alpha=5.0),
        digits(partition="iid"),
        digits(partition="one-class"),
    ]
    for other in others:
        assert torch.equal(other.test_x, default.test_x)
        assert torch.equal(other.test_y, default.test_y)
        assert other.fingerprint() != default.fingerprint()
    assert digits(clients=30, at_least=40).size.min() >= 40
    assert all((part.y[part.rows(3)] == part.y[part.rows(3)][0]).all() for part in (others[-1],))


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(GradsiftError, match=re.escape("'digits' comes with scikit-learn: pip install '.[data]'")):
        load("digits")


def small_femnist(folder: Path, **changes: Any) -> Path:
    """Five writers in the layout of femnist.npz, distinct images."""
    source = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x": source.integers(0, 256, (50, 28, 28), dtype=np.uint8),
        "y": np.arange(50, dtype=np.uint8) % 7,
        "client": (np.arange(50) % 5).astype(np.int32),
        "split": (np.arange(50) % 9 == 0).astype(np.uint8),
        "client_name": np.array([f"f{i:04d}_01" for i in range(5)]),
        **changes,
    }
    np.savez_compressed(
        folder / "femnist.npz", **{name: values for name, values in arrays.items() if values is not None}
    )
    return folder


def test_femnist_is_the_first_writers_as_leaf_stores_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSIFT_DATA", str(small_femnist(tmp_path)))
    with np.load(tmp_path / "femnist.npz") as arrays:
        x, y, client, split = (arrays[name] for name in ("x", "y", "client", "split"))
    for clients in (1, 3, 5):
        data = load("femnist", clients=clients)
        train, held = (client < clients) & (split == 0), (client < clients) & (split == 1)
        order = np.argsort(client[train], kind="stable")
        # LEAF's own number is 1 - ink / 255, in double precision; ours is that, as float32.
        leaf = ((255 - x.astype(np.float64)) / 255).astype(np.float32)[:, None]
        np.testing.assert_array_equal(data.x.numpy(), leaf[train][order])
        np.testing.assert_array_equal(data.test_x.numpy(), leaf[held])
        assert data.y.tolist() == y[train][order].tolist()
        assert data.classes == 62
        assert data.client_names == tuple(f"f{i:04d}_01" for i in range(clients))
    elsewhere = femnist(clients=2, folder=tmp_path)
    assert elsewhere.fingerprint() == load("femnist", clients=2).fingerprint()
    with pytest.raises(GradsiftError, match="'femnist' has 5 clients, fewer than 156"):
        load("femnist")


def small_cifar10(folder: Path) -> Path:
    source = np.random.default_rng(0)
    (folder / "cifar10").mkdir()
    for name in ("train-0", "train-1", "train-2", "train-3", "test"):
        images = source.integers(0, 256, (25, 32, 32, 3), dtype=np.uint8)
        np.savez(folder / "cifar10" / f"{name}.npz", x=images, y=(np.arange(25) % 10).astype(np.uint8))
    return folder


def test_cifar10_is_one_class_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSIFT_DATA", str(small_cifar10(tmp_path)))
    parts = [np.load(tmp_path / "cifar10" / f"train-{i}.npz") for i in range(4)]
    x, y = (np.concatenate([part[name] for part in parts]) for name in ("x", "y"))
    for part in parts:
        part.close()
    data = load("cifar10", clients=20, seed=6)
    order = np.argsort(one_class(y, 20, seed=6), kind="stable")
    assert torch.equal(data.x, torch.from_numpy(x[order]).permute(0, 3, 1, 2).float() / 255)
    assert data.y.tolist() == y[order].tolist()
    assert all(len(set(data.y[data.rows(client)].tolist())) == 1 for client in range(20))
    assert (list(data.test_x.shape), data.classes) == ([25, 3, 32, 32], 10)
    assert cifar10(clients=20, seed=7, folder=tmp_path).fingerprint() != data.fingerprint()
    assert load("cifar10", clients=5, partition="dirichlet", alpha=0.1, at_least=3).size.min() >= 3


def test_the_names() -> None:
    assert sources() == ["cifar10", "digits", "femnist"]


def unset(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADSIFT_DATA", raising=False)


def empty(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSIFT_DATA", str(folder))


def nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSIFT_DATA", str(folder / "gone"))


def part_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty(small_cifar10(folder), monkeypatch)
    (folder / "cifar10" / "train-2.npz").unlink()


def part_foreign(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty(small_cifar10(folder), monkeypatch)
    np.savez(folder / "cifar10" / "train-2.npz", x=np.zeros((3, 28, 28), dtype=np.uint8), y=np.zeros(3))


def part_without_labels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty(small_cifar10(folder), monkeypatch)
    np.savez(folder / "cifar10" / "train-2.npz", x=np.zeros((3, 32, 32, 3), dtype=np.uint8))


def femnist_with(**changes: Any) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        empty(small_femnist(folder, **changes), monkeypatch)

    return write


@pytest.mark.parametrize(
    ("prepare", "source", "options", "message"),
    [
        (
            unset,
            "femnist",
            {},
            "'femnist' is read from a folder: set GRADSIFT_DATA to it, or the option folder (--set data.folder=FOLDER)",
        ),
        (
            unset,
            "cifar10",
            {},
            "'cifar10' is read from a folder: set GRADSIFT_DATA to it, or the option folder (--set data.folder=FOLDER)",
        ),
        (unset, "femnist", {"folder": "gone"}, "'femnist' needs a folder: folder is 'gone', which is not a folder"),
        (unset, "femnist", {"folder": 3}, "'femnist' needs a folder: folder is 3, which is not a path"),
        (unset, "cifar10", {"folder": [1]}, "'cifar10' needs a folder: folder is [1], which is not a path"),
        (nowhere, "femnist", {}, "'femnist' needs a folder: GRADSIFT_DATA is '"),
        (empty, "femnist", {}, "'femnist' needs the file femnist.npz, which is not in '"),
        (empty, "cifar10", {}, "'cifar10' needs the file cifar10/train-0.npz, which is not in '"),
        (part_missing, "cifar10", {}, "'cifar10' needs the file cifar10/train-2.npz, which is not in '"),
        (part_foreign, "cifar10", {}, "train-2.npz is not a part of CIFAR-10: x is uint8 [3, 28, 28]"),
        (part_without_labels, "cifar10", {}, "train-2.npz is not a part of CIFAR-10: it needs x and y, and has ['x']"),
        (femnist_with(split=None), "femnist", {}, "does not have the layout of FEMNIST: it has no array 'split'"),
        (femnist_with(x=np.zeros((50, 784), dtype=np.uint8)), "femnist", {}, "layout of FEMNIST: x is uint8 [50, 784]"),
        (femnist_with(y=np.full(50, 62)), "femnist", {"clients": 5}, "label 62 in 'femnist' is outside its 62 classes"),
        (unset, "digit", {}, "no data 'digit': it is neither a file, nor a folder, nor a name; did you mean 'digits'?"),
        (unset, "digits", {"client": 3}, "data 'digits' has no option 'client'; did you mean 'clients'?"),
        (unset, "femnist", {"partition": "iid"}, "data 'femnist' has no option 'partition'; valid: clients, folder"),
        (unset, "gone.npz", {}, "there is no file gone.npz"),
        (unset, "gone.npz", {"aplha": 1}, "data 'gone.npz' has no option 'aplha'; did you mean 'alpha'?"),
        (unset, "gone.npz", {"source": 1}, "data 'gone.npz' has no option 'source'"),
        (unset, ".", {}, "'.' is neither a LEAF folder (with train or all_data) nor one of CIFAR-10"),
        (unset, "digits", {"clients": 200}, "200 clients with at least 32 samples each need more than 1438"),
        (unset, "digits", {"alpha": 0}, "alpha must be above 0, got 0"),
    ],
)
def test_bad_input(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[Path, pytest.MonkeyPatch], None],
    source: str,
    options: dict[str, Any],
    message: str,
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    prepare(tmp_path, monkeypatch)
    with pytest.raises(GradsiftError, match=re.escape(message)):
        load(source, **options)


@pytest.mark.slow
def test_importing_brings_nothing_that_is_optional() -> None:
    code = (
        "import sys, gradsift, gradsift.data, gradsift.models; print({'sklearn', 'pandas', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
