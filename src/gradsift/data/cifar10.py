"""Read CIFAR-10 (Krizhevsky 2009), by default with one class for each client as in the paper's experiments.

The source is ``cifar10/train-*.npz`` and ``cifar10/test.npz`` in the data folder, or the binary version of the author's
archive.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from gradsift.data.federated import FederatedData
from gradsift.data.folder import data_files
from gradsift.data.npz import Array, load_npz, read_arrays
from gradsift.errors import GradsiftError

PARTS = [f"cifar10/train-{number}.npz" for number in range(4)] + ["cifar10/test.npz"]
BATCHES = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
RECORD = 1 + 3 * 32 * 32  # bytes of an image in a batch: first the label, then the pixels
CLASSES = 10


def cifar10(
    *,
    clients: int = 100,
    partition: str = "one-class",
    alpha: float | None = None,
    at_least: int | None = None,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
) -> FederatedData:
    """Photographs of 32x32, ten classes; from GRADSIFT_DATA. By default 100 clients, one class each.

    x is [n, 3, 32, 32] in [0, 1]; a client of the default partition has 500 random images of its class.
    """
    parts = [_read_part(path) for path in data_files("cifar10", folder, PARTS)]
    options = {"partition": partition, "alpha": alpha, "at_least": at_least, "seed": seed}
    return _federated(parts, layout="channels-last", clients=clients, **options)


def import_cifar10(
    folder: str | os.PathLike[str],
    *,
    clients: int = 100,
    partition: str = "one-class",
    alpha: float | None = None,
    at_least: int | None = None,
    seed: int = 0,
) -> FederatedData:
    """CIFAR-10 from the folder ``cifar-10-batches-bin``; the options are those of ``cifar10``."""
    base = Path(folder)
    if not (base / BATCHES[0]).exists():
        why = f"it has no {BATCHES[0]}"
        if is_cifar10_folder(base):
            why = "its batches are Python pickles, which are never read; use the binary version, cifar-10-binary.tar.gz"
        raise GradsiftError(f"{str(base)!r} is not a folder of CIFAR-10's binary batches: {why}")
    batches = [_read_batch(base / batch) for batch in BATCHES]
    options = {"partition": partition, "alpha": alpha, "at_least": at_least, "seed": seed}
    return _federated(batches, layout="channels-first", clients=clients, **options)


def is_cifar10_folder(folder: Path) -> bool:
    """Return whether the folder has the files of CIFAR-10's archive, of its binary or its python version."""
    return any((folder / name).exists() for name in (BATCHES[0], BATCHES[0].removesuffix(".bin")))


def _federated(parts: list[tuple[Array, Array]], **options: Any) -> FederatedData:
    """Partition images and labels among clients; the last part is the test split."""
    images, labels = zip(*parts, strict=True)
    split = np.repeat(np.array([0, 1], dtype=np.uint8), [sum(map(len, images[:-1])), len(images[-1])])
    arrays = {"x": np.concatenate(images), "y": np.concatenate(labels), "split": split}
    return load_npz(arrays, name="cifar10", classes=CLASSES, **options)


def _read_part(path: Path) -> tuple[Array, Array]:
    arrays = read_arrays(path, ("x", "y"))
    if set(arrays) != {"x", "y"}:
        raise GradsiftError(f"{path} is not a part of CIFAR-10: it needs x and y, and has {sorted(arrays)}")
    x = arrays["x"]
    if x.dtype != np.uint8 or x.shape[1:] != (32, 32, 3):
        raise GradsiftError(f"{path} is not a part of CIFAR-10: x is {x.dtype} {list(x.shape)}")
    return x, arrays["y"]


def _read_batch(path: Path) -> tuple[Array, Array]:
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise GradsiftError(f"CIFAR-10 needs the file {path}: {problem.strerror}") from None
    if not content or len(content) % RECORD:
        raise GradsiftError(f"{path} is truncated or not a batch: {len(content)} bytes are not records of {RECORD}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    labels = records[:, 0]
    bad = np.flatnonzero(labels >= CLASSES)
    if len(bad):
        raise GradsiftError(f"{path} is damaged: label {labels[bad[0]]} of image {bad[0]} is not in 0 to 9")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels
