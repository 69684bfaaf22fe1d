"""CIFAR-10's own archive in its binary version, written here byte for byte; the python version is refused unread."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gradsift import GradsiftError
from gradsift.data import import_cifar10, load, one_class

NAMES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
PER_BATCH = 12

Batch = tuple[NDArray[np.uint8], list[int]]


def batches() -> list[Batch]:
    source = np.random.default_rng(0)
    made = []
    for _ in NAMES:
        labels = source.permutation(np.arange(PER_BATCH) % 10).tolist()
        made.append((source.integers(0, 256, (PER_BATCH, 3072), dtype=np.uint8), labels))
    return made


def binary(batch: Batch) -> bytes:
    """A label byte and 3,072 pixel bytes an image."""
    pixels, labels = batch
    return np.concatenate([np.array(labels, dtype=np.uint8)[:, None], pixels], axis=1).tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, batch in zip(NAMES, batches(), strict=True):
        (tmp_path / f"{name}.bin").write_bytes(binary(batch))
    return tmp_path


def test_the_images_are_those_of_the_batches(folder: Path) -> None:
    data = import_cifar10(folder, clients=10, seed=4)
    made = batches()
    pixels = np.concatenate([batch[0] for batch in made[:5]]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([batch[1] for batch in made[:5]])
    order = np.argsort(one_class(labels, 10, seed=4), kind="stable")
    assert torch.equal(data.x, torch.from_numpy(pixels[order]).float() / 255)
    assert data.y.tolist() == labels[order].tolist()
    assert torch.equal(data.test_x, torch.from_numpy(made[5][0].reshape(-1, 3, 32, 32)).float() / 255)
    assert data.test_y.tolist() == made[5][1]
    assert (data.name, data.classes, data.num_clients) == ("cifar10", 10, 10)
    assert load(folder, clients=10, seed=4).fingerprint() == data.fingerprint()


def test_other_partitions(folder: Path) -> None:
    assert import_cifar10(folder, clients=7, partition="iid").num_clients == 7
    data = load(folder, clients=4, partition="dirichlet", alpha=0.3, at_least=5)
    assert data.size.min() >= 5


@pytest.mark.parametrize("read", [import_cifar10, load])
def test_python_pickles_are_refused_unread_and_the_binary_version_is_named(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (tmp_path / "sprung",)

    for name in NAMES:
        (tmp_path / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(GradsiftError, match=r"Python pickles, which are never read; use the binary version"):
        read(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_truncated_batches_are_refused(folder: Path) -> None:
    path = folder / "test_batch.bin"
    whole = path.read_bytes()
    for length in [0, 1, 2, 5, *range(10, len(whole) - 1, len(whole) // 23), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(GradsiftError, match=r"test_batch\.bin is truncated or not a batch"):
            import_cifar10(folder, clients=10)


def changed(name: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def removed(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (removed("data_batch_1.bin"), "is not a folder of CIFAR-10's binary batches: it has no data_batch_1.bin"),
        (removed("data_batch_4.bin"), "data_batch_4.bin: No such file or directory"),
        (removed("test_batch.bin"), "test_batch.bin: No such file or directory"),
        (
            changed("data_batch_5.bin", binary((np.zeros((2, 3072), dtype=np.uint8), [3, 200]))),
            "data_batch_5.bin is damaged: label 200 of image 1 is not in 0 to 9",
        ),
    ],
)
def test_bad_folders(folder: Path, change: Callable[[Path], None], message: str) -> None:
    change(folder)
    with pytest.raises(GradsiftError, match=re.escape(message)):
        import_cifar10(folder, clients=10)
