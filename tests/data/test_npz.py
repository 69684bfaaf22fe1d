"""The import format: any .npz of x, y, client, split; read without pickle, written back exactly."""

import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradsift import GradsiftError
from gradsift.data import FederatedData, holdout, load, load_npz, save_npz
from gradsift.data.partition import assign
from tests.examples import examples

Arrays = dict[str, NDArray[Any]]


def written(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def complete(rows: int = 40) -> Arrays:
    """Four clients, a fifth of the rows test, distinct images."""
    return {
        "x": np.arange(rows * 6, dtype=np.uint8).reshape(rows, 2, 3),
        "y": (np.arange(rows) % 3).astype(np.uint8),
        "client": (np.arange(rows) % 4).astype(np.int32),
        "split": (np.arange(rows) % 5 == 4).astype(np.uint8),
    }


SHAPES = st.sampled_from([(), (3,), (1, 4), (2, 3, 1), (1, 2, 4), (3, 2, 3)])


@st.composite
def federated(draw: st.DrawFn) -> FederatedData:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    tests, shape = draw(st.integers(0, 3)), draw(SHAPES)
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.uint8, torch.int64, torch.float16]))
    count = sum(sizes)
    values = torch.arange((count + tests) * int(np.prod(shape))).view(count + tests, *shape).to(dtype)
    labels = torch.arange(count + tests)
    if draw(st.booleans()):
        labels = labels.double() / 3
    names = tuple(f"client {i}" for i in range(len(sizes))) if draw(st.booleans()) else ()
    classes = draw(st.sampled_from([None, 50]))
    size = np.array(sizes)
    return FederatedData(
        values[:count], labels[:count], size, values[count:], labels[count:], client_names=names, num_classes=classes
    )


@examples(50)
@given(federated())
def test_what_is_saved_is_loaded_exactly(tmp_path_factory: pytest.TempPathFactory, data: FederatedData) -> None:
    path = save_npz(data, tmp_path_factory.mktemp("saved") / "my data.npz")
    again = load(path)
    assert again.fingerprint() == data.fingerprint()
    assert again.name == "my data"
    assert again.num_classes == data.num_classes
    assert again.client_names == (data.client_names or tuple(str(i) for i in range(data.num_clients)))
    assert [file.name for file in path.parent.iterdir()] == ["my data.npz"]


def test_the_four_arrays(tmp_path: Path) -> None:
    arrays = complete()
    data = load(str(written(tmp_path / "four.npz", **arrays)))
    train = arrays["split"] == 0
    order = np.argsort(arrays["client"][train], kind="stable")
    expected = (arrays["x"][train][order].astype(np.float32) / 255)[:, None]
    np.testing.assert_array_equal(data.x.numpy(), expected)
    np.testing.assert_array_equal(data.y.numpy(), arrays["y"][train][order])
    np.testing.assert_array_equal(data.test_y.numpy(), arrays["y"][~train])
    assert list(data.test_x.shape) == [8, 1, 2, 3]
    assert data.size.tolist() == [8, 8, 8, 8]
    assert (data.name, data.classes, data.client_names) == ("four", 3, ("0", "1", "2", "3"))


def test_other_arrays_are_ignored_and_names_and_classes_used() -> None:
    names = np.array(["ann", "bob", "cy", "di", "nobody"])
    data = load_npz({**complete(), "client_name": names, "classes": np.array(9), "other": np.array([object()])})
    assert data.client_names == ("ann", "bob", "cy", "di")
    assert data.classes == 9
    assert load_npz({**complete(), "classes": np.array(9)}, classes=11).classes == 11


@pytest.mark.parametrize("clients", [1, 3, 4])
def test_the_first_clients_with_their_test_rows(clients: int) -> None:
    arrays = complete()
    nobodys = {"x": arrays["x"][:2], "y": arrays["y"][:2], "client": np.array([-1, -1]), "split": np.array([1, 1])}
    arrays = {key: np.concatenate([values, nobodys[key]]) for key, values in arrays.items()}
    data = load_npz(arrays, clients=clients)
    assert data.num_clients == clients
    held = (arrays["split"] == 1) & (arrays["client"] < clients)
    assert data.test_y.tolist() == arrays["y"][held].tolist()
    named = {**arrays, "client": np.array([f"w{c}" for c in arrays["client"]]), "split": np.zeros(42, dtype=int)}
    assert load_npz(named, clients=clients).num_clients == clients


def test_without_split_each_client_gives_a_seeded_part() -> None:
    arrays = complete()
    del arrays["split"]
    for options, fraction in (({}, 0.1), ({"test_fraction": 0.5}, 0.5), ({"test_fraction": 0.0}, 0.0)):
        data = load_npz(arrays, seed=7, **options)  # type: ignore[arg-type]
        held = holdout(arrays["client"], fraction, seed=7)
        assert data.test_y.tolist() == arrays["y"][held].tolist()
        assert data.size.tolist() == [10 - round(10 * fraction)] * 4
    first, second = load_npz(arrays, seed=7), load_npz(arrays, seed=8)
    assert first.fingerprint() == load_npz(arrays, seed=7).fingerprint() != second.fingerprint()


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("client", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"partition": "iid"},
        {"partition": "one-class"},
        {"partition": "dirichlet"},
        {"partition": "dirichlet", "alpha": 0.1, "at_least": 2},
    ],
)
def test_a_partition_shares_the_training_rows_out_afresh(split: bool, client: bool, options: dict[str, Any]) -> None:
    arrays = complete()
    if not client:
        del arrays["client"]
    marks = arrays["split"] == 1 if split else holdout(np.zeros(40), 0.1, seed=5)
    if not split:
        del arrays["split"]
    data = load_npz(arrays, clients=6, seed=5, **options)
    train = {key: values[~marks] for key, values in arrays.items()}
    more = {key: value for key, value in options.items() if key != "partition"}
    owner = assign(options["partition"], train["y"], 6, seed=5, **more)
    expected = train["x"][np.argsort(owner, kind="stable")].astype(np.float32) / 255
    np.testing.assert_array_equal(data.x.numpy()[:, 0], expected)
    assert data.size.tolist() == np.bincount(owner).tolist()
    assert data.test_y.tolist() == arrays["y"][marks].tolist()


@pytest.mark.parametrize(
    ("change", "dtype", "shape"),
    [
        ({"x": np.zeros((40, 8, 8, 3), dtype=np.uint8)}, torch.float32, [3, 8, 8]),
        ({"x": np.zeros((40, 8, 8, 3))}, torch.float32, [3, 8, 8]),
        ({"x": np.zeros((40, 5), dtype=">f4")}, torch.float32, [5]),
        ({"x": np.zeros((40, 5), dtype=np.int32)}, torch.int64, [5]),
        ({"x": np.zeros((40, 5)), "layout": np.array("as-is")}, torch.float64, [5]),
        ({"x": np.zeros((40, 5, 5)), "layout": np.array("as-is")}, torch.float64, [5, 5]),
        ({"x": np.zeros((40, 3, 8, 3)), "layout": np.array("channels-last")}, torch.float32, [3, 3, 8]),
    ],
)
def test_x_of_every_kind(change: Arrays, dtype: torch.dtype, shape: list[int]) -> None:
    data = load_npz({**complete(), **change})
    assert (data.x.dtype, list(data.x.shape[1:])) == (dtype, shape)
    assert (data.test_x.dtype, list(data.test_x.shape[1:])) == (dtype, shape)


def test_float_targets() -> None:
    data = load_npz({**complete(), "y": np.linspace(-1, 1, 80).reshape(40, 2)})
    assert (data.y.dtype, list(data.y.shape), data.labelled) == (torch.float32, [32, 2], False)


def test_an_option_layout_overrides_the_file() -> None:
    data = load_npz({**complete(), "x": np.zeros((40, 3, 8, 3))}, layout="channels-first")
    assert list(data.x.shape[1:]) == [3, 8, 3]


def without(*names: str) -> Arrays:
    return {key: values for key, values in complete().items() if key not in names}


def marked(row: int, **changes: Any) -> Arrays:
    """The complete arrays with one value changed."""
    arrays = complete()
    for name, value in changes.items():
        arrays[name] = arrays[name].astype(type(value))
        arrays[name][row] = value
    return arrays


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_npz(without("x")), "'data' has no array 'x', only client, split, y"),
        (lambda: load_npz(without("y")), "'data' has no array 'y', only client, split, x"),
        (lambda: load_npz({}), "'data' has no array 'x', only none"),
        (lambda: load_npz(without("client")), "'data' has no array 'client': choose a partition (one-class, "),
        (lambda: load_npz(without("client"), partition="natural"), "partition 'natural' needs data that names"),
        (lambda: load_npz(without("client"), partition="iid"), "partition 'iid' needs a number of clients (--clients)"),
        (lambda: load_npz({**complete(), "y": np.zeros(39)}), "differ in length: {'x': 40, 'y': 39, 'client': 40"),
        (lambda: load_npz({**complete(), "split": np.zeros(41)}), "differ in length: {'x': 40, 'y': 40, 'client': 40"),
        (lambda: load_npz({**complete(), "x": np.array(1)}), "'x' of 'data' must have one row for each sample, got a"),
        (lambda: load_npz({key: v[:0] for key, v in complete().items()}), "'data' has no samples"),
        (lambda: load_npz(marked(3, split=2)), "split of 'data' must hold 0 (train) or 1 (test), got 2 in row 3"),
        (lambda: load_npz(marked(3, split=-1)), "split of 'data' must hold 0 (train) or 1 (test), got -1 in row 3"),
        (lambda: load_npz(marked(3, split=0.5)), "split of 'data' must hold 0 (train) or 1 (test), got 0.5 in row 3"),
        (
            lambda: load_npz({**complete(), "split": np.array(["0"] * 40)}),
            "split of 'data' must hold 0 (train) or 1 (test), got",
        ),
        (lambda: load_npz(marked(0, y=-4)), "labels must not be negative, got -4 in 'data'"),
        (lambda: load_npz(marked(0, client=-1)), "client must not be negative, got -1 in row 0"),
        (lambda: load_npz(marked(4, client=9)), "client 4 (9) of 'data' has no training samples"),
        (lambda: load_npz(marked(0, client=0.5)), "client must hold integers or names, got dtype float64"),
        (
            lambda: load_npz({**complete(), "x": np.full((40, 2), np.nan)}),
            "x of 'data' must be finite, got nan at [0, 0]",
        ),
        (lambda: load_npz({**complete(), "x": np.array(["a"] * 40)}), "x of 'data' must hold numbers, got dtype <U1"),
        (lambda: load_npz({**complete(), "y": np.array(["a"] * 40)}), "y of 'data' must hold numbers, got dtype <U1"),
        (lambda: load_npz(complete(), clients=5), "'data' has 4 clients, fewer than 5"),
        (lambda: load_npz(complete(), clients=0), "clients must be at least 1, got 0"),
        (lambda: load_npz(complete(), clients=2.5), "clients must be an integer, got 2.5"),  # type: ignore[arg-type]
        (lambda: load_npz(complete(), alpha=0.5), "alpha=0.5 is for partition 'dirichlet', not for 'natural'"),
        (lambda: load_npz(complete(), at_least=5), "at_least=5 is for partition 'dirichlet', not for"),
        (lambda: load_npz(complete(), test_fraction=0.1), "test_fraction=0.1 has no use: 'data' has a split"),
        (lambda: load_npz(without("split"), test_fraction=1.5), "the fraction held out for test must be below 1"),
        (lambda: load_npz(complete(), classes=2), "label 2 in 'data' is outside its 2 classes"),
        (lambda: load_npz({**complete(), "classes": np.array([3])}), "classes of 'data' must be one integer"),
        (lambda: load_npz({**complete(), "layout": np.array("hwc")}), "unknown layout 'hwc'"),
        (lambda: load_npz({**complete(), "client_name": np.array(["a"])}), "client_name of 'data' has shape [1], the"),
        (lambda: load_npz(complete(), partition="random"), "unknown partition 'random'"),
        (lambda: load_npz("no/such.npz"), "there is no file no/such.npz"),
    ],
)
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(message)):
        call()


class Trap:
    """Unpickling it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_python_objects_are_never_read(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    path = written(tmp_path / "objects.npz", **{**complete(), "y": np.array([Trap(sprung)] * 40)})
    with pytest.raises(GradsiftError, match=r"objects.npz holds Python objects, which are never read"):
        load(path)
    bare = tmp_path / "bare.npz"
    bare.write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(GradsiftError, match=r"bare.npz is not an .npz file"):
        load(bare)
    assert not sprung.exists()
    with path.open("rb") as file, np.load(file, allow_pickle=True) as arrays:
        assert arrays["y"].shape == (40,)  # the trap works: this springs it
    assert sprung.exists()


def test_files_of_other_kinds(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(GradsiftError, match=r"one.npy is one array, not an .npz of several"):
        load(tmp_path / "one.npy")
    for name, content in (("empty.npz", b""), ("words.txt", b"hello, world"), ("other.npz", bytes(range(99)))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(GradsiftError, match=rf"{name} is not an .npz file"):
            load(tmp_path / name)
    (tmp_path / "zip.npz").write_bytes(b"PK\x05\x06")
    with pytest.raises(GradsiftError, match=r"cannot read .*zip.npz, it is damaged or not an .npz"):
        load(tmp_path / "zip.npz")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.npz", **complete()).read_bytes()
    cut = tmp_path / "cut.npz"
    for length in range(0, len(whole), 7):
        cut.write_bytes(whole[:length])
        with pytest.raises(GradsiftError, match=r"cut.npz"):
            load(cut)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, **complete())  # type: ignore[arg-type]
    damaged = bytearray(file.getvalue())
    for place, value in flips:
        damaged[place % len(damaged)] = value
    path = tmp_path_factory.mktemp("damaged") / "damaged.npz"
    path.write_bytes(damaged)
    try:
        data = load(path)
    except GradsiftError:
        return
    # Only what does not matter (a date) may have changed.
    assert data.fingerprint() == load_npz(complete()).fingerprint()


def test_no_damage_to_the_directory_hides_an_array(tmp_path: Path) -> None:
    path = tmp_path / "damaged.npz"
    whole = written(path, **complete()).read_bytes()
    right = load(path).fingerprint()
    for place in range(whole.index(b"PK\x01\x02"), len(whole)):
        # 55 is the length of the last entry: as the length of a comment before it, it would swallow it.
        for value in {whole[place] ^ 1, 0, 55} - {whole[place]}:
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                assert load(path).fingerprint() == right, (place, value)
            except GradsiftError:
                continue


def test_a_file_is_replaced_only_when_told(tmp_path: Path) -> None:
    data = load_npz(complete())
    path = save_npz(data, tmp_path / "kept.npz")
    before = path.read_bytes()
    with pytest.raises(GradsiftError, match=r"kept.npz exists already; overwrite=True replaces it"):
        save_npz(data.subset([1]), path)
    assert path.read_bytes() == before
    save_npz(data.subset([1]), path, overwrite=True)
    assert load(path).num_clients == 1
    with pytest.raises(GradsiftError, match=r"the name of the file must end in .npz, got '.*data.txt'"):
        save_npz(data, tmp_path / "data.txt")
    with pytest.raises(GradsiftError, match=r"cannot write .*lost.npz"):
        save_npz(data, tmp_path / "nowhere" / "lost.npz")


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_npz(complete())
    path = save_npz(data, tmp_path / "kept.npz")
    before = path.read_bytes()

    def full(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(GradsiftError, match=r"cannot write .*kept.npz: .*No space left on device"):
        save_npz(data, path, overwrite=True)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["kept.npz"]
