"""The project's own import format: an ``.npz`` of arrays, a row a sample. No pickle is ever read.

x       [n, ...]       samples; bytes are pixels, see ``layout``
y       [n]            class labels, or [n, ...] targets
client  [n]            optional: the owner of each row, an integer or a name; -1 for a test row that is nobody's
split   [n]            optional: 0 train, 1 test
client_name  [clients] optional: what to call client id i
classes      []        optional: how many classes there are, if more than the labels show
layout       []        optional: how x is stored, "auto" if absent
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsift import check
from gradsift.data import partition as partitions
from gradsift.data.convert import check_layout, client_ids, inputs, targets, tensor
from gradsift.data.federated import NOBODY, FederatedData
from gradsift.errors import GradsiftError
from gradsift.records import files

ARRAYS = ("x", "y", "client", "split", "client_name", "classes", "layout")
TEST_FRACTION = 0.1

Array = NDArray[Any]


def read_arrays(path: Path, names: Collection[str] = ARRAYS) -> dict[str, Array]:
    """Those arrays of an ``.npz`` that it has; a file that is damaged, or that would need unpickling, is refused."""
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
    """A damaged directory must not make an optional array (``split``) just seem absent."""
    for member in archive.zip.infolist():
        if member.comment:  # numpy writes none: it is the entry of the next array, swallowed by a wrong length
            raise ValueError(f"the entry of {member.filename} is damaged")
        archive.zip.open(member).close()  # compares the name here with the one beside the data


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
    """Data from an ``.npz`` (or its arrays in a dict): the table above, and ``gradsift.data.convert.inputs`` for x.

    With a ``client`` array its own ids are used (``clients=n``: the n lowest only); ``partition`` ("one-class",
    "dirichlet", "iid") shares the training rows out afresh among ``clients``, and is needed where there is none.
    Without a ``split`` array, ``test_fraction`` (0.1) of each client's rows is held out, of all rows where there are no
    clients yet; ``seed`` keys that and the partition.
    """
    if isinstance(source, Mapping):
        arrays, name = dict(source), name or "data"
    else:
        path = Path(source)
        arrays, name = read_arrays(path), name or path.stem
    samples = _checked_length(arrays, name)
    layout = str(arrays.get("layout", "auto")) if layout is None else layout
    check_layout(layout)
    if classes is None and "classes" in arrays:
        classes = _scalar(arrays["classes"], "classes", name)
    split = _split(arrays["split"], name) if "split" in arrays else None
    if split is not None and test_fraction is not None:
        raise GradsiftError(f"test_fraction={test_fraction!r} has no use: {name!r} has a split of its own")
    fraction = TEST_FRACTION if test_fraction is None else test_fraction
    names: list[str] = []
    if partition is None:
        if "client" not in arrays:
            raise GradsiftError(
                f"{name!r} does not say who owns its rows: choose a partition ({', '.join(partitions.PARTITIONS[1:])})"
                " and a number of clients (--partition, --clients)"
            )
        partition = "natural"
    if partition == "natural" and "client" in arrays:
        for option, value in (("alpha", alpha), ("at_least", at_least)):
            if value is not None:
                raise GradsiftError(f"{option}={value!r} is for partition 'dirichlet'; {name!r} has its own clients")
        owner: Array = client_ids(arrays["client"], samples)
        if split is None:
            split = partitions.holdout(owner, fraction, seed=seed)
        if clients is not None:
            keep = _first(owner, clients, name)
            owner, split = owner[keep], split[keep]
            arrays["x"], arrays["y"] = arrays["x"][keep], arrays["y"][keep]
        names = _names(arrays, owner, name)
    else:
        if split is None:
            split = partitions.holdout(np.zeros(samples, dtype=np.int64), fraction, seed=seed)
        owner = np.full(samples, NOBODY, dtype=np.int64)
        owner[~split] = partitions.assign(
            partition, arrays["y"][~split], clients, alpha=alpha, at_least=at_least, seed=seed
        )
    # Bytes are put in order first and made floats after: a quarter of the traffic.
    data = FederatedData.from_arrays(
        arrays["x"], arrays["y"], owner, test=split, name=name, client_names=names, num_classes=classes
    )
    if layout == "as-is":
        return data
    return replace(
        data,
        x=inputs(data.x, layout),
        y=targets(data.y),
        test_x=inputs(data.test_x, layout),
        test_y=targets(data.test_y),
    )


def save_npz(data: FederatedData, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write data as an ``.npz`` that ``load_npz`` reads back exactly."""
    path = Path(path)
    if path.suffix != ".npz":
        raise GradsiftError(f"the file must be called something.npz, got {str(path)!r}")
    if path.exists() and not overwrite:
        raise GradsiftError(f"{path} exists already; overwrite=True replaces it")
    tests = len(data.test_x)
    arrays: dict[str, Array] = {
        "x": _stacked(data.x, data.test_x),
        "y": _stacked(data.y, data.test_y),
        "client": np.concatenate([data.owner, np.full(tests, NOBODY)]).astype(np.int64),
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


def _checked_length(arrays: Mapping[str, Array], name: str) -> int:
    for needed in ("x", "y"):
        if needed not in arrays:
            raise GradsiftError(f"{name!r} has no array {needed!r}, only {', '.join(sorted(arrays)) or 'none'}")
    columns = [column for column in ("x", "y", "client", "split") if column in arrays]
    for column in columns:
        if arrays[column].ndim == 0:
            raise GradsiftError(f"{column!r} of {name!r} must have one row a sample, got a single value")
    lengths = {column: len(arrays[column]) for column in columns}
    if len(set(lengths.values())) > 1:
        raise GradsiftError(f"the arrays of {name!r} differ in length: {lengths}")
    if lengths["x"] == 0:
        raise GradsiftError(f"{name!r} has no samples")
    for column in ("x", "y"):
        tensor(f"{column} of {name!r}", arrays[column][:1])  # refuses what is not numbers
    return lengths["x"]


def _split(values: Array, name: str) -> NDArray[np.bool_]:
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise GradsiftError(f"split of {name!r} must be [n] of 0 and 1, got {values.dtype} {list(values.shape)}")
    wrong = np.flatnonzero((values != 0) & (values != 1))
    if len(wrong):
        raise GradsiftError(
            f"split of {name!r} must be 0 (train) or 1 (test), got {values[wrong[0]]} in row {wrong[0]}"
        )
    return values.astype(bool)


def _scalar(values: Array, what: str, name: str) -> int:
    if values.ndim != 0 or values.dtype.kind not in "iu":
        raise GradsiftError(f"{what} of {name!r} must be one integer, got {values.dtype} {list(values.shape)}")
    return int(values)


def _first(owner: Array, clients: int, name: str) -> NDArray[np.intp]:
    """The rows of the ``clients`` lowest ids, and the test rows that are nobody's."""
    ids = np.unique(owner)
    ids = ids[ids != NOBODY] if owner.dtype.kind == "i" else ids
    check.integer("clients", clients, 1)
    if clients > len(ids):
        raise GradsiftError(f"{name!r} has {len(ids)} clients, cannot take {clients!r} of them")
    return np.flatnonzero(owner <= ids[clients - 1])  # nobody, -1, is below every id


def _names(arrays: Mapping[str, Array], owner: Array, name: str) -> list[str]:
    if "client_name" not in arrays or owner.dtype.kind != "i":
        return []
    names = arrays["client_name"]
    ids = np.unique(owner[owner != NOBODY])
    if names.ndim != 1 or (len(ids) and (ids[-1] >= len(names) or ids[0] < 0)):
        raise GradsiftError(f"client_name of {name!r} has shape {list(names.shape)}, the largest client is {ids[-1]}")
    return [str(names[i]) for i in ids]
