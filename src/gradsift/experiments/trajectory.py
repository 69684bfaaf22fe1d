"""The trajectory of a run in a few kilobytes, from which figures and tables are made; docs/results/data has such files.

A trajectory has k, traffic, cost and sign of each round, and the losses of the evaluations. The model, the checkpoints
and the contributions of each round stay in the run folder.

Shapes: M rounds, E evaluations, N clients.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gradsift.cost import CostModel, Energy, LinkTime, Money, NormalizedTime, Traffic
from gradsift.describe import named
from gradsift.errors import GradsiftError, RunError
from gradsift.records import files
from gradsift.records.folder import CONFIG, read_records
from gradsift.records.stop import StopWhen
from gradsift.report.runs import Floats, Ints, Run, is_dense, load_run, target_met

COSTS = {cls.__name__: cls for cls in (NormalizedTime, LinkTime, Energy, Money)}
FORMAT = "gradsift trajectories 2"
ROUNDING = 1e-9  # relative error of a sum of costs, which depends on the order of its terms
NO_SIGN = 2  # stored for a round in which no sign was estimated
# The arrays of a file and the types in which they are stored.
BY_ROUND = {"k": "<f4", "low": "<f4", "high": "<f4", "probe": "<f4"}
BY_ROUND |= {"up": "<i4", "down": "<i4", "round_cost": "<f8", "sign": "<i1"}
BY_EVALUATION = {"evaluated": "<i4", "loss": "<f8", "accuracy": "<f8"}
LEARNED = {"c": "<f4", "waiting": "<f4", "agreement": "<f4"}  # by round; stored only for controllers that plan k
STORED = {**BY_ROUND, "contribution": "<f4", **BY_EVALUATION}
# Arrays that can usually be computed from the ones before them: up from k, down from up, and costs from both. Only the
# difference is stored, which is mostly 0 and compresses well.
DERIVED = ("up", "down", "round_cost")
SHARED = ("k", "low", "high", "contribution", *BY_EVALUATION)  # the arrays that a Run of gradsift.report has too


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One run, which need not be finished."""

    name: str
    config: dict[str, Any]
    k: Floats  # [M]
    low: Floats  # [M] lower end of the search interval; NaN without one
    high: Floats  # [M] upper end
    probe: Floats  # [M] the k' that k was compared with; NaN without one
    up: Ints  # [M] elements each client sent
    down: Ints  # [M] elements each client received
    round_cost: Floats  # [M]
    sign: Ints  # [M] the estimated sign of the derivative, or NO_SIGN
    contribution: Floats  # [N] elements of each client that were used in all rounds; [0] for a part of a run
    evaluated: Ints  # [E] rounds done at each evaluation; 0 is the start
    loss: Floats  # [E]
    accuracy: Floats  # [E] NaN without test samples
    c: Floats  # [M] of the law by which k is planned; NaN without one
    waiting: Floats  # [M] exchanges that an element waits, as the controller learned it in that round; NaN without it
    agreement: Floats  # [M] likewise

    @property
    def rounds(self) -> int:
        """M, the number of rounds."""
        return len(self.k)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["settings"]["seed"])

    @property
    def dim(self) -> int:
        """D, the number of parameters."""
        return int(self.config["model"]["dim"])

    @property
    def dense(self) -> bool:
        """Whether every message is a whole vector or empty, whatever k is."""
        return is_dense(self.k, self.up, self.dim)

    @property
    def switched_after(self) -> int | None:
        """The round after which an experiment of Figure 1 changed its k; None if it has not."""
        return self.config.get("switched_after")

    @property
    def cost(self) -> Floats:
        """[M] the cost up to the end of each round."""
        return np.cumsum(self.round_cost)

    def reached(self, stop: StopWhen) -> str | None:
        """Return the rule of ``stop`` that the run has met, or None."""
        spent = float(self.round_cost.sum()) * (1 + ROUNDING)
        return target_met(stop, self.evaluated, self.loss, self.accuracy) or stop.due(self.rounds, spent)

    def cut(self, rounds: int) -> "Trajectory":
        """Return its first rounds, without contributions, which are known for the whole run only."""
        if rounds >= self.rounds:
            return self
        kept = dict.fromkeys((*BY_ROUND, *LEARNED), np.s_[:rounds]) | dict.fromkeys(
            BY_EVALUATION, self.evaluated <= rounds
        )
        return replace(self, contribution=np.empty(0), **{name: getattr(self, name)[kept[name]] for name in kept})

    def within(self, stop: StopWhen) -> "Trajectory":
        """Return the rounds that a run with the limit of rounds and the cost budget of ``stop`` makes."""
        rounds = min(self.rounds, stop.rounds)
        if stop.cost_budget is not None:
            rounds = min(rounds, int(np.searchsorted(self.cost, stop.cost_budget / (1 + ROUNDING))) + 1)
        return self.cut(rounds)

    def repriced(self, cost: CostModel) -> "Trajectory":
        """Return the same rounds with the costs of another cost model."""
        if self.config["settings"].get("encoded_bytes"):
            round_cost = self._by_bytes(cost)
        else:
            round_cost = _prices(self.config, cost, self.up, self.down, self.dense)
        return replace(self, config={**self.config, "cost": named(cost)}, round_cost=round_cost)

    def _by_bytes(self, cost: CostModel) -> Floats:
        """[M] Return the normalised time of rounds whose encoded bytes were counted: their own, with another link."""
        own = dict(self.config["cost"])
        if own.pop("class") != NormalizedTime.__name__ or not isinstance(cost, NormalizedTime) or not own["comm_time"]:
            raise GradsiftError(f"{self.name}: encoded bytes can be priced by normalised time only, not by {cost!r}")
        steps = int(self.config["local"]["steps"])
        exchanged = (self.round_cost - own["comp_time"] * steps) / own["comm_time"]
        return np.asarray(cost.comp_time * steps + cost.comm_time * exchanged)

    def as_run(self) -> Run:
        """Return the run as ``gradsift.report`` reads it, with 4 bytes for each index and value."""
        each = (4.0 if self.dense else 8.0) * int(self.config["data"]["clients"])
        up, down = np.cumsum(each * self.up), np.cumsum(each * self.down)
        shared = {name: getattr(self, name) for name in SHARED}
        return Run(Path(self.name), self.config, cost=self.cost, up=up, down=down, dense=self.dense, **shared)


def _prices(config: Mapping[str, Any], cost: CostModel, up: Ints, down: Ints, dense: bool) -> Floats:
    """[M] Return the cost of each round if all clients took part in it."""
    pairs, place = np.unique(np.stack([up, down]), axis=1, return_inverse=True)
    dim, clients = int(config["model"]["dim"]), int(config["data"]["clients"])
    how: dict[str, Any] = {"dense": dense, "dense_fallback": bool(config["settings"].get("dense_fallback"))}
    how["steps"] = int(config.get("local", {}).get("steps", 1))
    costs = [cost.round_cost(Traffic.of(dim, int(u), int(d), clients=clients, **how)) for u, d in pairs.T]
    return np.array(costs)[place.reshape(-1)]


def _expected(name: str, config: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """Return the usual value of an array in DERIVED, computed from the arrays before it."""
    if name == "up":
        return np.floor(arrays["k"].astype(STORED["k"])).astype(np.int64)
    if name == "down":
        return arrays["up"]
    options = dict(config["cost"])
    cost = COSTS.get(options.pop("class", ""))
    if cost is None:
        return 0.0
    dense = is_dense(arrays["k"], arrays["up"], config["model"]["dim"])
    return _prices(config, cost(**options), arrays["up"], arrays["down"], dense)


def from_folder(folder: Path) -> Trajectory | None:
    """Read the run in a folder; returns None if there is no run, or no finished round."""
    if not (folder / CONFIG).is_file() or not (records := read_records(folder)):
        return None
    run = load_run(folder)
    # The command repeats the settings. Only the records have the number of gradients of a local computation.
    config = {name: value for name, value in run.config.items() if name != "command"}
    config["local"] = {**config.get("local", {}), "steps": records[0].get("steps", 1)}
    return Trajectory(
        name=folder.name,
        config=config,
        probe=np.array([np.nan if record["probe_k"] is None else record["probe_k"] for record in records]),
        up=np.array([record["up_elements"] for record in records]),
        down=np.array([record["down_elements"] for record in records]),
        round_cost=np.array([record["round_cost"] for record in records]),
        sign=np.array([NO_SIGN if record["sign"] is None else record["sign"] for record in records]),
        **{name: getattr(run, name) for name in SHARED},
        **{name: _column(records, name) for name in LEARNED},
    )


def _column(records: Iterable[Mapping[str, Any]], name: str) -> Any:
    return np.array([record.get(name) for record in records], dtype=np.float64)  # None becomes NaN


def save(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write a file of trajectories atomically."""
    runs: list[dict[str, Any]] = []
    stored: files.Arrays = {}
    for number, t in enumerate(trajectories):
        runs.append({"name": t.name, "config": t.config})
        arrays = {name: getattr(t, name) for name in STORED}
        arrays |= {name: arrays[name] - _expected(name, t.config, arrays) for name in DERIVED}
        stored |= {f"{number}/{name}": arrays[name].astype(kind) for name, kind in STORED.items()}
        if not np.isnan(t.c).all():
            stored |= {f"{number}/{name}": getattr(t, name).astype(kind) for name, kind in LEARNED.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.save(path, FORMAT, stored, {"runs": runs}, small=True)
    except OSError as problem:
        raise RunError(f"could not write {path}: {problem}; the file has not changed") from problem


def load(path: Path) -> dict[str, Trajectory]:
    """Read the trajectories of a file, by name; returns an empty dict if there is no file."""
    try:
        stored, facts = files.load(path, FORMAT)
        runs = [_read(stored, number, **run) for number, run in enumerate(facts["runs"])]
    except FileNotFoundError:
        return {}
    except Exception as problem:  # whatever a damaged file raises
        raise GradsiftError(f"{path} is not a file of results: {problem}") from problem
    return {run.name: run for run in runs}


def _read(stored: files.Arrays, number: int, name: str, config: dict[str, Any]) -> Trajectory:
    arrays: files.Arrays = {
        array: stored[f"{number}/{array}"].astype(np.float64 if "f" in kind else np.int64)
        for array, kind in STORED.items()
    }
    for array in DERIVED:  # in this order, since each needs those before it
        arrays[array] = arrays[array] + _expected(array, config, arrays)
    unknown = np.full(len(arrays["k"]), np.nan)
    learned: dict[str, Any] = {array: stored.get(f"{number}/{array}", unknown).astype(np.float64) for array in LEARNED}
    return Trajectory(name, config, **arrays, **learned)


def longer(first: Trajectory | None, second: Trajectory | None) -> Trajectory | None:
    """Return the run with more rounds, the first if they have equally many."""
    runs = [run for run in (first, second) if run is not None]
    return max(runs, key=lambda run: run.rounds, default=None)
