"""Run folders as arrays: what the summary and the figures need of config.json and records.jsonl, checked.

Shapes: M rounds, E evaluations, N clients.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsift.errors import GradsiftError
from gradsift.records.folder import CONFIG, RECORDS, read_config, read_records

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Run:
    """One run: its configuration, and its rounds as arrays."""

    path: Path
    config: dict[str, Any]
    cost: Floats  # [M] spent after each round
    k: Floats  # [M]
    low: Floats  # [M] the search interval; NaN where the record has none
    high: Floats  # [M]
    up: Floats  # [M] bytes of all clients so far
    down: Floats  # [M]
    dense: bool  # every message is all of the vector or nothing, so k says nothing about its size
    contribution: Floats  # [N] elements used from each client, in all rounds
    evaluated: Ints  # [E] the rounds after which it was evaluated; 0 is the start
    loss: Floats  # [E]
    accuracy: Floats  # [E] NaN where there is none

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return len(self.cost)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["settings"]["seed"])

    @property
    def evaluated_cost(self) -> Floats:
        """[E] what was spent at each evaluation."""
        return np.concatenate([[0.0], self.cost])[self.evaluated]

    @property
    def finished(self) -> bool:
        """Whether one of the reasons to stop in its configuration holds; else it is under way, or was interrupted."""
        stop = self.config.get("stop") or {}
        budget, loss, accuracy = (stop.get(name) for name in ("cost_budget", "target_loss", "target_accuracy"))
        return bool(
            self.rounds >= (stop.get("rounds") or 0)
            or (budget is not None and self.cost[-1] >= budget)
            or (loss is not None and (self.loss <= loss).any())
            or (accuracy is not None and (self.accuracy >= accuracy).any())
        )


def find_runs(places: Iterable[str | Path]) -> list[Path]:
    """The run folders among ``places`` and up to two levels inside them, each once: as given, then by name.

    A place that is there but holds no run is passed over (``runs/*`` names other things too), unless all are.
    """
    given = [Path(place) for place in places]
    found: dict[Path, Path] = {}
    for place in given:
        if not place.exists():
            raise GradsiftError(f"there is no folder {place}")
        inside = [place]
        if not ((place / CONFIG).is_file() or (place / RECORDS).is_file()):
            deeper = [path.parent for depth in ("*", "*/*") for path in place.glob(f"{depth}/{RECORDS}")]
            # Hidden: a folder that is still being created.
            inside = sorted(path for path in deeper if (path / CONFIG).is_file() and not path.name.startswith("."))
        for path in inside:
            found.setdefault(path.resolve(), path)
    if not found:
        raise GradsiftError(f"no run folder (one with a {CONFIG}) in {', '.join(map(str, given)) or 'nothing'}")
    return list(found.values())


def load_run(path: str | Path) -> Run:
    """One run folder; the line that a run under way has not finished writing is left out."""
    path = Path(path)
    config = read_config(path)
    for section, name, kind in NAMED:
        value = config[section].get(name) if isinstance(config.get(section), dict) else None
        if not isinstance(value, kind):
            raise GradsiftError(f"{path / CONFIG}: {section}.{name} is {value!r}")
    records = _checked_records(path)
    dim = config["model"]["dim"]
    start = config.get("start") or {}
    evaluations = [(0, start.get("global_loss"), start.get("accuracy"))]
    evaluations += [(r["round"], r.get("global_loss"), r.get("accuracy")) for r in records]
    evaluations = [e for e in evaluations if e[1] is not None]
    return Run(
        path=path,
        config=config,
        cost=_column(records, "cost"),
        k=_column(records, "k"),
        low=_column(records, "low"),
        high=_column(records, "high"),
        up=np.cumsum(_column(records, "up_bytes")),
        down=np.cumsum(_column(records, "down_bytes")),
        dense=all(r.get("up_elements") in (0, dim) for r in records) and any(r["k"] != dim for r in records),
        contribution=_per_client(records),
        evaluated=np.array([e[0] for e in evaluations], dtype=np.int64),
        loss=np.array([e[1] for e in evaluations], dtype=np.float64),
        accuracy=np.array([np.nan if e[2] is None else e[2] for e in evaluations], dtype=np.float64),
    )


NAMED = (("settings", "seed", int), ("sparsifier", "name", str), ("controller", "name", str), ("model", "dim", int))
NUMBERS = ("cost", "k", "up_bytes", "down_bytes")  # in every record
MAYBE = ("global_loss", "accuracy", "low", "high")  # or null, or left out


def _checked_records(path: Path) -> list[dict[str, Any]]:
    records = read_records(path)
    if not records:
        raise GradsiftError(f"{path} has no finished round yet: {RECORDS} is empty")
    spent, clients = 0.0, len(records[0].get("contribution") or ())
    for number, record in enumerate(records, start=1):
        wrong = [name for name in NUMBERS if not _finite(record.get(name))]
        wrong += [name for name in MAYBE if record.get(name) is not None and not _finite(record[name])]
        where = f"{path / RECORDS}, line {number}:"
        if wrong:
            raise GradsiftError(f"{where} {wrong[0]} is {record.get(wrong[0])!r}")
        if record["round"] != number:
            raise GradsiftError(f"{where} it is of round {record['round']!r}")
        if record["cost"] < spent:
            raise GradsiftError(f"{where} cost is {record['cost']!r}, and was {spent!r} a round before")
        used = record.get("contribution")
        if not isinstance(used, list) or len(used) < clients or not all(map(_finite, used)):
            raise GradsiftError(f"{where} contribution is not a list of {clients} numbers, one a client")
        spent, clients = record["cost"], len(used)  # in a deployment clients may come later
    return records


def _per_client(records: list[dict[str, Any]]) -> Floats:
    """[N] the sum over the rounds; a client that came later has no number in the earlier ones."""
    total = np.zeros(len(records[-1]["contribution"]))
    for record in records:
        total[: len(record["contribution"])] += record["contribution"]
    return total


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _column(records: list[dict[str, Any]], name: str) -> Floats:
    return np.array([np.nan if r.get(name) is None else r[name] for r in records], dtype=np.float64)
