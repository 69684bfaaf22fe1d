"""Real processes that are interrupted, killed, locked out and run out of space; files that are not what they were."""

import contextlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsift import GradsiftError, RunError
from gradsift.records import files
from gradsift.records.folder import FORMAT, RunFolder, read_checkpoint
from gradsift.simulation.state import State
from tests.examples import examples
from tests.simulation import hand, worker
from tests.simulation.problems import blobs, mlp
from tests.simulation.test_run import arrays, assert_same_end, contents
from tests.simulation.test_run import run as simulate

pytestmark = pytest.mark.slow  # starts processes

ROOT = Path(__file__).resolve().parents[2]
# Children are forked from a server that has torch loaded: a process costs milliseconds, and is a process.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.simulation.warm"])


@pytest.fixture(autouse=True, scope="module")
def server() -> None:
    """The server takes its environment from us, not our path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
        patch.setenv("OMP_NUM_THREADS", "1")
        forkserver.ensure_running()


def start(target: Callable[..., Any], *arguments: Any, **options: Any) -> BaseProcess:
    process = FORKS.Process(target=target, args=arguments, kwargs=options, daemon=True)  # it does not outlive us
    process.start()
    return process


def finish(target: Callable[..., Any], *arguments: Any, **options: Any) -> int:
    process = start(target, *arguments, **options)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def said(target: Callable[..., Any], report: Path, *arguments: Any, **options: Any) -> str:
    """What a child reports, after it has ended by itself."""
    assert finish(target, str(report), *arguments, **options) == 0
    return report.read_text()


def wait_for(happened: Callable[[], Any], process: BaseProcess | subprocess.Popen[str]) -> bool:
    """Whether something happens before the process ends."""
    patience = time.monotonic() + 600  # only so that a fault ends a test instead of stopping it

    def seen() -> bool:
        with contextlib.suppress(FileNotFoundError):  # renamed or gone between two looks
            return bool(happened())
        return False

    while not seen():
        assert time.monotonic() < patience, "nothing happens"
        ended = process.exitcode if isinstance(process, BaseProcess) else process.poll()
        if ended is not None:
            return seen()
        time.sleep(0.0005)
    return True


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """Whole runs to compare with, each made once."""
    made: dict[str, Path] = {}

    def get(**options: Any) -> Path:
        key = repr(sorted(options.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("whole") / "run"
            assert finish(worker.go, str(folder), **options) == 0
            made[key] = folder
        return made[key]

    yield get
    for folder in made.values():
        shutil.rmtree(folder.parent)


def assert_sound(folder: Path) -> None:
    """What holds at any moment: no run, or one whose newest checkpoint is at most one interval behind its records."""
    if not folder.exists():
        return
    assert json.loads((folder / "config.json").read_text())["run"]
    newest = max(folder.glob("checkpoint-*.npz"))
    about = arrays(newest)["about"]  # reads, and so checks, the whole file
    written = (folder / "records.jsonl").read_bytes()
    assert about["records_bytes"] <= len(written)
    assert written[: about["records_bytes"]].count(b"\n") == about["number"]
    assert written.count(b"\n") - about["number"] <= worker.EVERY


# Ctrl-C, SIGTERM.


def script(folder: Path, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.simulation.worker", str(folder), str(rounds)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_ends_the_round_with_a_checkpoint(
    asked: signal.Signals, tmp_path: Path, undisturbed: Callable[..., Path]
) -> None:
    folder, rounds = tmp_path / "run", 2000
    process = script(folder, rounds)
    records = folder / "records.jsonl"
    assert wait_for(lambda: records.exists() and records.stat().st_size > 2000, process)
    process.send_signal(asked)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    ended = json.loads(out)
    assert ended["stopped"] == "interrupted"
    assert 1 < ended["rounds"] < rounds
    newest = arrays(max(folder.glob("checkpoint-*.npz")))["about"]
    assert newest["number"] == ended["rounds"] == records.read_bytes().count(b"\n")
    assert newest["records_bytes"] == records.stat().st_size
    more = ended["rounds"] + 3
    assert finish(worker.go, str(folder), rounds=more) == 0
    assert_same_end(undisturbed(rounds=more), folder)


def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    folder, hold = tmp_path / "run", tmp_path / "hold"
    process = start(worker.held, str(folder), str(hold))
    assert process.pid is not None
    assert wait_for(lambda: hold.exists() and hold.read_text() == "in", process)
    os.kill(process.pid, signal.SIGINT)
    assert wait_for(lambda: hold.read_text() == "asked", process)
    assert process.is_alive()  # the first one waits for the round
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 77
    assert_sound(folder)
    assert finish(worker.go, str(folder)) == 0
    assert_same_end(undisturbed(), folder)


def test_a_second_ctrl_c_while_the_first_is_answered_does_not_hang() -> None:
    process = start(worker.asked_while_asked)
    process.join(30)
    process.kill()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("moment", range(3))
def test_ctrl_c_at_any_moment_is_clean(moment: int, tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    """Also before the first round and while the folder is being made: then there is no run, or one to resume."""
    folder = tmp_path / "run"
    process = start(worker.go, str(folder), "large")
    assert process.pid is not None
    if moment:
        wait_for(
            lambda: any(tmp_path.rglob(".checkpoint-*.tmp" if moment == 1 else "checkpoint-00000002.npz")), process
        )
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode in (0, 1)  # stopped at the end of a round, or before the first by KeyboardInterrupt
    assert [entry.name for entry in tmp_path.iterdir()] in ([], ["run"])
    assert_sound(folder)
    assert finish(worker.go, str(folder), "large") == 0
    assert_same_end(undisturbed(size="large"), folder)


# kill -9.


@pytest.mark.parametrize("begun", [False, True], ids=["a new run", "a run with more rounds to go"])
def test_killed_at_every_file_operation(begun: bool, tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    earlier = undisturbed(**{**worker.SHORT, "rounds": 1})

    def place(name: str) -> Path:
        folder = tmp_path / name / "run"
        if begun:
            shutil.copytree(earlier, folder)
        return folder

    whole = place("whole")
    total = int(said(worker.counted, tmp_path / "count", str(whole)))
    assert total > 15
    for number in range(1, total + 1):
        folder = place(f"place {number}")
        assert finish(worker.killed_at, number, str(folder)) == -signal.SIGKILL
        assert_sound(folder)
        assert finish(worker.go, str(folder), **worker.SHORT) == 0
        assert_same_end(whole, folder)
        # And nothing else is left, in the folder or beside it.
        assert contents(folder).keys() == contents(whole).keys()
        assert json.loads((folder / "config.json").read_text())["stop"]["rounds"] == worker.SHORT["rounds"]
        assert [entry.name for entry in folder.parent.iterdir()] == ["run"]
        shutil.rmtree(folder.parent)


def kill_in_writing(process: BaseProcess, place: Path, draw: np.random.Generator) -> None:
    """Kill while a checkpoint of random progress is being written, the first one (of the creation) included."""
    least = draw.integers(0, 900_000)

    wait_for(lambda: any(file.stat().st_size >= least for file in place.rglob(".checkpoint-*.tmp")), process)
    process.kill()


def kill_at_random(process: BaseProcess, place: Path, draw: np.random.Generator) -> None:
    del place
    process.join(float(draw.uniform(0, 0.4)))
    process.kill()


def test_killed_again_and_again_at_random_moments(tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    draw = np.random.default_rng()  # the moments differ from run to run anyway
    kills = torn = started = 0
    for attempt in range(40):  # as many runs as it takes: how far one comes between two kills is the machine's affair
        folder = tmp_path / f"place {attempt}" / "run"
        folder.parent.mkdir()
        for kill in [kill_in_writing, kill_at_random] * 5:
            process = start(worker.go, str(folder), "large")
            kill(process, folder.parent, draw)
            process.join()
            assert process.exitcode in (-signal.SIGKILL, 0)
            kills += process.exitcode == -signal.SIGKILL
            torn += any(folder.parent.rglob(".checkpoint-*.tmp"))
            started += folder.exists()
            assert_sound(folder)
            if process.exitcode == 0:
                break
        assert finish(worker.go, str(folder), "large") == 0
        assert_same_end(undisturbed(size="large"), folder)
        assert [entry.name for entry in folder.parent.iterdir()] == ["run"]
        assert not any(folder.glob(".checkpoint-*"))
        if kills >= 30 and torn >= 8 and started >= 8:  # they do hit the writing, and runs that are under way
            return
    raise AssertionError(f"{kills} kills, {torn} of them in the writing, {started} after the folder was there")


# Two processes.


def test_a_folder_in_use_is_refused(tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    folder, release = tmp_path / "run", tmp_path / "release"
    first = start(worker.waiting, str(tmp_path / "first"), str(folder), str(release))
    assert wait_for((tmp_path / "release.wanted").exists, first)
    before = contents(folder)
    assert said(worker.told, tmp_path / "second", str(folder)) == f"TakenError: {folder} is in use by another process"
    assert contents(folder) == before
    release.touch()
    first.join()
    assert (tmp_path / "first").read_text() == "rounds"
    assert_same_end(undisturbed(), folder)


def test_of_two_creations_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = files.save

    def late(*arguments: Any, **options: Any) -> None:
        save(*arguments, **options)
        if not (tmp_path / "run").exists():  # another process was faster
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "theirs").write_text("theirs")

    monkeypatch.setattr(files, "save", late)
    with pytest.raises(RunError, match=r"could not create the run folder .*run: .*; nothing is left of it"):
        simulate(tmp_path / "run")
    assert contents(tmp_path) == {"run/theirs": b"theirs"}


def test_leftovers_of_killed_creations_are_removed_and_nothing_else_is(tmp_path: Path) -> None:
    ours = {"config.json", "records.jsonl", ".lock", "checkpoint-00000000.npz", ".checkpoint-00000000.npz.tmp"}
    stale, empty, live, foreign, other, file = (
        tmp_path / name
        for name in (
            ".run.0123abcd",
            ".run.00000000",
            ".run.11111111",
            ".run.22222222",
            ".other.0123abcd",
            ".run.33333333",
        )
    )
    for place in (stale, empty, live, foreign, other):
        place.mkdir()
        for name in ours if place != empty else ():
            (place / name).write_text("left")
    (foreign / "diary.txt").write_text("not ours")
    file.write_text("not ours")
    (tmp_path / ".run.44444444").symlink_to(other)
    holder = RunFolder(live, {}, _lock(live))
    simulate(tmp_path / "run", rounds=1)
    holder.close()
    assert {entry.name for entry in tmp_path.iterdir()} == {
        "run",
        live.name,
        foreign.name,
        other.name,
        file.name,
        ".run.44444444",
    }
    assert {entry.name for entry in live.iterdir()} == ours
    assert (foreign / "diary.txt").exists()
    assert {entry.name for entry in other.iterdir()} == ours


def _lock(place: Path) -> Any:
    import fcntl

    lock = open(place / ".lock", "ab")  # noqa: SIM115  closed by its folder
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


# Checkpoints that are not what they were.


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    simulate(tmp_path / "run", rounds=9)
    return tmp_path / "run"


def resume(folder: Path, **options: Any) -> Any:
    return simulate(folder, rounds=12, resume=True, **options)


def assert_refused(folder: Path, named: str) -> None:
    before = contents(folder)
    with pytest.raises(GradsiftError, match=named):
        resume(folder)
    assert contents(folder) == before


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def _evil_members(file: Path, mark: Path) -> None:
    evil = np.array([Evil(mark)], dtype=object)
    np.savez(file, allow_pickle=True, about=evil, weights=evil, residual=evil)


def _evil_weights(file: Path, mark: Path) -> None:
    with np.load(file) as members:
        found = {name: members[name] for name in members.files}
    np.savez(file, **{**found, "weights": np.array([Evil(mark)], dtype=object)})


def _plain_array(file: Path, mark: Path) -> None:
    del mark
    with open(file, "wb") as opened:
        np.save(opened, np.zeros(3))


def _other_program(file: Path, mark: Path) -> None:
    del mark
    np.savez(file, x=np.zeros(3), about=np.frombuffer(b'{"by": "someone else"}', dtype=np.uint8))


def _raw_members(file: Path, mark: Path) -> None:
    del mark
    import zipfile

    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("about", b"not an array")


def _folder(file: Path, mark: Path) -> None:
    del mark
    file.unlink()
    file.mkdir()


SPOILED: dict[str, Callable[[Path, Path], Any]] = {
    "empty": lambda file, _: file.write_bytes(b""),
    "text": lambda file, _: file.write_text("once upon a time"),
    "halved": lambda file, _: os.truncate(file, file.stat().st_size // 2),
    "one byte short": lambda file, _: os.truncate(file, file.stat().st_size - 1),
    "a folder": _folder,
    "a pickle": lambda file, mark: file.write_bytes(pickle.dumps(Evil(mark))),
    "an archive of pickles": _evil_members,
    "a checkpoint with a pickle": _evil_weights,
    "an array": _plain_array,
    "another program's": _other_program,
    "an archive of something": _raw_members,
}


@pytest.mark.parametrize("kind", SPOILED)
def test_what_is_no_checkpoint_is_refused_and_never_unpickled(kind: str, finished: Path, tmp_path: Path) -> None:
    newest, mark = finished / "checkpoint-00000009.npz", tmp_path / "unpickled"
    SPOILED[kind](newest, mark)
    assert_refused(
        finished,
        r"checkpoint .*run/checkpoint-00000009\.npz cannot be used: .*; move it away to resume from the one before it",
    )
    assert not mark.exists()
    # As the message says: without it, the one before serves.
    shutil.move(newest, tmp_path / "away")
    resume(finished)
    simulate(tmp_path / "whole", rounds=9)
    resume(tmp_path / "whole")
    assert_same_end(tmp_path / "whole", finished)


def test_any_flipped_bit_is_noticed_or_harmless(finished: Path) -> None:
    """What checksums do not cover in an archive (dates, versions) does no harm; everything else is noticed."""
    newest = finished / "checkpoint-00000009.npz"
    run = json.loads((finished / "config.json").read_text())["run"]
    content = newest.read_bytes()
    state = _like()
    arrays, facts = read_checkpoint(newest, run)
    whole = state.restored(arrays, facts)
    noticed = 0
    draw = np.random.default_rng(0)
    for place in range(0, len(content), 3):
        changed = bytearray(content)
        changed[place] ^= 1 << int(draw.integers(8))
        newest.write_bytes(changed)
        try:
            arrays, same = read_checkpoint(newest, run)
            loaded = state.restored(arrays, same)
        except GradsiftError:
            noticed += 1
            continue
        assert same == facts
        assert loaded.server.weights.equal(whole.server.weights)
        assert loaded.residual.equal(whole.residual)
    assert noticed > 0.8 * len(content) / 3


@given(keep=st.integers(0, 5000))
@examples(60)
def test_any_truncation_is_noticed(keep: int) -> None:
    content = _kept()
    with tempfile.TemporaryDirectory() as place:
        cut = Path(place) / "checkpoint-00000009.npz"
        cut.write_bytes(content[: keep % len(content)])
        with pytest.raises(GradsiftError, match="cannot be used"):
            read_checkpoint(cut, "any")


def _like() -> State:
    """The state of the run, as a driver that resumes it has one."""
    return hand.engine(mlp(), torch.nn.CrossEntropyLoss(), blobs(), dtype=torch.float32).state


def _kept() -> bytes:
    state = _like()
    with tempfile.TemporaryDirectory() as place:
        one, about = Path(place) / "one.npz", {"run": "any", "records": 0, "records_bytes": 0}
        files.save(one, FORMAT, state.arrays(), {**about, **state.facts()})
        assert read_checkpoint(one, "any")
        return one.read_bytes()


def test_the_checkpoint_of_another_run_is_refused(finished: Path, tmp_path: Path) -> None:
    simulate(tmp_path / "other", rounds=9)
    shutil.copy(tmp_path / "other" / "checkpoint-00000009.npz", finished)
    assert_refused(finished, r"checkpoint-00000009\.npz belongs to another run: '\w+', not '\w+'")


def test_a_checkpoint_of_another_version_or_shape_is_refused(finished: Path) -> None:
    newest = finished / "checkpoint-00000009.npz"
    with np.load(newest) as members:
        found = {name: members[name] for name in members.files}
    about = json.loads(found["about"].tobytes())

    def put(about: dict[str, Any], **changed: Any) -> None:
        written = {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
        np.savez(newest, **{**found, **changed, **written})

    with open(finished / "records.jsonl", "ab") as records:  # which a refusal leaves alone too
        records.write(b'{"round": 10, "from": "a run that was killed"}\n{"round": 1')
    unusable = r"checkpoint-00000009\.npz cannot be used: "
    put({**about, "format": "gradsift checkpoint 99"})
    assert_refused(finished, r"npz is 'gradsift checkpoint 99', this version of gradsift reads 'gradsift checkpoint 2'")
    put(about, residual=found["residual"][:5])
    assert_refused(
        finished,
        rf"{unusable}residual is float32 \[5, 57\], but this run has float32 \[6, 57\]",
    )
    put(about, weights=found["weights"].astype(np.float64))
    assert_refused(finished, rf"{unusable}weights is float64 \[57\], but this run has float32 \[57\]")
    put(about, more=found["weights"])
    assert_refused(
        finished,
        rf"{unusable}more is float32 \[57\], but this run has no such array",
    )
    del about["control"]
    put(about)
    assert_refused(finished, rf"{unusable}'control'")


def test_a_folder_without_checkpoints_is_refused(finished: Path) -> None:
    for file in finished.glob("checkpoint-*.npz"):
        file.unlink()
    assert_refused(finished, "run holds no checkpoint to resume from")


@pytest.mark.parametrize("kind", ["shorter", "missing", "other", "cut inside a line", "flipped"])
def test_records_that_do_not_fit_the_checkpoint_are_refused(kind: str, finished: Path) -> None:
    records = finished / "records.jsonl"
    content = records.read_bytes()
    lines = content.splitlines(keepends=True)
    if kind == "shorter":
        records.write_bytes(b"".join(lines[:-1]))
    elif kind == "missing":
        records.unlink()
    elif kind == "other":
        records.write_bytes(b'{"round": 1}\n' * 1000)
    elif kind == "cut inside a line":
        records.write_bytes(content[10:] + content)
    else:
        records.write_bytes(content.replace(b'"round": 5', b'"round": 5"', 1))
    named = {
        "shorter": r"records\.jsonl is shorter than checkpoint-00000009\.npz says: it has \d+ bytes, \d+ belong",
        "missing": r"records\.jsonl is shorter than checkpoint-00000009\.npz says: it has 0 bytes",
        "other": r"records\.jsonl (does not hold rounds 1 to 9|is damaged in line \d+)",
        "cut inside a line": r"records\.jsonl is damaged in line 1: ",
        "flipped": r"records\.jsonl is damaged in line 5: ",
    }[kind]
    assert_refused(finished, named)


def test_records_after_the_checkpoint_are_written_again(finished: Path, tmp_path: Path) -> None:
    records = finished / "records.jsonl"
    with open(records, "ab") as file:
        file.write(b'{"round": 10, "from": "a run that was killed"}\n{"round": 1')
    resume(finished)
    simulate(tmp_path / "whole", rounds=9)
    resume(tmp_path / "whole")
    assert_same_end(tmp_path / "whole", finished)


# Full disks.


@pytest.mark.parametrize("at", [0, 1, 5])
def test_no_space_for_a_checkpoint(at: int, tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    folder = tmp_path / "run"
    message = said(worker.limited, tmp_path / "report", str(folder), at, 1500)
    if at == 0:
        assert message.startswith(f"RunError: could not create the run folder {folder}: ")
        assert message.endswith("; nothing is left of it")
        assert [entry.name for entry in tmp_path.iterdir()] == ["report"]
    else:
        # The records stop first, or the checkpoint after them; both are larger than the limit.
        assert message.startswith("RunError: could not write ")
        assert "File too large" in message
        assert_sound(folder)
        assert not any(folder.glob(".checkpoint-*"))
    assert finish(worker.go, str(folder)) == 0
    assert_same_end(undisturbed(), folder)


def test_no_space_for_records(tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    folder, rounds = tmp_path / "run", 40
    size = (undisturbed() / "checkpoint-00000012.npz").stat().st_size + 2000
    assert (undisturbed(rounds=rounds) / "records.jsonl").stat().st_size > size
    report = tmp_path / "report"
    message = said(worker.limited, report, str(folder), 0, size, rounds=rounds)
    newest = max(folder.glob("checkpoint-*.npz")).name
    assert message.startswith(f"RunError: could not write {folder / 'records.jsonl'}: ")
    assert message.endswith(f"; {newest} is whole, resume from it")
    assert_sound(folder)
    # As full as before: it stops there again, and loses nothing by it.
    before = contents(folder)
    again = said(worker.limited, report, str(folder), 0, size, rounds=rounds)
    assert again == message
    assert contents(folder) == before
    assert finish(worker.go, str(folder), rounds=rounds) == 0
    assert_same_end(undisturbed(rounds=rounds), folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
        if shutil.which("mount")
        else None
    )
    if made is None or made.returncode:
        pytest.skip("needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_a_file_system_that_is_full(
    at: int, small_disk: Path, tmp_path: Path, undisturbed: Callable[..., Path]
) -> None:
    folder, ballast = small_disk / "run", small_disk / "ballast"
    message = said(worker.ballasted, tmp_path / "report", str(folder), at, str(ballast))
    assert message.startswith("RunError: could not ")
    assert "No space left on device" in message
    if at == 0:
        assert [entry.name for entry in small_disk.iterdir()] == ["ballast"]
    assert_sound(folder)
    assert not any(small_disk.rglob(".checkpoint-*"))
    if at:
        again = said(worker.told, tmp_path / "report", str(folder))
        assert "No space left on device" in again
        assert_sound(folder)
    ballast.unlink()
    assert finish(worker.go, str(folder)) == 0
    assert_same_end(undisturbed(), folder)


# Folders one may not write to.


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that other users reach too; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(place)


def test_a_parent_that_may_not_be_written_to(open_place: Path, tmp_path: Path) -> None:
    parent = open_place / "closed"
    parent.mkdir()
    parent.chmod(0o555)
    for folder in (parent / "run", parent / "deep" / "run"):
        message = said(worker.as_nobody, tmp_path / "report", str(folder))
        assert message.startswith(f"RunError: could not create the run folder {folder}: ")
        assert "Permission denied" in message
        assert list(parent.iterdir()) == []
    parent.chmod(0o700)


def test_a_run_that_may_not_be_written_to(open_place: Path, tmp_path: Path) -> None:
    folder = open_place / "run"
    simulate(folder, rounds=3)
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    before = contents(folder)
    message = said(worker.as_nobody, tmp_path / "report", str(folder))
    assert message.startswith(f"RunError: could not open the run folder {folder}: ")
    assert "Permission denied" in message
    assert contents(folder) == before
    folder.chmod(0o755)
