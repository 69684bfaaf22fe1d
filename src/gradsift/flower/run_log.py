"""The records of a deployment, and its run folder: the same files as those of a simulated run.

The record of a round is written when the round is over, evaluation included. Until then it is part of the checkpoint.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import flwr

from gradsift.describe import versions
from gradsift.errors import GradsiftError
from gradsift.records.files import Arrays, Facts
from gradsift.records.folder import CONFIG, RunFolder, check_free, read_config
from gradsift.records.record import Record

T = TypeVar("T")

DRIVER = "flower"  # in config.json
# Names under which apps report what the records have a column for.
TRAIN_LOSS = ("train-loss", "train_loss", "loss")
LOSS = ("loss", "eval-loss", "eval_loss", "test-loss", "test_loss")
ACCURACY = ("accuracy", "acc", "eval-accuracy", "eval_accuracy", "eval-acc", "eval_acc", "test-accuracy", "test_acc")


class RunLog:
    """The records of a run, and the folder that keeps them if there is a ``path``."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.records: list[Record] = []
        self.start: dict[str, float | None] = {"global_loss": None, "accuracy": None}
        self.rounds = 0  # after which the run ends
        self.open_record: Record | None = None  # the last one, while its round is not over
        self._folder: RunFolder | None = None
        if path is not None and not (path / CONFIG).is_file():
            check_free(path)

    @property
    def is_there(self) -> bool:
        """Whether there is a run to continue."""
        return self.path is not None and (self.path / CONFIG).is_file()

    @property
    def is_open(self) -> bool:
        """Whether there is a folder to write to."""
        return self._folder is not None

    def continued(self, read: Callable[[Arrays, Facts], T]) -> T:
        """Open the folder; what ``read`` makes of its newest checkpoint."""
        assert self.path is not None
        if read_config(self.path).get("driver") != DRIVER:
            raise GradsiftError(f"{self.path} is a simulated run: Flower cannot continue it, choose another folder")
        self._folder = RunFolder.open(self.path)
        made, self.open_record = self._folder.restore(
            lambda arrays, facts: (read(arrays, facts), cast(Record | None, facts["open_record"]))
        )
        self.records = self._folder.records()
        if self.open_record is not None:
            self.records.append(self.open_record)
        return made

    def amend(self, config: Mapping[str, Any]) -> None:
        """Take what may be different in a run that is continued into the folder's configuration."""
        if self._folder is not None:
            stop = _stop(self.rounds or self._folder.config["stop"]["rounds"])
            self._folder.amend({**{name: config[name] for name in ("lr", "cost", "settings")}, "stop": stop})

    def create(self, config: Mapping[str, Any], arrays: Arrays, facts: Facts) -> None:
        """Make the folder, where there is a path."""
        if self.path is not None and self._folder is None:
            about = {"driver": DRIVER, **config, "stop": _stop(self.rounds), "start": self.start}
            about["versions"] = {**versions(), "flwr": flwr.__version__}
            self._folder = RunFolder.create(self.path, about, arrays, {**facts, "open_record": None})

    def add(self, record: Record) -> None:
        """A round was merged."""
        self.finish_round()
        self.records.append(record)
        self.open_record = record

    def evaluated(self, metrics: Mapping[str, Any] | None, *, start: bool = False) -> None:
        """Take loss and accuracy of an evaluation into the record of the round, or of the start."""
        target: Any = self.start if start else self.open_record
        if target is not None and metrics:
            for column, names in (("global_loss", LOSS), ("accuracy", ACCURACY)):
                found = first_number(metrics, names)
                target[column] = target[column] if found is None else found

    def finish_round(self) -> None:
        """Write the record of the round that is over."""
        if self._folder is not None and self.open_record is not None:
            self._folder.append(self.open_record)
        self.open_record = None

    def save(self, number: int, arrays: Arrays, facts: Facts) -> None:
        """Write a checkpoint."""
        if self._folder is not None:
            self._folder.save(number, arrays, {**facts, "open_record": self.open_record})

    def close(self) -> None:
        """Let other processes open the folder."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None


def first_number(metrics: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """The first of these metrics that is a finite number."""
    values = (metrics.get(name) for name in names)
    return next((float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)), None)


def _stop(rounds: int) -> dict[str, Any]:
    return {"rounds": rounds, "cost_budget": None, "target_loss": None, "target_accuracy": None}
