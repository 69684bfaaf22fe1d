"""A run's folder: config.json, records.jsonl (one line a round) and the last two checkpoints.

The folder appears whole, with its first checkpoint, or not at all. A checkpoint says how many bytes of records belong
to it, so a run killed at any moment resumes from its last checkpoint and writes the same records again.
"""

import contextlib
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from gradsift.errors import GradsiftError, RunError
from gradsift.simulate import checkpoint
from gradsift.simulate.engine import Record, State

KEEP = 2
CONFIG, RECORDS = "config.json", "records.jsonl"


class RunFolder:
    """An open run folder; one process at a time."""

    def __init__(self, path: Path, config: dict[str, Any], lock: IO[bytes]) -> None:
        self.path, self.config, self._lock = path, config, lock
        self._records: IO[bytes] | None = None

    @classmethod
    def create(cls, path: Path, config: dict[str, Any], state: State) -> "RunFolder":
        """A new folder, refused where something is already."""
        if path.exists():
            raise GradsiftError(f"{path} exists already: resume it, or choose another folder")
        config = {**config, "run": uuid4().hex}
        building = path.with_name(f".{path.name}.{config['run'][:8]}")
        try:
            building.mkdir(parents=True)
            (building / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
            (building / RECORDS).touch()
            checkpoint.save(building / _name(0), state, config["run"], records_bytes=0)
            # Renaming onto an existing non-empty folder fails, so two runs cannot take one place.
            os.rename(building, path)
        except OSError as problem:
            shutil.rmtree(building, ignore_errors=True)
            raise RunError(f"could not create the run folder {path}: {problem}") from problem
        except RunError:
            shutil.rmtree(building, ignore_errors=True)
            raise
        checkpoint.sync_folder(path.parent)
        return cls(path, config, _locked(path))

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing folder, to resume."""
        return cls(path, read_config(path), _locked(path))

    def restore(self, like: State) -> State:
        """The state of the newest checkpoint; records written after it are cut off, to be written again."""
        found = sorted(self.path.glob("checkpoint-*.npz"))
        if not found:
            raise GradsiftError(f"{self.path} holds no checkpoint to resume from")
        state, size = checkpoint.load(found[-1], self.config["run"], like)
        records = self.path / RECORDS
        if not records.exists() or records.stat().st_size < size:
            raise GradsiftError(f"{records} is shorter than checkpoint {found[-1].name} says: {size} bytes are missing")
        os.truncate(records, size)
        return state

    def append(self, record: Record) -> None:
        """Write one round down."""
        line = json.dumps(record, allow_nan=False) + "\n"
        try:
            if self._records is None:
                self._records = open(self.path / RECORDS, "ab", buffering=0)  # noqa: SIM115  closed by close()
            written = self._records.write(line.encode())
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")
        except OSError as problem:
            last = sorted(self.path.glob("checkpoint-*.npz"))[-1].name
            raise RunError(f"could not write {self.path / RECORDS}: {problem}; {last} is whole") from problem

    def save(self, state: State) -> None:
        """Write a checkpoint, after everything that it counts on."""
        if self._records is not None:
            os.fsync(self._records.fileno())
        size = (self.path / RECORDS).stat().st_size
        checkpoint.save(self.path / _name(state.number), state, self.config["run"], size)
        for old in sorted(self.path.glob("checkpoint-*.npz"))[:-KEEP]:
            old.unlink()

    def records(self) -> list[Record]:
        """All records so far."""
        return read_records(self.path)

    def close(self) -> None:
        """Let others open the folder."""
        if self._records is not None:
            self._records.close()
        self._lock.close()


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
    lines = (path / RECORDS).read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def _name(number: int) -> str:
    return f"checkpoint-{number:08d}.npz"


def _locked(path: Path) -> IO[bytes]:
    lock = open(path / ".lock", "wb")  # noqa: SIM115  held while the folder is open
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        lock.close()
        raise GradsiftError(f"{path} is in use by another process") from problem
    for stale in path.glob(".checkpoint-*.tmp"):
        with contextlib.suppress(OSError):
            stale.unlink()
    return lock
