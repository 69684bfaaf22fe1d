"""CIFAR-10's own archives, written here byte for byte; the python one is a pickle, and may be hostile."""

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradsift import GradsiftError
from gradsift.data import import_cifar10, load, one_class

NAMES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
PER_BATCH = 12

Batch = tuple[NDArray[np.uint8], list[int]]


def batches() -> list[Batch]:
    source = np.random.default_rng(0)
    made = []
    for _ in NAMES:
        labels = source.permutation(np.arange(PER_BATCH) % 10).tolist()
        made.append((source.integers(0, 256, (PER_BATCH, 3072), dtype=np.uint8), labels))
    return made


def string(text: bytes) -> bytes:
    """A str of Python 2."""
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + len(text).to_bytes(4, "little") + text


def number(value: int) -> bytes:
    return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + value.to_bytes(4, "little", signed=True)


def python2(batch: Batch) -> bytes:
    """As in cifar-10-batches-py: what cPickle of Python 2 wrote (protocol 2) for an array of an early numpy."""
    pixels, labels = batch
    rows, columns = pixels.shape
    dtype = b"cnumpy\ndtype\nq\x09" + string(pixels.dtype.str[1:].encode()) + b"K\x00K\x01\x87Rq\x0a"
    dtype += b"(K\x03" + string(b"|") + b"NNN" + number(-1) + number(-1) + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85" + string(b"b") + b"\x87R"
    array += b"(K\x01" + number(rows) + number(columns) + b"\x86" + dtype + b"\x89" + string(pixels.tobytes()) + b"tb"
    names = b"".join(string(b"leptodactylus_s_%06d.png" % row) for row in range(rows))
    return (
        b"\x80\x02}q\x01("
        + (string(b"batch_label") + b"q\x02" + string(b"training batch 1 of 5") + b"q\x03")
        + (string(b"labels") + b"q\x04]q\x05(" + b"".join(map(number, labels)) + b"e")
        + (string(b"data") + b"q\x06" + array)
        + (string(b"filenames") + b"](" + names + b"e")
        + b"u."
    )


def python3(protocol: int) -> Callable[[Batch], bytes]:
    """The same, written again by Python 3."""

    def write(batch: Batch) -> bytes:
        return pickle.dumps({"data": batch[0], "labels": batch[1]}, protocol=protocol)

    return write


def fortran(batch: Batch) -> bytes:
    return pickle.dumps({b"data": np.asfortranarray(batch[0]), b"labels": np.array(batch[1], dtype=np.uint8)})


def lists(batch: Batch) -> bytes:
    return pickle.dumps({b"data": batch[0].tolist(), b"labels": batch[1]})


def binary(batch: Batch) -> bytes:
    """As in cifar-10-batches-bin: a label byte and 3,072 pixel bytes an image."""
    pixels, labels = batch
    return np.concatenate([np.array(labels, dtype=np.uint8)[:, None], pixels], axis=1).tobytes()


def written(folder: Path, write: Callable[[Batch], bytes], suffix: str = "") -> Path:
    for name, batch in zip(NAMES, batches(), strict=True):
        (folder / f"{name}{suffix}").write_bytes(write(batch))
    return folder


FORMATS: list[tuple[Callable[[Batch], bytes], str]] = [
    (python2, ""),
    *((python3(protocol), "") for protocol in range(6)),
    (fortran, ""),
    (lists, ""),
    (binary, ".bin"),
]


@pytest.mark.parametrize(("write", "suffix"), FORMATS)
def test_every_format_gives_the_same_images(tmp_path: Path, write: Callable[[Batch], bytes], suffix: str) -> None:
    data = import_cifar10(written(tmp_path, write, suffix), clients=10, seed=4)
    made = batches()
    pixels = np.concatenate([batch[0] for batch in made[:5]]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([batch[1] for batch in made[:5]])
    order = np.argsort(one_class(labels, 10, seed=4), kind="stable")
    assert torch.equal(data.x, torch.from_numpy(pixels[order]).float() / 255)
    assert data.y.tolist() == labels[order].tolist()
    assert torch.equal(data.test_x, torch.from_numpy(made[5][0].reshape(-1, 3, 32, 32)).float() / 255)
    assert data.test_y.tolist() == made[5][1]
    assert (data.name, data.classes, data.num_clients) == ("cifar10", 10, 10)
    assert load(tmp_path, clients=10, seed=4).fingerprint() == data.fingerprint()


def test_the_python2_writer_writes_a_pickle_of_the_batch() -> None:
    pixels, labels = batches()[0]
    content = python2((pixels, labels)).replace(b"numpy.core", b"numpy._core")  # the old name warns in a new numpy
    read = pickle.loads(content, encoding="bytes")
    assert sorted(read) == [b"batch_label", b"data", b"filenames", b"labels"]
    assert read[b"labels"] == labels
    np.testing.assert_array_equal(read[b"data"], pixels)


def test_other_partitions(tmp_path: Path) -> None:
    folder = written(tmp_path, binary, ".bin")
    assert import_cifar10(folder, clients=7, partition="iid").num_clients == 7
    data = load(folder, clients=4, partition="dirichlet", alpha=0.3, at_least=5)
    assert data.size.min() >= 5


class Call:
    """A pickle that calls something."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> Any:
        return self.made


def hostile(sprung: Path) -> list[bytes]:
    command = f"touch {sprung}"
    calls = [
        Call(os.system, command),
        Call(eval, f"__import__('os').system({command!r})"),
        Call(exec, f"import os; os.system({command!r})"),
        Call(Path.touch, sprung),
        Call(np.save, str(sprung) + ".npy", [1]),
        Call(pickle.loads, pickle.dumps(Call(os.system, command))),
    ]
    made = [pickle.dumps({"data": call, "labels": [0]}, protocol=p) for call in calls for p in (0, 2, 4)]
    made.append(b"cos\nsystem\n(S'" + command.encode() + b"'\ntR.")
    made.append(b"cnumpy\nsave\n(S'" + str(sprung).encode() + b"'\nI1\ntR.")
    # The names that are allowed reach stand-ins only: numpy's own attributes are not behind them.
    made.append(b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.")
    made.append(b"cnumpy\nndarray.tofile\n(S'" + str(sprung).encode() + b"'\ntR.")
    return made


def test_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    folder = written(tmp_path, python2)
    for content in hostile(sprung):
        (folder / "data_batch_3").write_bytes(content)
        with pytest.raises(
            GradsiftError, match=r"data_batch_3 is not a CIFAR-10 python batch.*refused: the file names"
        ):
            import_cifar10(folder, clients=10)
        assert not list(tmp_path.glob("sprung*"))
    pickle.loads(hostile(sprung)[0])  # the traps are real: this springs the first
    assert sprung.exists()


@pytest.mark.parametrize(("write", "suffix"), FORMATS)
def test_truncated_batches_are_refused(tmp_path: Path, write: Callable[[Batch], bytes], suffix: str) -> None:
    folder = written(tmp_path, write, suffix)
    path = folder / f"test_batch{suffix}"
    whole = path.read_bytes()
    for length in [0, 1, 2, 5, *range(10, len(whole) - 1, len(whole) // 23), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(GradsiftError, match=rf"test_batch{suffix} is "):
            import_cifar10(folder, clients=10)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(0, 255), st.sampled_from(FORMATS[:5]))
def test_a_damaged_batch_is_refused_or_still_a_batch(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int, form: tuple[Callable[[Batch], bytes], str]
) -> None:
    pixels, labels = batches()[0]
    good = bytearray(form[0]((pixels[:2, :], labels[:2])))
    # The middle is pixels; the structure is at both ends.
    good[place % 120 if place % 2 else -1 - place % 120] = value
    folder = written(tmp_path_factory.mktemp("damaged"), python2)
    (folder / "data_batch_1").write_bytes(good)
    try:
        data = import_cifar10(folder, clients=10)
    except GradsiftError:
        return
    assert list(data.x.shape[1:]) == [3, 32, 32]


def changed(name: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def removed(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()

    return change


PIXELS = np.zeros((2, 3072), dtype=np.uint8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (removed("data_batch_1"), "is no folder of CIFAR-10 batches: it has no data_batch_1 or data_batch_1.bin"),
        (removed("data_batch_4"), "data_batch_4: No such file or directory"),
        (removed("test_batch"), "test_batch: No such file or directory"),
        (changed("data_batch_2", pickle.dumps([1, 2])), "data_batch_2 is not a CIFAR-10 python batch"),
        (changed("data_batch_2", pickle.dumps({"labels": [1]})), "KeyError('data')"),
        (changed("data_batch_2", pickle.dumps({"data": PIXELS})), "KeyError('labels')"),
        (changed("data_batch_2", python2((PIXELS, [1]))), "data is [2, 3072], there are 1 labels"),
        (changed("data_batch_2", python2((PIXELS[:, :99], [1, 2]))), "data is [2, 99], there are 2 labels"),
        (changed("data_batch_2", python2((PIXELS[:0], []))), "data is [0, 3072], there are 0 labels"),
        (changed("data_batch_2", python2((PIXELS, [1, 10]))), "label 10 of image 1 is not in 0 to 9"),
        (changed("data_batch_2", python2((PIXELS, [1, -1]))), "it has the label -1"),
        (changed("data_batch_2", python2((PIXELS.astype(np.int32), [1, 2]))), "an array of i4, not of bytes"),
        (changed("data_batch_2", pickle.dumps({"data": PIXELS, "labels": ["a", "b"]})), "invalid literal for int"),
    ],
)
def test_bad_folders(tmp_path: Path, change: Callable[[Path], None], message: str) -> None:
    folder = written(tmp_path, python2)
    change(folder)
    with pytest.raises(GradsiftError, match=re.escape(message)):
        import_cifar10(folder, clients=10)


def test_a_bad_binary_label(tmp_path: Path) -> None:
    folder = written(tmp_path, binary, ".bin")
    (folder / "data_batch_5.bin").write_bytes(binary((PIXELS, [3, 200])))
    with pytest.raises(GradsiftError, match=r"data_batch_5.bin is damaged: label 200 of image 1 is not in 0 to 9"):
        import_cifar10(folder, clients=10)
