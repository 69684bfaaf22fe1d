"""Download FEMNIST or CIFAR-10 through flwr-datasets and write the files that ``load`` reads."""

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
    """Download a data set into ``folder``, to which ``GRADSIFT_DATA`` may then point; returns the folder."""
    if name not in _DOWNLOADS:
        raise GradsiftError(f"cannot get {name!r}{nearest(name, list(_DOWNLOADS))}")
    hub, write = _DOWNLOADS[name]
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
    except Exception as problem:  # the library may raise anything: no network, a full disk, a data set that moved
        raise RunError(f"could not get {name!r} from {hub}: {type(problem).__name__}: {problem}") from problem
    return target


def write_femnist(split: Callable[[str], Iterable[Row]], folder: Path) -> None:
    """Write femnist.npz from rows with ``image``, ``writer_id`` and ``character``; a tenth of each writer for test."""
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
    """Write cifar10/train-*.npz and cifar10/test.npz from rows with ``img`` and ``label``."""
    for part in ("train", "test"):
        rows = list(split(part))
        x = np.stack([_pixels(row["img"], (32, 32, 3)) for row in rows])
        y = np.array([row["label"] for row in rows], dtype=np.uint8)
        names = ["test"] if part == "test" else [f"train-{number}" for number in range(TRAIN_PARTS)]
        pieces = zip(names, np.array_split(x, len(names)), np.array_split(y, len(names)), strict=True)
        for name, piece_x, piece_y in pieces:
            _save(folder / "cifar10" / f"{name}.npz", x=piece_x, y=piece_y)


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


_DOWNLOADS: dict[str, tuple[str, Callable[[Callable[[str], Iterable[Row]], Path], None]]] = {
    "cifar10": ("uoft-cs/cifar10", write_cifar10),
    "femnist": ("flwrlabs/femnist", write_femnist),
}
