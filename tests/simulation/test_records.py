"""What a run keeps on disk, without a run: files that are whole or not there, a folder that is one process's."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

import gradsift
from gradsift import GradsiftError, LocalSteps, RunError
from gradsift.errors import TakenError
from gradsift.records import files
from gradsift.records.folder import CONFIG, RECORDS, RunFolder, check_free, in_use, read_config, read_records
from gradsift.records.record import COLUMNS
from tests.method.controllers import OneEach
from tests.simulation.problems import blobs, mlp

FORM = "test 1"
ARRAYS: files.Arrays = {"weights": np.arange(5.0), "count": np.array(3)}


# Files.


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("fails", ["content", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_file_as_it_was(
    before: bytes | None, fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "file"
    if before is not None:
        place.write_bytes(before)

    def content(file: IO[bytes]) -> None:
        file.write(b"half of it")
        if fails == "content":
            raise OSError("no space")

    def failing(*_: Any) -> None:
        raise OSError("no space")

    if fails != "content":
        monkeypatch.setattr(os, fails, failing)
    with pytest.raises(OSError, match="no space"):
        files.write(place, content)
    assert (place.read_bytes() if place.exists() else None) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ([] if before is None else ["file"])


WRITER = """
import sys
from pathlib import Path
from gradsift.records import files
while True:
    for letter in b"ab":
        files.write(Path(sys.argv[1]), bytes([letter]) * 100_000)
"""


def test_whoever_reads_finds_a_whole_file_and_a_kill_leaves_one(tmp_path: Path) -> None:
    """Also where two processes write the same file."""
    place = tmp_path / "file"
    place.write_bytes(b"a" * 100_000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(place)]) for _ in range(2)]
    try:
        seen: set[bytes] = set()
        for _ in range(10**6):
            content = place.read_bytes()
            assert content == content[:1] * 100_000
            seen.add(content[:1])
            if seen == {b"a", b"b"}:
                break
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert seen == {b"a", b"b"}
    content = place.read_bytes()
    assert content == content[:1] * 100_000


SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
TYPES = st.sampled_from([np.float32, np.float64, np.int64, np.int8, np.bool_, np.uint16])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    array=st.one_of(TYPES).flatmap(lambda kind: hnp.arrays(kind, SHAPES)),
    facts=st.dictionaries(st.text(max_size=5).filter(lambda name: name != "format"), JSON, max_size=3),
    small=st.booleans(),
)
def test_what_is_saved_is_what_is_loaded(
    array: Any, facts: dict[str, Any], small: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("saved") / "one.npz"
    files.save(place, FORM, {"a": array, "deep/name": ARRAYS["weights"]}, facts, small=small)
    arrays, loaded = files.load(place, FORM)
    assert arrays.keys() == {"a", "deep/name"}
    assert (arrays["a"].dtype, arrays["a"].shape) == (array.dtype, array.shape)
    assert arrays["a"].tobytes() == array.tobytes()
    assert loaded == facts


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
def test_what_is_not_json_is_not_saved(bad: Any, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError)):
        files.save(tmp_path / "one.npz", FORM, ARRAYS, {"loss": bad})
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_form_is_refused_by_both_names(tmp_path: Path) -> None:
    files.save(tmp_path / "one.npz", "test 2", ARRAYS, {})
    with pytest.raises(GradsiftError, match=r"one\.npz is 'test 2', this version of gradsift reads 'test 1'"):
        files.load(tmp_path / "one.npz", FORM)
    with pytest.raises(FileNotFoundError):
        files.load(tmp_path / "none.npz", FORM)


def test_nothing_here_needs_torch() -> None:
    """A page of many runs should not wait for it."""
    modules = "gradsift.records.files, gradsift.records.folder, gradsift.records.record, gradsift.records.stop"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# The folder.


def create(place: Path, **facts: Any) -> RunFolder:
    return RunFolder.create(place, {"about": "me"}, ARRAYS, {"number": 0, **facts})


def record(number: int) -> dict[str, Any]:
    return {"round": number, "cost": 1.0 * number}


def read(arrays: files.Arrays, facts: files.Facts) -> int:
    assert arrays.keys() == ARRAYS.keys()
    number: int = facts["number"]
    return number


def continued(place: Path) -> tuple[int, list[Any]]:
    """The checkpoint that a run would continue from, and its records."""
    folder = RunFolder.open(place)
    try:
        return folder.restore(read), folder.records()
    finally:
        folder.close()


def test_a_folder_is_there_whole_with_its_first_checkpoint(tmp_path: Path) -> None:
    folder = create(tmp_path / "deep" / "run")
    assert {entry.name for entry in folder.path.iterdir()} == {CONFIG, RECORDS, ".lock", "checkpoint-00000000.npz"}
    assert read_config(folder.path) == folder.config
    assert folder.config["about"] == "me"
    assert folder.config["run"]
    assert in_use(folder.path)
    with pytest.raises(TakenError, match="is in use by another process"):
        RunFolder.open(folder.path)
    folder.close()
    assert not in_use(folder.path)
    assert continued(folder.path) == (0, [])
    with pytest.raises(TakenError, match="exists already: resume it, or choose another folder"):
        create(folder.path)


def test_records_after_the_newest_checkpoint_are_written_again(tmp_path: Path) -> None:
    folder = create(tmp_path / "run")
    for number in range(1, 8):
        folder.append(record(number))
        if number % 2 == 0:
            folder.save(number, ARRAYS, {"number": number})
    folder.close()
    left = {entry.name for entry in folder.path.glob("checkpoint-*")}
    assert left == {"checkpoint-00000004.npz", "checkpoint-00000006.npz"}  # the last two
    assert len(read_records(folder.path)) == 7
    assert continued(folder.path) == (6, [record(number) for number in range(1, 7)])
    again = RunFolder.open(folder.path)
    assert again.restore(read) == 6
    again.append(record(7))
    again.save(7, ARRAYS, {"number": 7})
    again.close()
    assert continued(folder.path) == (7, [record(number) for number in range(1, 8)])


def test_a_checkpoint_that_its_reader_refuses_changes_nothing(tmp_path: Path) -> None:
    folder = create(tmp_path / "run")
    folder.append(record(1))
    folder.save(1, ARRAYS, {"number": 1})
    folder.append(record(2))
    folder.close()
    with open(folder.path / RECORDS, "ab") as file:
        file.write(b'{"round": 3')
    before = {entry.name: entry.read_bytes() for entry in folder.path.iterdir()}

    def refuse(arrays: files.Arrays, facts: files.Facts) -> None:
        del arrays, facts
        raise GradsiftError("it is of another model")

    def miss(arrays: files.Arrays, facts: files.Facts) -> Any:
        del arrays
        return facts["nothing of that name"]

    opened = RunFolder.open(folder.path)
    with pytest.raises(GradsiftError, match=r"checkpoint-00000001\.npz cannot be used: it is of another model"):
        opened.restore(refuse)
    with pytest.raises(GradsiftError, match=r"checkpoint-00000001\.npz cannot be used: 'nothing of that name'"):
        opened.restore(miss)
    assert {entry.name: entry.read_bytes() for entry in folder.path.iterdir()} == before
    assert opened.restore(read) == 1
    opened.close()
    assert [each["round"] for each in read_records(folder.path)] == [1]


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    folder = create(tmp_path / "run")
    others = ("diary.txt", ".hidden", "checkpoint-backup.npz", "records.jsonl.old", "checkpoint-7.npz")
    for name in others:
        (folder.path / name).write_text("not ours")
    stale = folder.path / ".checkpoint-00000003.npz.12345.tmp"
    for number in range(1, 5):
        folder.append(record(number))
        folder.save(number, ARRAYS, {"number": number})
    folder.close()
    stale.write_text("of a process that was killed")
    assert continued(folder.path)[0] == 4
    for name in others:
        assert (folder.path / name).read_text() == "not ours"
    assert not stale.exists()


def test_a_configuration_is_changed_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = create(tmp_path / "run")
    folder.amend({"stop": 5})
    assert read_config(folder.path) == {**folder.config, "stop": 5} == folder.config

    def failing(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(RunError, match=r"could not write .*config\.json: no space; the file is unchanged"):
        folder.amend({"stop": 6})
    assert folder.config["stop"] == read_config(folder.path)["stop"] == 5
    folder.amend({"stop": 5})  # which changes nothing, and so writes nothing
    folder.close()


def test_a_record_that_is_not_json_is_not_written(tmp_path: Path) -> None:
    folder = create(tmp_path / "run")
    folder.append(record(1))
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.append({"round": 2, "cost": float("nan")})
    folder.close()
    assert read_records(folder.path) == [record(1)]


def test_a_place_that_is_free_is_said_to_be(tmp_path: Path) -> None:
    check_free(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    assert not in_use(tmp_path / "a")


# Records, as others read them.


@pytest.mark.parametrize("kind", ["plain", "a k for each client", "local steps, fedavg"])
def test_pandas_and_polars_read_every_column(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "plain": {},
        "a k for each client": {"controller": OneEach((3.5, 1.0, 20.0, 57.0, 8.25, 2.0)), "clients_per_round": 4},
        "local steps, fedavg": {
            "sparsifier": "fedavg",
            "controller": gradsift.controller("fixed", k=9),
            "local": LocalSteps(2),
        },
    }[kind]
    place = tmp_path / "run"
    result = gradsift.simulate(
        mlp(), nn.CrossEntropyLoss(), blobs(), rounds=5, eval_every=2, dtype=torch.float64, out=place, **options
    )
    assert all(tuple(each) == COLUMNS for each in result.records)
    assert result.records == read_records(place)
    by_pandas, by_polars = pd.read_json(place / RECORDS, lines=True), pl.read_ndjson(place / RECORDS)
    assert tuple(by_pandas.columns) == tuple(by_polars.columns) == tuple(result.frame().columns) == COLUMNS
    assert by_polars.to_dicts() == json.loads(json.dumps(result.records))
    assert by_pandas["steps"].tolist() == [2 if "local" in kind else 1] * 5
    assert by_pandas["contribution"].tolist() == [each["contribution"] for each in result.records]
    if "each client" in kind:
        assert by_pandas["client_k"].tolist() == [each["client_k"] for each in result.records]
    else:
        assert by_pandas["client_k"].isna().all()
