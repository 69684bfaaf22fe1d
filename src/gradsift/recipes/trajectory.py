"""The course of a run in a few kilobytes: what every figure and table is made of, and what is committed.

A round is one number of each kind, in the smallest type that holds it; losses are kept for the evaluations only. The
model, the checkpoints and each round's contributions stay behind in the run's folder.

Shapes: M rounds, E evaluations, N clients.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsift.cost import CostModel, Energy, LinkTime, Money, NormalizedTime, Traffic
from gradsift.errors import GradsiftError, RunError
from gradsift.report.runs import Run, load_run
from gradsift.simulation.folder import CONFIG, read_records
from gradsift.simulation.settings import StopWhen

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PLAIN = {cls.__name__: cls for cls in (NormalizedTime, LinkTime, Energy, Money)}
DERIVED = ("up", "down", "round_cost")
FORMAT = "gradsift trajectories 2"
ROUNDING = 1e-9  # a sum of costs made in another order may fall short by that part of it
BY_ROUND = ("k", "low", "high", "probe", "up", "down", "round_cost", "sign")
NO_SIGN = 2  # where the estimate was unavailable, or none was made
# Arrays of a file and the types in which they are stored. What follows from the others is stored as the difference,
# which is mostly 0 and so takes no room: up from k, down from up, and the costs from the cost model.
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
        """Whether its messages are whole vectors or nothing."""
        return bool(np.isin(self.up, (0, self.dim)).all() and (self.k != self.dim).any())

    @property
    def switched_after(self) -> int | None:
        """The round after which an experiment of Figure 1 changed its k."""
        after = self.config.get("switched_after")
        return None if after is None else int(after)

    @property
    def cost(self) -> Floats:
        """[M] spent after each round."""
        return np.cumsum(self.round_cost)

    def reached(self, stop: StopWhen) -> str | None:
        """Why a run that came so far, or farther, was told to stop by ``stop``; None if it was not."""
        later = self.evaluated > 0
        met = [stop.reached(loss, acc) for loss, acc in zip(self.loss[later], self.accuracy[later], strict=True)]
        spent = float(self.round_cost.sum()) * (1 + ROUNDING)
        return next(filter(None, met), None) or stop.due(self.rounds, spent)

    def cut(self, rounds: int) -> "Trajectory":
        """Its first rounds, without contributions: those are kept for the whole run only."""
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
        """The part of a longer run that one with this ``stop`` would have made (a budget, a number of rounds)."""
        rounds = min(self.rounds, stop.rounds)
        if stop.cost_budget is not None:
            rounds = min(rounds, int(np.searchsorted(self.cost, stop.cost_budget / (1 + ROUNDING))) + 1)
        return self.cut(rounds)

    def reclocked(self, cost: CostModel) -> "Trajectory":
        """The same run under another cost model: exact where k does not depend on the cost, or was recorded."""
        said = {"class": type(cost).__name__, **dataclasses.asdict(cost)}  # type: ignore[call-overload]
        config = {**self.config, "cost": json.loads(json.dumps(said))}
        return replace(self, config=config, round_cost=_prices(self.config, cost, self.up, self.down))

    def as_run(self) -> Run:
        """For the figures and tables of ``gradsift.report``. Bytes are those of index-value pairs."""
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


def _prices(config: Mapping[str, Any], cost: CostModel, up: Ints, down: Ints) -> Floats:
    """What each round costs in which everybody took part."""
    pairs, place = np.unique(np.stack([up, down]), axis=1, return_inverse=True)
    dim, clients = int(config["model"]["dim"]), int(config["data"]["clients"])
    how = {
        "dense": config["sparsifier"]["name"] in ("fedavg", "send-all"),
        "dense_fallback": bool(config["settings"].get("dense_fallback")),
    }
    each = [cost.round_cost(Traffic.of(dim, int(u), int(d), clients=clients, **how)) for u, d in pairs.T]
    return np.array(each)[place.reshape(-1)]


def _expected(name: str, config: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """What up, down or the costs are where nothing is special, from those before it."""
    if name == "up":
        return np.floor(arrays["k"].astype(STORED["k"])).astype(np.int64)
    if name == "down":
        return arrays["up"]
    cost = own_cost(config)
    return 0.0 if cost is None else _prices(config, cost, arrays["up"], arrays["down"])


def from_folder(folder: Path) -> Trajectory | None:
    """The run in a folder; None if it is not there, or has no round yet."""
    if not (folder / CONFIG).is_file():
        return None
    records = read_records(folder)
    if not records:
        return None
    run = load_run(folder)
    return Trajectory(
        name=folder.name,
        config={name: value for name, value in run.config.items() if name != "command"},  # it says the same again
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
    """Write a file of trajectories; it is either the old one or the whole new one."""
    kept = list(trajectories)
    about = {"format": FORMAT, "runs": [{"name": t.name, "config": t.config} for t in kept]}
    members: dict[str, Any] = {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
    for number, t in enumerate(kept):
        whole = {name: getattr(t, name) for name in STORED}
        arrays = whole | {name: whole[name] - _expected(name, t.config, whole) for name in DERIVED}
        members |= {f"{number}/{name}": arrays[name].astype(kind) for name, kind in STORED.items()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # another process may write the same
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            np.savez_compressed(file, **members)
        os.replace(temporary, path)
    except OSError as problem:
        raise RunError(f"could not write {path}: {problem}; it is as it was") from problem
    finally:
        with contextlib.suppress(OSError):  # gone already, as it should be, or its folder never was one
            temporary.unlink()


def load(path: Path) -> dict[str, Trajectory]:
    """The trajectories of a file, by name; there are none where there is no file."""
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            about = json.loads(archive["about"].tobytes())
            if about["format"] != FORMAT:
                raise ValueError(f"it is {about['format']!r}, not {FORMAT!r}")
            runs = [_read(archive, number, run) for number, run in enumerate(about["runs"])]
    except Exception as problem:  # whatever a parser does with bytes that are not what it expects
        raise GradsiftError(f"{path} is not a file of results: {type(problem).__name__}: {problem}") from problem
    return {run.name: run for run in runs}


def _read(archive: Mapping[str, Any], number: int, about: dict[str, Any]) -> Trajectory:
    arrays = {
        name: archive[f"{number}/{name}"].astype(np.float64 if "f" in kind else np.int64)
        for name, kind in STORED.items()
    }
    for name in DERIVED:  # in their order: each needs those before it
        arrays[name] = arrays[name] + _expected(name, about["config"], arrays)
    return Trajectory(name=about["name"], config=about["config"], **arrays)


def longer(one: Trajectory | None, other: Trajectory | None) -> Trajectory | None:
    """The one with more rounds, the first of equals."""
    if one is None or other is None:
        return one or other
    return other if other.rounds > one.rounds else one
