"""The run folder: config.json, records.jsonl with one line per round, and the last two checkpoints.

A run folder is created atomically, with its first checkpoint. A checkpoint says how many bytes of records.jsonl belong
to it, so a run that is killed at any moment resumes from its last checkpoint and writes the later records again. A
process that is killed while it creates a run folder leaves a hidden folder next to it, which the next creation removes.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar
from uuid import uuid4

from gradsift import check
from gradsift.errors import GradsiftError, RunError, TakenError
from gradsift.records import files
from gradsift.records.files import Arrays, Facts

KEEP = 2  # checkpoints in a run folder
CONFIG, RECORDS, LOCK = "config.json", "records.jsonl", ".lock"
FORMAT = "gradsift checkpoint 2"
CHECKPOINT = re.compile(r"checkpoint-(\d{8,})\.npz")
OURS = re.compile(r"config\.json|records\.jsonl|\.lock|\.?checkpoint-\d+\.npz(\.\d+\.tmp)?|\..*\.tmp")

Config = dict[str, Any]
T = TypeVar("T")


class RunFolder:
    """An open run folder, locked against other processes."""

    def __init__(self, path: Path, config: Config, lock: IO[bytes]) -> None:
        self.path, self.config, self._lock = path, config, lock
        self._records: IO[bytes] | None = None
        self._count = 0  # records in the file

    @classmethod
    def create(cls, path: Path, config: Config, arrays: Arrays, facts: Facts) -> "RunFolder":
        """Create a run folder with its first checkpoint; an error if the path exists."""
        check_free(path)
        config = {**config, "run": uuid4().hex}
        building = path.with_name(f".{path.name}.{config['run'][:8]}")
        new_parents = [parent for parent in path.parents if not os.path.lexists(parent)]
        lock = None
        try:
            _remove_stale(path)
            building.mkdir(parents=True)
            lock = _locked(building)  # before other processes can see the folder
            files.write(building / CONFIG, files.as_json(config, indent=2) + b"\n")
            files.write(building / RECORDS, b"")
            _save(building, 0, arrays, {"run": config["run"], "records": 0, "records_bytes": 0, **facts})
            # Renaming to an existing folder that is not empty fails, so two runs cannot have the same path.
            os.rename(building, path)
        except BaseException as problem:
            if lock is not None:
                lock.close()
            shutil.rmtree(building, ignore_errors=True)
            for parent in new_parents:
                with contextlib.suppress(OSError):  # another process uses it
                    parent.rmdir()
            if isinstance(problem, OSError) and (path / CONFIG).is_file():
                check_free(path)  # another process has created it meanwhile
            if isinstance(problem, OSError | RunError):
                raise RunError(f"could not create the run folder {path}: {problem}; nothing is left of it") from problem
            raise
        with contextlib.suppress(OSError):  # the parent may be writable but not readable
            files.sync_folder(path.parent)
        return cls(path, config, lock)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open an existing run folder to resume its run."""
        config = read_config(path)
        try:
            return cls(path, config, _locked(path))
        except OSError as problem:
            raise RunError(f"could not open the run folder {path}: {problem}") from problem

    def restore(self, read: Callable[[Arrays, Facts], T]) -> T:
        """The result of ``read`` for the newest checkpoint; later records are removed, to be written again.

        Nothing is changed if the checkpoint or the records cannot be used.
        """
        newest = self._newest()
        if newest is None:
            raise GradsiftError(f"{self.path} holds no checkpoint to resume from")
        arrays, facts = read_checkpoint(newest, self.config["run"])
        try:
            restored = read(arrays, facts)
        except (GradsiftError, KeyError) as problem:
            raise GradsiftError(f"checkpoint {newest} cannot be used: {problem}") from problem
        records, size, count = self.path / RECORDS, facts["records_bytes"], facts["records"]
        content = records.read_bytes() if records.exists() else b""
        if len(content) < size:
            raise GradsiftError(
                f"{records} is shorter than {newest.name} says: it has {len(content)} bytes, {size} belong to the"
                f" {count} rounds"
            )
        rounds = [record["round"] for record in _parse(records, content[:size])]
        if rounds != list(range(1, count + 1)) or content[size - 1 : size] not in (b"", b"\n"):
            raise GradsiftError(f"{records} does not hold rounds 1 to {count}, as {newest.name} says")
        try:
            os.truncate(records, size)
        except OSError as problem:
            raise RunError(f"could not open the run folder {self.path}: {problem}") from problem
        self._prune()
        self._count = count
        return restored

    def amend(self, changes: Config) -> None:
        """Change entries of the configuration, such as the stop conditions of a resumed run."""
        config = {**self.config, **changes}
        if config == self.config:
            return
        try:
            files.write(self.path / CONFIG, files.as_json(config, indent=2) + b"\n")
        except OSError as problem:
            raise RunError(f"could not write {self.path / CONFIG}: {problem}; the file is unchanged") from problem
        self.config = config

    def append(self, record: Mapping[str, Any]) -> None:
        """Append the record of one round."""
        line = files.as_json(record) + b"\n"
        try:
            if self._records is None:
                self._records = open(self.path / RECORDS, "ab", buffering=0)  # noqa: SIM115  closed by close()
            written = self._records.write(line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")
        except OSError as problem:
            raise self._unwritten(problem) from problem
        self._count += 1

    def save(self, number: int, arrays: Arrays, facts: Facts) -> None:
        """Write the checkpoint of round ``number``, after the records up to this round are on disk."""
        try:
            if self._records is not None:
                os.fsync(self._records.fileno())
            size = (self.path / RECORDS).stat().st_size
        except OSError as problem:
            raise self._unwritten(problem) from problem
        about = {"run": self.config["run"], "records": self._count, "records_bytes": size}
        _save(self.path, number, arrays, {**about, **facts})
        self._prune()

    def records(self) -> list[Any]:
        """The records of all rounds so far."""
        return read_records(self.path)

    def close(self) -> None:
        """Release the folder, so that other processes can open it."""
        if self._records is not None:
            self._records.close()
        self._lock.close()

    def _prune(self) -> None:
        for old in checkpoints(self.path)[:-KEEP]:
            with contextlib.suppress(OSError):  # an extra checkpoint does no harm
                old.unlink()

    def _newest(self) -> Path | None:
        return next(reversed(checkpoints(self.path)), None)

    def _unwritten(self, problem: OSError) -> RunError:
        newest = self._newest()
        kept = "no checkpoint is left" if newest is None else f"{newest.name} is whole, resume from it"
        return RunError(f"could not write {self.path / RECORDS}: {problem}; {kept}")


def checkpoints(path: Path) -> list[Path]:
    """The checkpoint files of a run folder, oldest first; files with other names are ignored."""
    ours = [file for file in path.iterdir() if CHECKPOINT.fullmatch(file.name)]
    return sorted(ours, key=lambda file: int(file.stem.removeprefix("checkpoint-")))


def read_checkpoint(path: Path, run: str) -> tuple[Arrays, Facts]:
    """The arrays and facts of a checkpoint; an error if it is damaged or belongs to another run."""
    try:
        arrays, facts = files.load(path, FORMAT)
        owner = facts.pop("run")
        if not (isinstance(facts["records"], int) and isinstance(facts["records_bytes"], int)):
            raise GradsiftError(f"{path} does not say how many records belong to it")
    except (GradsiftError, KeyError, OSError) as problem:
        raise GradsiftError(
            f"checkpoint {path} cannot be used: {problem}; move it away to resume from the one before it"
        ) from problem
    if owner != run:
        raise GradsiftError(f"checkpoint {path} belongs to another run: {owner!r}, not {run!r}")
    return arrays, facts


def _save(folder: Path, number: int, arrays: Arrays, facts: Facts) -> None:
    path = folder / f"checkpoint-{number:08d}.npz"
    try:
        files.save(path, FORMAT, arrays, facts)
    except OSError as problem:
        raise RunError(f"could not write checkpoint {path}: {problem}; earlier checkpoints are untouched") from problem


def check_free(path: Path) -> None:
    """Refuse a path for a new run folder that exists already, or that cannot become a folder."""
    if os.path.lexists(path):
        if (path / CONFIG).is_file():
            raise TakenError(f"{path} exists already: resume it, or choose another folder")
        raise GradsiftError(f"{path} exists already and is not a run: choose another folder")
    check.folder("out", path)


def in_use(path: Path) -> bool:
    """Whether a process has opened the run folder."""
    try:
        _locked(path).close()
    except TakenError:
        return True
    except OSError:  # it was removed, or we may not open it
        return False
    return False


def read_config(path: Path) -> Config:
    """The configuration of a run folder."""
    try:
        config = json.loads((path / CONFIG).read_text())
        if not isinstance(config, dict) or "run" not in config:
            raise ValueError("it has no key 'run'")
    except (OSError, ValueError) as problem:
        raise GradsiftError(f"{path} is not a run folder: {CONFIG}: {problem}") from problem
    return config


def read_records(path: Path) -> list[Any]:
    """The records of a run folder, without an incomplete last line, which a killed process may leave."""
    try:
        content = (path / RECORDS).read_bytes()
    except OSError as problem:
        raise GradsiftError(f"{path} is not a run folder: {RECORDS}: {problem}") from problem
    return _parse(path / RECORDS, content[: content.rfind(b"\n") + 1])


def _parse(path: Path, content: bytes) -> list[Any]:
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


def _locked(path: Path) -> IO[bytes]:
    """The open lock file of the folder, locked until it is closed or the process ends."""
    try:
        import fcntl
    except ImportError:
        raise GradsiftError("run folders need a POSIX system; leave out= out to run without one") from None
    lock = open(path / LOCK, "ab")  # noqa: SIM115  closed with the run folder
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
    """Remove the hidden folders that killed creations of ``path`` left: those with our files only, and not locked."""
    building = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{8}")
    for stale in path.parent.glob(".*"):
        if building.fullmatch(stale.name) and stale.is_dir() and not stale.is_symlink():
            with contextlib.suppress(OSError, GradsiftError):
                if all(OURS.fullmatch(file.name) for file in stale.iterdir()):
                    with _locked(stale):
                        shutil.rmtree(stale)
