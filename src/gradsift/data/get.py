"""Download FEMNIST or CIFAR-10 through flwr-datasets, where there is a network, into the layout that ``load`` reads."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradsift.data.npz import Array
from gradsift.data.partition import holdout
from gradsift.draws import rng
from gradsift.errors import GradsiftError, RunError, install
from gradsift.records import files
from gradsift.registry import nearest

TEST_FRACTION = 0.1  # of each FEMNIST writer, as LEAF splits
TRAIN_PARTS = 4
Row = Mapping[str, Any]


def get(name: str, folder: str | os.PathLike[str]) -> Path:
    """Fetch a data set into ``folder``, to which ``GRADSIFT_DATA`` may then point; returns the folder."""
    if name not in _FETCH:
        raise GradsiftError(f"cannot get {name!r}{nearest(name, list(_FETCH))}")
    hub, write = _FETCH[name]
    target = Path(folder)
    try:
        from flwr_datasets import FederatedDataset
    except ImportError as problem:
        raise GradsiftError(f"getting {name!r} needs flwr-datasets: {install('get')}") from problem
    try:
        source = FederatedDataset(dataset=hub, partitioners={"train": 1}, shuffle=False)
        write(source.load_split, target)
    except (GradsiftError, RunError):
        raise
    except Exception as problem:  # whatever the library raises: no network, a full disk, a data set that moved
        raise RunError(f"could not get {name!r} from {hub}: {type(problem).__name__}: {problem}") from problem
    return target


def write_femnist(split: Callable[[str], Iterable[Row]], folder: Path) -> None:
    """femnist.npz from rows with ``image``, ``writer_id`` and ``character``; a tenth of each writer is for testing."""
    images, writers, labels = [], [], []
    for row in split("train"):
        images.append(_pixels(row["image"], (28, 28)))
        writers.append(str(row["writer_id"]))
        labels.append(int(row["character"]))
    names, writer = np.unique(writers, return_inverse=True)
    number = rng(0, "clients").permutation(len(names))  # the first 156 are then a random sample of the writers
    _save(
        folder / "femnist.npz",
        x=255 - np.stack(images),  # ink as 255
        y=np.array(labels, dtype=np.uint8),
        client=number[writer].astype(np.int32),
        split=holdout(writer, TEST_FRACTION).astype(np.uint8),
        client_name=names[np.argsort(number)],
    )


def write_cifar10(split: Callable[[str], Iterable[Row]], folder: Path) -> None:
    """cifar10/train-*.npz and cifar10/test.npz from rows with ``img`` and ``label``."""
    for part in ("train", "test"):
        rows = list(split(part))
        x = np.stack([_pixels(row["img"], (32, 32, 3)) for row in rows])
        y = np.array([row["label"] for row in rows], dtype=np.uint8)
        if part == "test":
            _save(folder / "cifar10" / "test.npz", x=x, y=y)
            continue
        pieces = zip(np.array_split(x, TRAIN_PARTS), np.array_split(y, TRAIN_PARTS), strict=True)
        for number, (some_x, some_y) in enumerate(pieces):
            _save(folder / "cifar10" / f"train-{number}.npz", x=some_x, y=some_y)


def _pixels(image: Any, shape: tuple[int, ...]) -> Array:
    pixels = np.asarray(image)
    if pixels.shape != shape or pixels.dtype != np.uint8:
        raise GradsiftError(f"an image is {pixels.dtype} {list(pixels.shape)}, expected uint8 {list(shape)}")
    return pixels


def _save(path: Path, **arrays: Array) -> None:
    if path.exists():
        raise GradsiftError(f"{path} exists already")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]


_FETCH: dict[str, tuple[str, Callable[[Callable[[str], Iterable[Row]], Path], None]]] = {
    "cifar10": ("uoft-cs/cifar10", write_cifar10),
    "femnist": ("flwrlabs/femnist", write_femnist),
}
