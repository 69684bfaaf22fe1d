"""The course of a run in a few kilobytes: what the figures and tables are made from, and what docs/results keeps.

Each round is one number of each kind, in the smallest type that holds it; losses are kept for the evaluations only. The
model, the checkpoints and the contributions of each round stay in the run's folder.

Shapes: M rounds, E evaluations, N clients.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gradsift.cost import CostModel, Energy, LinkTime, Money, NormalizedTime, Traffic
from gradsift.errors import GradsiftError, RunError
from gradsift.records import files
from gradsift.records.folder import CONFIG, read_records
from gradsift.records.stop import StopWhen
from gradsift.report.runs import Floats, Ints, Run, is_dense, load_run, target_met

PLAIN = {cls.__name__: cls for cls in (NormalizedTime, LinkTime, Energy, Money)}
DERIVED = ("up", "down", "round_cost")
FORMAT = "gradsift trajectories 2"
ROUNDING = 1e-9  # relative: by so much may a sum of costs change with the order of its terms
BY_ROUND = ("k", "low", "high", "probe", "up", "down", "round_cost", "sign")
NO_SIGN = 2  # where no sign was estimated
# Arrays of a file and the types in which they are stored. Those in DERIVED can mostly be computed from the others (up
# from k, down from up, costs from the cost model): the difference is stored, which is mostly 0 and compresses well.
STORED = {
    "k": "<f4",
    "low": "<f4",
    "high": "<f4",
    "probe": "<f4",
    "up": "<i4",
    "down": "<i4",
    "round_cost": "<f8",
    "sign": "<i1",
    "contribution": "<f4",
    "evaluated": "<i4",
    "loss": "<f8",
    "accuracy": "<f8",
}


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One run, finished or not."""

    name: str
    config: dict[str, Any]
    k: Floats  # [M]
    low: Floats  # [M] the search interval; NaN where there is none
    high: Floats  # [M]
    probe: Floats  # [M] the k' that k was compared with; NaN where there was none
    up: Ints  # [M] elements each client sent
    down: Ints  # [M] elements each client received
    round_cost: Floats  # [M]
    sign: Ints  # [M] the estimated sign of the derivative, or NO_SIGN
    contribution: Floats  # [N] elements used from each client, in all rounds; [0] of a part of a run
    evaluated: Ints  # [E] rounds done at each evaluation; 0 is the start
    loss: Floats  # [E]
    accuracy: Floats  # [E] NaN where there is none

    @property
    def rounds(self) -> int:
        """M."""
        return len(self.k)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["settings"]["seed"])

    @property
    def dim(self) -> int:
        """D."""
        return int(self.config["model"]["dim"])

    @property
    def dense(self) -> bool:
        """Whether its messages are whole vectors or nothing, whatever k is."""
        return is_dense(self.k, self.up, self.dim)

    @property
    def switched_after(self) -> int | None:
        """The round after which an experiment of Figure 1 changed its k; None if it did not, or not yet."""
        after = self.config.get("switched_after")
        return None if after is None else int(after)

    @property
    def cost(self) -> Floats:
        """[M] spent after each round."""
        return np.cumsum(self.round_cost)

    def reached(self, stop: StopWhen) -> str | None:
        """The rule of ``stop`` that the run has met by now; None if it has met none."""
        spent = float(self.round_cost.sum()) * (1 + ROUNDING)
        return target_met(stop, self.evaluated, self.loss, self.accuracy) or stop.due(self.rounds, spent)

    def cut(self, rounds: int) -> "Trajectory":
        """Its first rounds; without contributions, which are known for the whole run only."""
        if rounds >= self.rounds:
            return self
        there = self.evaluated <= rounds
        return replace(
            self,
            contribution=np.empty(0),
            **{name: getattr(self, name)[:rounds] for name in BY_ROUND},
            **{name: getattr(self, name)[there] for name in ("evaluated", "loss", "accuracy")},
        )

    def within(self, stop: StopWhen) -> "Trajectory":
        """The part of it that a run with the number of rounds and the budget of ``stop`` would have made."""
        rounds = min(self.rounds, stop.rounds)
        if stop.cost_budget is not None:
            rounds = min(rounds, int(np.searchsorted(self.cost, stop.cost_budget / (1 + ROUNDING))) + 1)
        return self.cut(rounds)

    def repriced(self, cost: CostModel) -> "Trajectory":
        """The same rounds priced by another cost model."""
        said = {"class": type(cost).__name__, **dataclasses.asdict(cost)}  # type: ignore[call-overload]
        config = {**self.config, "cost": json.loads(json.dumps(said))}
        return replace(self, config=config, round_cost=_prices(self.config, cost, self.up, self.down, self.dense))

    def as_run(self) -> Run:
        """As ``gradsift.report`` reads a run; bytes are 4 for each index and value."""
        clients = int(self.config["data"]["clients"])
        each = 4.0 * clients if self.dense else 8.0 * clients
        return Run(
            path=Path(self.name),
            config=self.config,
            cost=self.cost,
            k=self.k,
            low=self.low,
            high=self.high,
            up=np.cumsum(each * self.up),
            down=np.cumsum(each * self.down),
            dense=self.dense,
            contribution=self.contribution,
            evaluated=self.evaluated,
            loss=self.loss,
            accuracy=self.accuracy,
        )


def own_cost(config: Mapping[str, Any]) -> CostModel | None:
    """The cost model of a configuration; None where it is not one of the plain ones."""
    options = dict(config["cost"])
    found = PLAIN.get(options.pop("class", ""))
    return None if found is None else found(**options)


def _prices(config: Mapping[str, Any], cost: CostModel, up: Ints, down: Ints, dense: bool) -> Floats:
    """[M] the cost of each round, if all clients took part in it."""
    pairs, place = np.unique(np.stack([up, down]), axis=1, return_inverse=True)
    dim, clients = int(config["model"]["dim"]), int(config["data"]["clients"])
    how = {"dense": dense, "dense_fallback": bool(config["settings"].get("dense_fallback"))}
    steps = int(config.get("local", {}).get("steps", 1))
    each = [cost.round_cost(Traffic.of(dim, int(u), int(d), clients=clients, steps=steps, **how)) for u, d in pairs.T]
    return np.array(each)[place.reshape(-1)]


def _expected(name: str, config: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """The usual value of an array in DERIVED, computed from the arrays before it."""
    if name == "up":
        return np.floor(arrays["k"].astype(STORED["k"])).astype(np.int64)
    if name == "down":
        return arrays["up"]
    cost = own_cost(config)
    if cost is None:
        return 0.0
    dense = is_dense(arrays["k"], arrays["up"], config["model"]["dim"])
    return _prices(config, cost, arrays["up"], arrays["down"], dense)


def from_folder(folder: Path) -> Trajectory | None:
    """The run in a folder; None if there is none, or it has no finished round yet."""
    if not (folder / CONFIG).is_file():
        return None
    records = read_records(folder)
    if not records:
        return None
    run = load_run(folder)
    return Trajectory(
        name=folder.name,
        config={name: value for name, value in run.config.items() if name != "command"},  # it repeats the rest
        k=run.k,
        low=run.low,
        high=run.high,
        probe=np.array([np.nan if record["probe_k"] is None else record["probe_k"] for record in records]),
        up=np.array([record["up_elements"] for record in records]),
        down=np.array([record["down_elements"] for record in records]),
        round_cost=np.array([record["round_cost"] for record in records]),
        sign=np.array([NO_SIGN if record["sign"] is None else record["sign"] for record in records]),
        contribution=run.contribution,
        evaluated=run.evaluated,
        loss=run.loss,
        accuracy=run.accuracy,
    )


def save(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write a file of trajectories, atomically."""
    kept = list(trajectories)
    stored: files.Arrays = {}
    for number, t in enumerate(kept):
        whole = {name: getattr(t, name) for name in STORED}
        arrays = whole | {name: whole[name] - _expected(name, t.config, whole) for name in DERIVED}
        stored |= {f"{number}/{name}": arrays[name].astype(kind) for name, kind in STORED.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        runs = [{"name": t.name, "config": t.config} for t in kept]
        files.save(path, FORMAT, stored, {"runs": runs}, small=True)
    except OSError as problem:
        raise RunError(f"could not write {path}: {problem}; it is as it was") from problem


def load(path: Path) -> dict[str, Trajectory]:
    """The trajectories of a file, by name; none if there is no file."""
    try:
        stored, facts = files.load(path, FORMAT)
        runs = [_read(stored, number, run) for number, run in enumerate(facts["runs"])]
    except FileNotFoundError:
        return {}
    except Exception as problem:  # a damaged file: whatever its parsing raises
        raise GradsiftError(f"{path} is not a file of results: {problem}") from problem
    return {run.name: run for run in runs}


def _read(stored: Mapping[str, Any], number: int, about: dict[str, Any]) -> Trajectory:
    arrays = {
        name: stored[f"{number}/{name}"].astype(np.float64 if "f" in kind else np.int64)
        for name, kind in STORED.items()
    }
    for name in DERIVED:  # in this order: each needs those before it
        arrays[name] = arrays[name] + _expected(name, about["config"], arrays)
    return Trajectory(name=about["name"], config=about["config"], **arrays)


def longer(one: Trajectory | None, other: Trajectory | None) -> Trajectory | None:
    """The one with more rounds; the first, if they have equally many."""
    if one is None or other is None:
        return one or other
    return other if other.rounds > one.rounds else one
