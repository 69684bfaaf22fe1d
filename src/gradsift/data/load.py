"""Load federated data by name, or from an ``.npz``, a LEAF folder or a folder of CIFAR-10 batches."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradsift.data.cifar10 import PARTS, cifar10, import_cifar10, is_cifar10_folder
from gradsift.data.digits import digits
from gradsift.data.federated import FederatedData
from gradsift.data.femnist import FILE, femnist
from gradsift.data.folder import data_files
from gradsift.data.leaf import import_leaf, is_leaf_folder
from gradsift.data.npz import load_npz
from gradsift.errors import GradsiftError
from gradsift.registry import check_options, first_line, nearest

_NAMED: dict[str, Callable[..., FederatedData]] = {"cifar10": cifar10, "digits": digits, "femnist": femnist}
_FILES: dict[str, list[str]] = {"cifar10": PARTS, "femnist": [FILE]}


def sources() -> list[str]:
    """Return the names of the data sets that ``load`` knows."""
    return sorted(_NAMED)


def about(source: str) -> str:
    """Describe a named data set in one line."""
    return first_line(_NAMED[source])


def load(source: str | os.PathLike[str], /, **options: Any) -> FederatedData:
    """Load data: ``load("digits", clients=50)``, ``load("mine.npz")``, ``load("leaf/data", shape=(1, 28, 28))``.

    The options are those of the function that reads this name or path: ``digits``, ``femnist``, ``cifar10``,
    ``load_npz``, ``import_leaf``, ``import_cifar10``.
    """
    if isinstance(source, str) and source in _NAMED:
        function = _NAMED[source]
        check_options(f"data {source!r}", function, options)
        return function(**options)
    path = Path(source)
    if path.is_dir():
        reader = _folder_reader(path)
    elif path.suffix == ".npz" or path.is_file():
        reader = load_npz
    else:
        valid = nearest(source, sources())
        raise GradsiftError(f"no data {str(source)!r}: it is neither a file, nor a folder, nor a name{valid}")
    check_options(f"data {str(source)!r}", reader, options, hidden=("source", "folder"))
    return reader(path, **options)


def check_files(source: str, folder: str | os.PathLike[str] | None = None) -> None:
    """Refuse a named data set if one of its files is missing; no file is read."""
    if source in _FILES:
        data_files(source, folder, _FILES[source])


def _folder_reader(path: Path) -> Callable[..., FederatedData]:
    if is_leaf_folder(path):
        return import_leaf
    if is_cifar10_folder(path):
        return import_cifar10
    raise GradsiftError(
        f"{str(path)!r} is neither a LEAF folder (with train or all_data) nor one of CIFAR-10 (with data_batch_1.bin)"
    )
