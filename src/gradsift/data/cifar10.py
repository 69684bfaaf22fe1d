"""CIFAR-10 (Krizhevsky 2009), by default one class a client as in the paper's experiments.

``cifar10/train-*.npz`` and ``cifar10/test.npz`` in the data folder; the official archives are in ``cifar10_batches``.
"""

import os

import numpy as np

from gradsift.data.federated import FederatedData
from gradsift.data.folder import data_file, data_folder
from gradsift.data.npz import Array, load_npz, read_arrays
from gradsift.errors import GradsiftError

PARTS = [f"cifar10/train-{number}.npz" for number in range(4)] + ["cifar10/test.npz"]
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
    base = data_folder("cifar10", folder)
    paths = [data_file("cifar10", base, part) for part in PARTS]
    images: list[Array] = []
    labels: list[Array] = []
    for path in paths:
        arrays = read_arrays(path, ("x", "y"))
        if set(arrays) != {"x", "y"}:
            raise GradsiftError(f"{path} is not a part of CIFAR-10: it needs x and y, and has {sorted(arrays)}")
        x = arrays["x"]
        if x.dtype != np.uint8 or x.shape[1:] != (32, 32, 3):
            raise GradsiftError(f"{path} is not a part of CIFAR-10: x is {x.dtype} {list(x.shape)}")
        images.append(x)
        labels.append(arrays["y"])
    return share_out(
        images, labels, "channels-last", clients=clients, partition=partition, alpha=alpha, at_least=at_least, seed=seed
    )


def share_out(
    images: list[Array],
    labels: list[Array],
    layout: str,
    *,
    clients: int,
    partition: str,
    alpha: float | None,
    at_least: int | None,
    seed: int,
) -> FederatedData:
    """The parts of CIFAR-10, of which the last is the test split, among clients."""
    split = np.zeros(sum(len(part) for part in images), dtype=np.uint8)
    split[len(split) - len(images[-1]) :] = 1
    return load_npz(
        {"x": np.concatenate(images), "y": np.concatenate(labels), "split": split},
        name="cifar10",
        clients=clients,
        partition=partition,
        alpha=alpha,
        at_least=at_least,
        layout=layout,
        classes=CLASSES,
        seed=seed,
    )
