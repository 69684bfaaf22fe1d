"""Read LEAF's JSON folders (Caldas et al. 2018, https://leaf.cmu.edu), which its ``preprocess.sh`` writes to ``data/``.

A folder has train/*.json and test/*.json, or all_data/*.json without a split. Each file holds
{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradsift import check
from gradsift.data.convert import numbers, targets, tensor
from gradsift.data.federated import NO_CLIENT, FederatedData
from gradsift.data.npz import TEST_FRACTION, Array
from gradsift.data.partition import holdout
from gradsift.errors import GradsiftError

Users = dict[str, tuple[Array, Array]]


def is_leaf_folder(folder: Path) -> bool:
    """Return whether the folder has the subfolders of LEAF."""
    return (folder / "train").is_dir() or (folder / "all_data").is_dir()


def import_leaf(
    folder: str | os.PathLike[str],
    *,
    shape: Sequence[int] | None = None,
    new_users: bool = False,
    test_fraction: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Read a LEAF folder of numbers (FEMNIST, synthetic; not LEAF's text), one client for each user in file order.

    ``shape`` is the shape of a sample, such as (1, 28, 28), because LEAF stores samples flat. ``new_users`` keeps the
    test samples of users who have no training data (LEAF's split by user); without it such users are refused. A folder
    with ``all_data`` alone is split here: ``test_fraction`` (0.1) of each user's samples, drawn from ``seed``.
    """
    check.boolean("new_users", new_users)
    if shape is not None:
        _check_shape(shape)
    base = Path(folder)
    has_split = (base / "train").is_dir()
    test: Users = {}
    if has_split:
        if test_fraction is not None:
            raise GradsiftError(f"test_fraction={test_fraction!r} has no use: {str(base)!r} is split already")
        train = _read(base / "train")
        test = _read(base / "test") if (base / "test").is_dir() else {}
        new = [user for user in test if user not in train and len(test[user][0])]
        if new and not new_users:
            raise GradsiftError(
                f"{len(new)} users of {base / 'test'} are not in train, the first is {new[0]!r}:"
                " the option new_users keeps their samples as test data (--set data.new_users=true)"
            )
    elif (base / "all_data").is_dir():
        train = _read(base / "all_data")
    else:
        raise GradsiftError(f"{str(base)!r} is not a LEAF folder: it has neither train nor all_data")
    for user, (samples, _) in train.items():
        if len(samples) == 0:
            raise GradsiftError(f"user {user!r} of {str(base)!r} has no training samples")
    x, y = _joined([*train.values(), *(part for part in test.values() if len(part[0]))], base, shape)
    number = np.repeat(np.arange(len(train)), [len(samples) for samples, _ in train.values()])
    client = np.concatenate([number, np.full(len(x) - len(number), NO_CLIENT)])
    fraction = TEST_FRACTION if test_fraction is None else test_fraction
    split = client == NO_CLIENT if has_split else holdout(client, fraction, seed=seed)
    data = FederatedData.from_arrays(x, y, client, test=split, name=base.name or "leaf", client_names=list(train))
    return data.converted(numbers, targets)


def _check_shape(shape: object) -> None:
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise GradsiftError(f"shape must be the sizes of a sample, such as 1,28,28, got {shape!r}")
    for size in shape:
        check.integer("a size of shape", size, 1)


def _joined(parts: list[tuple[Array, Array]], base: Path, shape: Sequence[int] | None) -> tuple[Array, Array]:
    if not parts:
        raise GradsiftError(f"{str(base)!r} has no users")
    try:
        x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    except ValueError as problem:
        raise GradsiftError(f"the samples of {str(base)!r} differ in shape: {problem}") from None
    if shape is None:
        return x, y
    if int(np.prod(shape)) != x[0].size:
        raise GradsiftError(f"shape {tuple(shape)} does not fit LEAF's samples of {x[0].size} numbers")
    return x.reshape(len(x), *shape), y


def _read(folder: Path) -> Users:
    users: Users = {}
    files = sorted(folder.glob("*.json"))
    if not files:
        raise GradsiftError(f"there is no .json file in {folder}")
    for path in files:
        for user, samples in _file(path).items():
            if user in users:
                raise GradsiftError(f"user {user!r} is in two files of {folder}, the second is {path.name}")
            users[user] = samples
    return users


def _file(path: Path) -> Users:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as problem:
        raise GradsiftError(f"cannot read {path}: {problem}") from None
    if not isinstance(content, dict) or not isinstance(content.get("user_data"), dict):
        raise GradsiftError(f"{path} is not a LEAF file: it has no 'user_data'")
    data, users = content["user_data"], content.get("users")
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise GradsiftError(f"{path} is not a LEAF file: it has no list 'users' of names")
    counts = content.get("num_samples")
    if not isinstance(counts, list) or len(counts) != len(users):
        raise GradsiftError(f"{path} is damaged: 'num_samples' does not have one number for each of 'users'")
    if len(set(users)) != len(users) or set(users) != set(data):
        odd = sorted(str(user) for user in set(users) ^ set(data)) or ["one is listed twice"]
        raise GradsiftError(f"{path} is damaged: 'users' and 'user_data' differ: {odd[0]}")
    pairs = zip(users, counts, strict=True)
    return {user: _samples(data[user], count, f"user {user!r} of {path}") for user, count in pairs}


def _samples(entry: Any, count: Any, where: str) -> tuple[Array, Array]:
    if not isinstance(entry, dict) or not isinstance(entry.get("x"), list) or not isinstance(entry.get("y"), list):
        raise GradsiftError(f"{where} has no lists 'x' and 'y'")
    if not len(entry["x"]) == len(entry["y"]) == count:
        raise GradsiftError(f"{where} has {len(entry['x'])} x and {len(entry['y'])} y for num_samples {count!r}")
    if count == 0:
        return np.empty(0), np.empty(0)
    return _array(entry["x"], f"x of {where}"), _array(entry["y"], f"y of {where}")


def _array(values: list[Any], where: str) -> Array:
    first: Any = values
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(first, str):
        raise GradsiftError(f"{where} is text; gradsift takes numbers: encode it first")
    return tensor(where, values).numpy()
