"""Read and write federated data as an ``.npz`` file with one row for each sample. Pickled objects are never read.

x            [n, ...]   samples; bytes are pixels, see ``layout``
y            [n]        class labels, or [n, ...] targets
client       [n]        optional: the client of each row, an integer or a name; -1 for a test row of no client
split        [n]        optional: 0 train, 1 test
client_name  [clients]  optional: the name of client id i
classes      []         optional: the number of classes, by default the largest label plus one
layout       []         optional: how x is stored, by default "auto"
"""

import os
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsift import check
from gradsift.data import partition as partitions
from gradsift.data.convert import client_ids, inputs, split_mask, targets, tensor
from gradsift.data.federated import NO_CLIENT, FederatedData
from gradsift.errors import GradsiftError
from gradsift.records import files

ARRAYS = ("x", "y", "client", "split", "client_name", "classes", "layout")
TEST_FRACTION = 0.1

Array = NDArray[Any]


def read_arrays(path: Path, names: Collection[str] = ARRAYS) -> dict[str, Array]:
    """Read those of the arrays ``names`` that an ``.npz`` has; a damaged file and pickled objects are refused."""
    try:
        with path.open("rb") as file:
            if not file.read(6).startswith((b"PK", np.lib.format.MAGIC_PREFIX)):
                raise GradsiftError(f"{path} is not an .npz file")
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise GradsiftError(f"{path} is one array, not an .npz of several")
            with archive:
                _check_directory(archive)
                arrays = {name: archive[name] for name in names if name in archive.files}
    except FileNotFoundError:
        raise GradsiftError(f"there is no file {path}") from None
    except GradsiftError:
        raise
    except Exception as problem:  # a damaged archive raises almost anything
        if "allow_pickle" in str(problem):
            raise GradsiftError(f"{path} holds Python objects, which are never read: save plain arrays") from None
        raise GradsiftError(f"cannot read {path}, it is damaged or not an .npz: {problem}") from problem
    for name, values in arrays.items():
        if not isinstance(values, np.ndarray):
            raise GradsiftError(f"{name!r} in {path} is not an array")
    return arrays


def _check_directory(archive: Any) -> None:
    """Refuse a damaged zip directory, which could make an optional array such as ``split`` seem absent."""
    for member in archive.zip.infolist():
        if member.comment:  # numpy writes no comments: a wrong length has swallowed the next entry
            raise ValueError(f"the entry of {member.filename} is damaged")
        archive.zip.open(member).close()  # raises if the two copies of the name differ


def load_npz(
    source: str | os.PathLike[str] | Mapping[str, Array],
    *,
    name: str | None = None,
    clients: int | None = None,
    partition: str | None = None,
    alpha: float | None = None,
    at_least: int | None = None,
    test_fraction: float | None = None,
    layout: str | None = None,
    classes: int | None = None,
    seed: int = 0,
) -> FederatedData:
    """Read data from an ``.npz``, or from a dict with its arrays; ``gradsift.data.convert.inputs`` describes layouts.

    The clients are those of the ``client`` array; ``clients=n`` takes the n lowest ids. With a ``partition``
    ("one-class", "dirichlet", "iid") the training rows are distributed anew among ``clients``; it is required if there
    is no ``client`` array. Without a ``split`` array, ``test_fraction`` (0.1) of each client's rows is held out, or of
    all rows if they are yet to be distributed. ``seed`` determines both the partition and the rows held out.
    """
    if isinstance(source, Mapping):
        arrays, name = dict(source), name or "data"
    else:
        path = Path(source)
        arrays, name = read_arrays(path), name or path.stem
    samples = _check_arrays(arrays, name)
    layout = str(arrays.get("layout", "auto")) if layout is None else layout
    if classes is None and "classes" in arrays:
        classes = int(arrays["classes"])
    if partition is None and "client" not in arrays:
        raise GradsiftError(
            f"{name!r} has no array 'client': choose a partition ({', '.join(partitions.PARTITIONS[1:])})"
            " and a number of clients (--partition, --clients)"
        )
    natural = "client" in arrays and partition in (None, "natural")
    owner: Array = client_ids(arrays["client"], samples) if natural else np.full(samples, NO_CLIENT)
    if "split" not in arrays:
        test = partitions.holdout(owner, TEST_FRACTION if test_fraction is None else test_fraction, seed=seed)
    elif test_fraction is None:
        test = split_mask(f"split of {name!r}", arrays["split"], samples)
    else:
        raise GradsiftError(f"test_fraction={test_fraction!r} has no use: {name!r} has a split of its own")
    x, y, names = arrays["x"], arrays["y"], []
    if natural:
        partitions.check_options("natural", alpha, at_least)
        if clients is not None:
            keep = _first_clients(owner, clients, name)
            x, y, owner, test = x[keep], y[keep], owner[keep], test[keep]
        names = _client_names(arrays, owner, name)
    else:
        owner[~test] = partitions.assign(str(partition), y[~test], clients, alpha=alpha, at_least=at_least, seed=seed)
    # Rows are sorted by client before bytes become floats, which are four times as large.
    data = FederatedData.from_arrays(x, y, owner, test=test, name=name, client_names=names, num_classes=classes)
    return data if layout == "as-is" else data.converted(partial(inputs, layout=layout), targets)


def save_npz(data: FederatedData, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write data to an ``.npz`` from which ``load_npz`` reads exactly the same data."""
    path = Path(path)
    if path.suffix != ".npz":
        raise GradsiftError(f"the name of the file must end in .npz, got {str(path)!r}")
    if path.exists() and not overwrite:
        raise GradsiftError(f"{path} exists already; overwrite=True replaces it")
    tests = len(data.test_x)
    arrays: dict[str, Array] = {
        "x": _stacked(data.x, data.test_x),
        "y": _stacked(data.y, data.test_y),
        "client": np.concatenate([data.owner, np.full(tests, NO_CLIENT)]).astype(np.int64),
        "split": np.repeat(np.array([0, 1], dtype=np.uint8), [len(data.x), tests]),
        "layout": np.array("as-is"),
    }
    if data.client_names:
        arrays["client_name"] = np.array(data.client_names)
    if data.num_classes is not None:
        arrays["classes"] = np.array(data.num_classes)
    try:
        files.write(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
    except OSError as problem:
        raise GradsiftError(f"cannot write {path}: {problem}") from problem
    return path


def _stacked(train: Any, test: Any) -> Array:
    rows: Array = train.cpu().numpy()
    return np.concatenate([rows, test.cpu().numpy()]) if len(test) else rows


def _check_arrays(arrays: Mapping[str, Array], name: str) -> int:
    """Refuse arrays whose types or lengths are wrong; returns the number of samples."""
    for needed in ("x", "y"):
        if needed not in arrays:
            raise GradsiftError(f"{name!r} has no array {needed!r}, only {', '.join(sorted(arrays)) or 'none'}")
    columns = [column for column in ("x", "y", "client", "split") if column in arrays]
    for column in columns:
        if arrays[column].ndim == 0:
            raise GradsiftError(f"{column!r} of {name!r} must have one row for each sample, got a single value")
    lengths = {column: len(arrays[column]) for column in columns}
    if len(set(lengths.values())) > 1:
        raise GradsiftError(f"the arrays of {name!r} differ in length: {lengths}")
    if lengths["x"] == 0:
        raise GradsiftError(f"{name!r} has no samples")
    for column in ("x", "y"):
        tensor(f"{column} of {name!r}", arrays[column][:1])  # refuses anything but numbers
    classes = arrays.get("classes", np.array(0))
    if classes.ndim != 0 or classes.dtype.kind not in "iu":
        raise GradsiftError(f"classes of {name!r} must be one integer, got {classes.dtype} {list(classes.shape)}")
    return lengths["x"]


def _first_clients(owner: Array, clients: int, name: str) -> NDArray[np.intp]:
    """Return the rows of the ``clients`` lowest ids, and the test rows that belong to no client."""
    ids = np.unique(owner)
    ids = ids[ids != NO_CLIENT] if owner.dtype.kind == "i" else ids
    check.integer("clients", clients, 1)
    if clients > len(ids):
        raise GradsiftError(f"{name!r} has {len(ids)} clients, fewer than {clients!r}")
    return np.flatnonzero(owner <= ids[clients - 1])  # includes NO_CLIENT, which is below every id


def _client_names(arrays: Mapping[str, Array], owner: Array, name: str) -> list[str]:
    if "client_name" not in arrays or owner.dtype.kind != "i":
        return []
    names = arrays["client_name"]
    ids = np.unique(owner[owner >= 0])
    if names.ndim != 1 or (len(ids) and ids[-1] >= len(names)):
        raise GradsiftError(f"client_name of {name!r} has shape {list(names.shape)}, the largest client is {ids[-1]}")
    return [str(names[i]) for i in ids]
