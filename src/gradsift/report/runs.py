"""Load run folders: validate config.json and records.jsonl, and convert them to arrays for the summary and figures.

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
from gradsift.records.stop import STOPS, StopWhen
from gradsift.report.exchanges import Exchanges

# Entries of config.json with their types, and columns of records.jsonl; optional columns may be null or missing.
ENTRIES = (("settings", "seed", int), ("sparsifier", "name", str), ("controller", "name", str), ("model", "dim", int))
REQUIRED_COLUMNS = ("cost", "k", "up_bytes", "down_bytes")
OPTIONAL_COLUMNS = ("global_loss", "accuracy", "low", "high")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Run:
    """The configuration of a run, and its rounds as arrays."""

    path: Path
    config: dict[str, Any]
    cost: Floats  # [M] the total cost at the end of each round
    k: Floats  # [M]
    low: Floats  # [M] the interval in which the controller searches; NaN where the record has none
    high: Floats  # [M]
    up: Floats  # [M] the total bytes that all clients sent until the end of each round
    down: Floats  # [M] the total bytes that all clients received
    dense: bool  # whether every message is a full vector or empty, so that k is not the size of the messages
    contribution: Floats  # [N] how many elements of each client the server used, in all rounds
    evaluated: Ints  # [E] the number of rounds done at each evaluation; 0 means before round 1
    loss: Floats  # [E]
    accuracy: Floats  # [E] NaN without one
    exchanges: Exchanges | None = None  # None if only its trajectory is known

    @property
    def rounds(self) -> int:
        """The number of rounds done."""
        return len(self.cost)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["settings"]["seed"])

    @property
    def evaluated_cost(self) -> Floats:
        """[E] the cost spent at each evaluation."""
        return np.append(0.0, self.cost)[self.evaluated]

    @property
    def finished(self) -> bool:
        """Whether the run met one of its stop rules; otherwise it is still running or was interrupted."""
        rules = self.config.get("stop")
        if not rules:
            return True
        stop = StopWhen(**{name: rules[name] for name in STOPS if name in rules})
        met = target_met(stop, self.evaluated, self.loss, self.accuracy) or stop.due(self.rounds, self.cost[-1])
        return met is not None


def target_met(stop: StopWhen, evaluated: Ints, loss: Floats, accuracy: Floats) -> str | None:
    """Return the name of the first target that an evaluation after round 1 or later met, or None."""
    later = evaluated > 0
    met = (stop.reached(*values) for values in zip(loss[later], accuracy[later], strict=True))
    return next(filter(None, met), None)


def is_dense(k: Floats, up: Floats | Ints, dim: int) -> bool:
    """Whether every upload was a full vector or empty, and not only because k was rounded to 0 or ``dim``."""
    return bool(np.isin(up, (0, dim)).all() and ((up != np.floor(k)) & (up != np.ceil(k))).any())


def find_runs(places: Iterable[str | Path]) -> list[Path]:
    """Return the run folders among ``places`` and up to two levels inside them, without duplicates.

    They are in the order of ``places``, then by name. A place without a run is skipped, because ``runs/*`` may match
    other folders too; it is an error if no place has one.
    """
    given = [Path(place) for place in places]
    runs: dict[Path, Path] = {}
    for place in given:
        if not place.exists():
            raise GradsiftError(f"there is no folder {place}")
        inside = [place]
        if not ((place / CONFIG).is_file() or (place / RECORDS).is_file()):
            deeper = [path.parent for depth in ("*", "*/*") for path in place.glob(f"{depth}/{RECORDS}")]
            # A hidden folder is still being created.
            inside = sorted(path for path in deeper if (path / CONFIG).is_file() and not path.name.startswith("."))
        for path in inside:
            runs.setdefault(path.resolve(), path)
    if not runs:
        raise GradsiftError(f"no run folder (one with a {CONFIG}) in {', '.join(map(str, given)) or 'nothing'}")
    return list(runs.values())


def load_run(path: str | Path) -> Run:
    """Load a run folder; a last record that is only partly written is left out."""
    path = Path(path)
    config = read_config(path)
    for section, name, kind in ENTRIES:
        value = config[section].get(name) if isinstance(config.get(section), dict) else None
        if not isinstance(value, kind):
            raise GradsiftError(
                f"{path / CONFIG}: {section}.{name} is {value!r}, expected a value of type {kind.__name__}"
            )
    records = _validated_records(path)
    start = {**(config.get("start") or {}), "round": 0}
    evaluations = [record for record in (start, *records) if record.get("global_loss") is not None]
    # A client that joined a deployment later has no number in the earlier records.
    contribution = np.zeros(len(records[-1]["contribution"]))
    for record in records:
        contribution[: len(record["contribution"])] += record["contribution"]
    k = _column(records, "k")
    return Run(
        path=path,
        config=config,
        cost=_column(records, "cost"),
        k=k,
        low=_column(records, "low"),
        high=_column(records, "high"),
        up=np.cumsum(_column(records, "up_bytes")),
        down=np.cumsum(_column(records, "down_bytes")),
        dense=is_dense(k, _column(records, "up_elements"), config["model"]["dim"]),
        contribution=contribution,
        evaluated=np.array([record["round"] for record in evaluations], dtype=np.int64),
        loss=_column(evaluations, "global_loss"),
        accuracy=_column(evaluations, "accuracy"),
        exchanges=Exchanges.of(records),
    )


def _validated_records(path: Path) -> list[dict[str, Any]]:
    records = read_records(path)
    if not records:
        raise GradsiftError(f"{path} has no finished round yet: {RECORDS} is empty")
    spent, clients = 0.0, len(records[0].get("contribution") or ())
    for number, record in enumerate(records, start=1):
        wrong = [name for name in REQUIRED_COLUMNS if not _is_finite(record.get(name))]
        wrong += [name for name in OPTIONAL_COLUMNS if record.get(name) is not None and not _is_finite(record[name])]
        where = f"{path / RECORDS}, line {number}:"
        if wrong:
            raise GradsiftError(f"{where} {wrong[0]} is {record.get(wrong[0])!r}, expected a finite number")
        if record["round"] != number:
            raise GradsiftError(f"{where} round is {record['round']!r}, expected {number}")
        if record["cost"] < spent:
            raise GradsiftError(f"{where} cost is {record['cost']!r}, less than {spent!r} in the round before")
        used = record.get("contribution")
        if not isinstance(used, list) or len(used) < clients or not all(map(_is_finite, used)):
            raise GradsiftError(f"{where} contribution is not a list of at least {clients} numbers, one per client")
        spent, clients = record["cost"], len(used)
    return records


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _column(records: list[dict[str, Any]], name: str) -> Floats:
    return np.array([np.nan if r.get(name) is None else r[name] for r in records], dtype=np.float64)
