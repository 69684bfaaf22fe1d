"""The folder of a run: config.json, records.jsonl (one line a round) and the last two checkpoints.

The folder appears whole, with its first checkpoint, or not at all. A checkpoint says how many bytes of records belong
to it, so a run killed at any moment resumes from its last checkpoint and writes the same records again. A creation that
was killed leaves a hidden folder beside the place, which the next creation there removes.
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

KEEP = 2  # checkpoints
CONFIG, RECORDS, LOCK = "config.json", "records.jsonl", ".lock"
FORMAT = "gradsift checkpoint 2"
CHECKPOINT = re.compile(r"checkpoint-(\d{8,})\.npz")
OURS = re.compile(r"config\.json|records\.jsonl|\.lock|\.?checkpoint-\d+\.npz(\.\d+\.tmp)?|\..*\.tmp")

Config = dict[str, Any]
T = TypeVar("T")


class RunFolder:
    """An open run folder; one process at a time."""

    def __init__(self, path: Path, config: Config, lock: IO[bytes]) -> None:
        self.path, self.config, self._lock = path, config, lock
        self._records: IO[bytes] | None = None
        self._count = 0  # records written

    @classmethod
    def create(cls, path: Path, config: Config, arrays: Arrays, facts: Facts) -> "RunFolder":
        """A new folder with its first checkpoint, refused where something is already."""
        check_free(path)
        config = {**config, "run": uuid4().hex}
        building = path.with_name(f".{path.name}.{config['run'][:8]}")
        new_parents = [parent for parent in path.parents if not os.path.lexists(parent)]
        lock = None
        try:
            _remove_stale(path)
            building.mkdir(parents=True)
            lock = _locked(building)  # held before anyone can see the folder
            files.write(building / CONFIG, files.as_json(config, indent=2) + b"\n")
            files.write(building / RECORDS, b"")
            _save(building, 0, arrays, {"run": config["run"], "records": 0, "records_bytes": 0, **facts})
            # Renaming onto an existing non-empty folder fails, so two runs cannot take one place.
            os.rename(building, path)
        except BaseException as problem:
            if lock is not None:
                lock.close()
            shutil.rmtree(building, ignore_errors=True)
            for parent in new_parents:
                with contextlib.suppress(OSError):  # someone else is using it by now
                    parent.rmdir()
            if isinstance(problem, OSError) and (path / CONFIG).is_file():
                check_free(path)  # another process was faster
            if isinstance(problem, OSError | RunError):
                raise RunError(f"could not create the run folder {path}: {problem}; nothing is left of it") from problem
            raise
        with contextlib.suppress(OSError):  # a parent that may be written to but not read
            files.sync_folder(path.parent)
        return cls(path, config, lock)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing folder, to resume."""
        config = read_config(path)
        try:
            return cls(path, config, _locked(path))
        except OSError as problem:
            raise RunError(f"could not open the run folder {path}: {problem}") from problem

    def restore(self, read: Callable[[Arrays, Facts], T]) -> T:
        """What ``read`` makes of the newest checkpoint; records written after it are removed, to be written again.

        Nothing is changed where the checkpoint, or the records, cannot be used.
        """
        newest = self._newest()
        if newest is None:
            raise GradsiftError(f"{self.path} holds no checkpoint to resume from")
        arrays, facts = read_checkpoint(newest, self.config["run"])
        try:
            made = read(arrays, facts)
        except (GradsiftError, KeyError) as problem:
            raise GradsiftError(f"checkpoint {newest} cannot be used: {problem}") from problem
        records, size, count = self.path / RECORDS, facts["records_bytes"], facts["records"]
        kept = records.read_bytes() if records.exists() else b""
        if len(kept) < size:
            raise GradsiftError(
                f"{records} is shorter than {newest.name} says: it has {len(kept)} bytes, {size} belong to the"
                f" {count} rounds"
            )
        rounds = [record["round"] for record in _parse(records, kept[:size])]
        if rounds != list(range(1, count + 1)) or kept[size - 1 : size] not in (b"", b"\n"):
            raise GradsiftError(f"{records} does not hold rounds 1 to {count}, as {newest.name} says")
        try:
            os.truncate(records, size)
        except OSError as problem:
            raise RunError(f"could not open the run folder {self.path}: {problem}") from problem
        self._prune()
        self._count = count
        return made

    def amend(self, changes: Config) -> None:
        """Change what may change in the configuration: a resumed run may be told to stop elsewhere."""
        config = {**self.config, **changes}
        if config == self.config:
            return
        try:
            files.write(self.path / CONFIG, files.as_json(config, indent=2) + b"\n")
        except OSError as problem:
            raise RunError(f"could not write {self.path / CONFIG}: {problem}; it is as it was") from problem
        self.config = config

    def append(self, record: Mapping[str, Any]) -> None:
        """Add the record of one round."""
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
        """Write the checkpoint of round ``number``, after the records that it counts on."""
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
        """All records so far."""
        return read_records(self.path)

    def close(self) -> None:
        """Let others open the folder."""
        if self._records is not None:
            self._records.close()
        self._lock.close()

    def _prune(self) -> None:
        for old in checkpoints(self.path)[:-KEEP]:
            with contextlib.suppress(OSError):  # one too many does no harm
                old.unlink()

    def _newest(self) -> Path | None:
        return next(reversed(checkpoints(self.path)), None)

    def _unwritten(self, problem: OSError) -> RunError:
        newest = self._newest()
        kept = "no checkpoint is left" if newest is None else f"{newest.name} is whole, resume from it"
        return RunError(f"could not write {self.path / RECORDS}: {problem}; {kept}")


def checkpoints(path: Path) -> list[Path]:
    """The checkpoints of a run folder, oldest first; a copy under another name is not one of them."""
    ours = [file for file in path.iterdir() if CHECKPOINT.fullmatch(file.name)]
    return sorted(ours, key=lambda file: int(file.stem.removeprefix("checkpoint-")))


def read_checkpoint(path: Path, run: str) -> tuple[Arrays, Facts]:
    """The arrays and facts of a checkpoint; one that is damaged or of another run is refused."""
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
    except OSError:  # it is gone, or may not be opened by us
        return False
    return False


def read_config(path: Path) -> Config:
    """The configuration of a run folder."""
    try:
        config = json.loads((path / CONFIG).read_text())
        if not isinstance(config, dict) or "run" not in config:
            raise ValueError("it names no run")
    except (OSError, ValueError) as problem:
        raise GradsiftError(f"{path} is not a run folder: {CONFIG}: {problem}") from problem
    return config


def read_records(path: Path) -> list[Any]:
    """The records of a run folder; a last line that a kill cut short is left out."""
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
