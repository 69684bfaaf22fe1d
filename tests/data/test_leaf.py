"""LEAF's JSON folders, written here exactly as its preprocess.sh writes them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsift import GradsiftError
from gradsift.data import holdout, import_leaf, load
from tests.examples import examples

Users = dict[str, tuple[list[Any], list[Any]]]


def leaf_file(path: Path, users: Users, /, **changes: Any) -> None:
    content: dict[str, Any] = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**content, **changes}))


def images(count: int, first: int = 0) -> tuple[list[Any], list[Any]]:
    """Flat images of four pixels in [0, 1] as LEAF stores them, and labels."""
    pixels = (np.arange(first, first + 4 * count) % 256 / 255).reshape(count, 4)
    return pixels.tolist(), [(first + i) % 5 for i in range(count)]


@st.composite
def folders(draw: st.DrawFn) -> list[Users]:
    """Files of users, with names in no order."""
    names = draw(st.lists(st.text("fx_019", min_size=1, max_size=6), min_size=1, max_size=6, unique=True))
    users = [(name, images(draw(st.integers(1, 5)), draw(st.integers(0, 99)))) for name in names]
    cut = draw(st.integers(0, len(users)))
    return [dict(part) for part in (users[:cut], users[cut:])]


@examples(40)
@given(folders(), folders(), st.booleans())
def test_a_client_a_user(
    tmp_path_factory: pytest.TempPathFactory, train: list[Users], test: list[Users], new_users: bool
) -> None:
    base = tmp_path_factory.mktemp("leaf")
    for split, files in (("train", train), ("test", test)):
        for number, users in enumerate(files):
            leaf_file(base / split / f"all_data_{number}_niid_0_keep_0_{split}_9.json", users)
    everyone = {**train[0], **train[1]}
    tests = {**test[0], **test[1]}
    strangers = [user for user in tests if user not in everyone]
    if strangers and not new_users:
        message = (
            f"{len(strangers)} users of .*test are not in train, the first is {strangers[0]!r}: the option new_users"
        )
        with pytest.raises(GradsiftError, match=message):
            import_leaf(base)
        return
    data = import_leaf(base, shape=(1, 2, 2), new_users=new_users)
    assert data.client_names == tuple(everyone)
    for number, (x, y) in enumerate(everyone.values()):
        mine = data.rows(number)
        assert torch.equal(data.x[mine], torch.tensor(x, dtype=torch.float32).view(-1, 1, 2, 2))
        assert data.y[mine].tolist() == y
    assert data.test_y.tolist() == [label for _, y in tests.values() for label in y]
    flat = [pixels for x, _ in tests.values() for pixels in x]
    assert torch.equal(data.test_x, torch.tensor(flat, dtype=torch.float32).view(-1, 1, 2, 2))
    again = load(base, shape=(1, 2, 2), new_users=new_users)
    assert again.fingerprint() == data.fingerprint()


def test_all_data_is_split_within_each_user(tmp_path: Path) -> None:
    sizes = {"b": 10, "a": 20, "c": 1}
    users = {user: images(size, 50 * size) for user, size in sizes.items()}
    leaf_file(tmp_path / "all_data" / "all_data.json", users)
    data = import_leaf(tmp_path, seed=3)
    assert data.client_names == ("b", "a", "c")
    assert data.size.tolist() == [9, 18, 1]
    labels = np.concatenate([y for _, y in users.values()])
    held = holdout(np.repeat([0, 1, 2], [10, 20, 1]), 0.1, seed=3)
    assert data.y.tolist() == labels[~held].tolist()
    assert data.test_y.tolist() == labels[held].tolist()
    assert import_leaf(tmp_path, seed=3, test_fraction=0.5).size.tolist() == [5, 10, 1]
    assert import_leaf(tmp_path, seed=4).fingerprint() != data.fingerprint()


def test_a_split_folder_wins_over_all_data(tmp_path: Path) -> None:
    leaf_file(tmp_path / "all_data" / "all.json", {"a": images(9)})
    leaf_file(tmp_path / "train" / "some.json", {"a": images(4)})
    data = import_leaf(tmp_path)
    assert (data.size.tolist(), len(data.test_x)) == ([4], 0)


def test_a_user_without_test_samples_is_no_stranger(tmp_path: Path) -> None:
    leaf_file(tmp_path / "train" / "f.json", {"a": images(2), "b": images(3)})
    leaf_file(tmp_path / "test" / "f.json", {"c": ([], []), "b": images(1)})
    assert import_leaf(tmp_path).test_y.tolist() == [0]


def test_shapes_and_kinds(tmp_path: Path) -> None:
    leaf_file(tmp_path / "train" / "f.json", {"a": ([[1, 2], [3, 4]], [0.5, 1.5]), "b": ([[5, 6]], [2.5])})
    data = import_leaf(tmp_path)
    assert (data.x.dtype, data.y.dtype) == (torch.int64, torch.float32)  # token ids, targets
    square = import_leaf(tmp_path, shape=(2, 1))
    assert list(square.x.shape) == [3, 2, 1]


GOOD = {"a": images(3), "b": images(2)}


def training(users: Users, /, **changes: Any) -> Callable[[Path], object]:
    def write(base: Path) -> object:
        leaf_file(base / "train" / "f.json", users, **changes)
        return import_leaf(base)

    return write


def text(content: str) -> Callable[[Path], object]:
    def write(base: Path) -> object:
        (base / "train").mkdir()
        (base / "train" / "f.json").write_text(content)
        return import_leaf(base)

    return write


def twice(base: Path) -> object:
    leaf_file(base / "train" / "1.json", GOOD)
    leaf_file(base / "train" / "2.json", {"b": images(1)})
    return import_leaf(base)


def no_files(base: Path) -> object:
    (base / "train").mkdir()
    return import_leaf(base)


def options(**given: Any) -> Callable[[Path], object]:
    def write(base: Path) -> object:
        leaf_file(base / "train" / "f.json", GOOD)
        return import_leaf(base, **given)

    return write


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (import_leaf, "is not a LEAF folder: it has neither train nor all_data"),
        (no_files, "there is no .json file in"),
        (text("{"), "f.json: Expecting property name"),
        (text("[1]"), "f.json is not a LEAF file: it has no 'user_data'"),
        (text('{"user_data": {}}'), "f.json is not a LEAF file: it has no list 'users' of names"),
        (text('{"user_data": {}, "users": [1]}'), "f.json is not a LEAF file: it has no list 'users' of names"),
        (text("\x00" * 9), "cannot read"),
        (training({}), "has no users"),
        (training(GOOD, num_samples=[3]), "'num_samples' does not have one number for each of 'users'"),
        (training(GOOD, num_samples=[3, 9]), "user 'b' of"),
        (training(GOOD, num_samples=[3, 9]), "has 2 x and 2 y for num_samples 9"),
        (training(GOOD, users=["a", "zed"]), "'users' and 'user_data' differ: b"),
        (training(GOOD, users=["a", "a"]), "'users' and 'user_data' differ: b"),
        (training({"a": ([[1.0]], [1]), "b": ([], [])}), "user 'b' of"),
        (training({"a": ([[1.0]], [1]), "b": ([], [])}), "has no training samples"),
        (training({"a": ([[1.0], [2.0]], [1])}), "user 'a' of"),
        (training({"a": ([[1.0], [2.0]], [1])}), "has 2 x and 1 y for num_samples 1"),
        (training({"a": ([[1.0], [2.0, 3.0]], [1, 2])}), "is not one array of numbers"),
        (training({"a": ([[1.0]], [1]), "b": ([[1.0, 2.0]], [1])}), "differ in shape"),
        (training({"a": (["to be or not"], ["t"])}), "x of user 'a' of"),
        (training({"a": (["to be or not"], ["t"])}), "is text; gradsift takes numbers: encode it first"),
        (training({"a": ([[1.0]], ["cat"])}), "y of user 'a' of"),
        (training({"a": ([[1.0]], [-3])}), "labels must not be negative, got -3"),
        (training({"a": ([[float("nan")]], [3])}), "must be finite, got nan at [0, 0]"),
        (training({"a": ([[None]], [3])}), "must hold numbers, got dtype object"),
        (twice, "user 'b' is in two files of"),
        (options(test_fraction=0.2), "test_fraction=0.2 has no use:"),
        (options(shape="1x2x2"), "shape must be the sizes of a sample, such as 1,28,28, got '1x2x2'"),
        (options(shape=4), "shape must be the sizes of a sample, such as 1,28,28, got 4"),
        (options(shape=True), "shape must be the sizes of a sample, such as 1,28,28, got True"),
        (options(shape=[1, "2", 2]), "a size of shape must be an integer, got '2'"),
        (options(shape=[4, -1, -1]), "a size of shape must be at least 1, got -1"),
        (options(new_users="maybe"), "new_users must be True or False, got 'maybe'"),
        (options(shape=(1, 28, 28)), "shape (1, 28, 28) does not fit LEAF's samples of 4 numbers"),
    ],
)
def test_bad_folders(tmp_path: Path, write: Callable[[Path], object], message: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(message)):
        write(tmp_path)
