"""A run's folder: config.json, records.jsonl (one line a round) and the last two checkpoints.

The folder appears whole, with its first checkpoint, or not at all. A checkpoint says how many bytes of records belong
to it, so a run killed at any moment resumes from its last checkpoint and writes the same records again. A creation that
was killed leaves a hidden folder beside the place, which the next creation there removes.
"""

import contextlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from gradsift import check
from gradsift.errors import GradsiftError, RunError, TakenError
from gradsift.simulation import checkpoint
from gradsift.simulation.engine import Record
from gradsift.simulation.state import State

KEEP = 2
CONFIG, RECORDS, LOCK = "config.json", "records.jsonl", ".lock"
OURS = re.compile(r"config\.json|records\.jsonl|\.lock|\.?checkpoint-\d+\.npz(\.tmp)?")  # of a folder being made


class RunFolder:
    """An open run folder; one process at a time."""

    def __init__(self, path: Path, config: dict[str, Any], lock: IO[bytes]) -> None:
        self.path, self.config, self._lock = path, config, lock
        self._records: IO[bytes] | None = None

    @classmethod
    def create(cls, path: Path, config: dict[str, Any], state: State) -> "RunFolder":
        """A new folder, refused where something is already."""
        check_free(path)
        config = {**config, "run": uuid4().hex}
        building = path.with_name(f".{path.name}.{config['run'][:8]}")
        new_parents = [parent for parent in path.parents if not os.path.lexists(parent)]
        lock = None
        try:
            _remove_stale(path)
            building.mkdir(parents=True)
            lock = _locked(building)  # held before anyone can see the folder
            _write(building / CONFIG, json.dumps(config, indent=2).encode() + b"\n")
            _write(building / RECORDS, b"")
            checkpoint.save(building / _name(0), state, config["run"], records_bytes=0)
            # Renaming onto an existing non-empty folder fails, so two runs cannot take one place.
            os.rename(building, path)
        except BaseException as problem:
            if lock is not None:
                lock.close()
            shutil.rmtree(building, ignore_errors=True)
            for parent in new_parents:
                with contextlib.suppress(OSError):  # someone else is in it by now
                    parent.rmdir()
            if isinstance(problem, OSError) and (path / CONFIG).is_file():
                check_free(path)  # another process was faster
            if isinstance(problem, OSError | RunError):
                raise RunError(f"could not create the run folder {path}: {problem}; nothing is left of it") from problem
            raise
        with contextlib.suppress(OSError):  # a parent that may be written to but not read
            checkpoint.sync_folder(path.parent)
        return cls(path, config, lock)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing folder, to resume."""
        config = read_config(path)
        try:
            return cls(path, config, _locked(path))
        except OSError as problem:
            raise RunError(f"could not open the run folder {path}: {problem}") from problem

    def restore(self, like: State) -> State:
        """The state of the newest checkpoint; records written after it are cut off, to be written again."""
        newest = self._newest()
        if newest is None:
            raise GradsiftError(f"{self.path} holds no checkpoint to resume from")
        state, size = checkpoint.load(newest, self.config["run"], like)
        records = self.path / RECORDS
        kept = records.read_bytes() if records.exists() else b""
        if len(kept) < size:
            raise GradsiftError(
                f"{records} is shorter than {newest.name} says: it has {len(kept)} bytes, {size} belong to the"
                f" {state.number} rounds"
            )
        rounds = [record["round"] for record in _parse(records, kept[:size])]
        if rounds != list(range(1, state.number + 1)) or kept[size - 1 : size] not in (b"", b"\n"):
            raise GradsiftError(f"{records} does not hold rounds 1 to {state.number}, as {newest.name} says")
        try:
            os.truncate(records, size)
        except OSError as problem:
            raise RunError(f"could not open the run folder {self.path}: {problem}") from problem
        self._prune()
        return state

    def amend(self, changes: dict[str, Any]) -> None:
        """Change what may change in the configuration: a resumed run may be told to stop elsewhere."""
        config = {**self.config, **changes}
        if config == self.config:
            return
        temporary = self.path / f".{CONFIG}.tmp"
        try:
            _write(temporary, json.dumps(config, indent=2).encode() + b"\n")
            os.replace(temporary, self.path / CONFIG)
        except OSError as problem:
            raise RunError(f"could not write {self.path / CONFIG}: {problem}; it is as it was") from problem
        finally:
            temporary.unlink(missing_ok=True)  # still there only if the writing was cut short
        self.config = config

    def append(self, record: Record) -> None:
        """Write one round down."""
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        try:
            if self._records is None:
                self._records = open(self.path / RECORDS, "ab", buffering=0)  # noqa: SIM115  closed by close()
            written = self._records.write(line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")
        except OSError as problem:
            raise self._unwritten(problem) from problem

    def save(self, state: State) -> None:
        """Write a checkpoint, after everything that it counts on."""
        try:
            if self._records is not None:
                os.fsync(self._records.fileno())
            size = (self.path / RECORDS).stat().st_size
        except OSError as problem:
            raise self._unwritten(problem) from problem
        checkpoint.save(self.path / _name(state.number), state, self.config["run"], size)
        self._prune()

    def records(self) -> list[Record]:
        """All records so far."""
        return read_records(self.path)

    def close(self) -> None:
        """Let others open the folder."""
        if self._records is not None:
            self._records.close()
        self._lock.close()

    def _checkpoints(self) -> list[Path]:
        """Ours only, oldest first: a copy under another name is somebody else's."""
        ours = [path for path in self.path.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(ours, key=lambda path: int(path.stem.removeprefix("checkpoint-")))

    def _prune(self) -> None:
        for old in self._checkpoints()[:-KEEP]:
            with contextlib.suppress(OSError):  # one too many does no harm
                old.unlink()

    def _newest(self) -> Path | None:
        return max(self._checkpoints(), default=None)

    def _unwritten(self, problem: OSError) -> RunError:
        newest = self._newest()
        kept = "no checkpoint is left" if newest is None else f"{newest.name} is whole, resume from it"
        return RunError(f"could not write {self.path / RECORDS}: {problem}; {kept}")


def check_free(path: Path) -> None:
    """Refuse a place for a new run where something is already, or where no folder can be."""
    if os.path.lexists(path):
        if (path / CONFIG).is_file():
            raise TakenError(f"{path} exists already: resume it, or choose another folder")
        raise GradsiftError(f"{path} exists already and is not a run: choose another folder")
    check.folder("out", path)


def in_use(path: Path) -> bool:
    """Whether a process has a run folder open."""
    try:
        _locked(path).close()
    except TakenError:
        return True
    except OSError:  # it is gone, or not ours
        return False
    return False


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of a run folder."""
    try:
        config = json.loads((path / CONFIG).read_text())
        if not isinstance(config, dict) or "run" not in config:
            raise ValueError("it names no run")
    except (OSError, ValueError) as problem:
        raise GradsiftError(f"{path} is not a run folder: {CONFIG}: {problem}") from problem
    return config


def read_records(path: Path) -> list[Record]:
    """The records of a run folder; a last line that a kill cut short is left out."""
    try:
        content = (path / RECORDS).read_bytes()
    except OSError as problem:
        raise GradsiftError(f"{path} is not a run folder: {RECORDS}: {problem}") from problem
    return _parse(path / RECORDS, content[: content.rfind(b"\n") + 1])


def _parse(path: Path, content: bytes) -> list[Record]:
    records = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or "round" not in record:
                raise ValueError("not a record of a round")
        except ValueError as problem:
            raise GradsiftError(f"{path} is damaged in line {number}: {problem}") from problem
        records.append(record)
    return records


_NAME = re.compile(r"checkpoint-\d{8,}\.npz")


def _name(number: int) -> str:
    return f"checkpoint-{number:08d}.npz"


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _locked(path: Path) -> IO[bytes]:
    """The folder's lock, held until it is closed or the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:
        raise GradsiftError("run folders need a POSIX system; leave out= out to run without one") from None
    lock = open(path / LOCK, "ab")  # noqa: SIM115  held while the folder is open
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        lock.close()
        raise TakenError(f"{path} is in use by another process") from problem
    except BaseException:
        lock.close()
        raise
    for stale in path.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            stale.unlink()
    return lock


def _remove_stale(path: Path) -> None:
    """Remove what killed creations at this place left: hidden folders of our files only, that no process holds."""
    building = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{8}")
    for left in path.parent.glob(".*"):
        if building.fullmatch(left.name) and left.is_dir() and not left.is_symlink():
            with contextlib.suppress(OSError, GradsiftError):
                if all(OURS.fullmatch(file.name) for file in left.iterdir()):
                    with _locked(left):
                        shutil.rmtree(left)
