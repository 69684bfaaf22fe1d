"""What the committed runs on FEMNIST and CIFAR-10 (docs/results/data) say for docs/theory.md.

The planned k on the seeds that no constant was chosen on, and which way the signs of Algorithm 3 point.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from benchmarks.common import ROOT
from benchmarks.law import Floats
from gradsift.cost import NormalizedTime
from gradsift.experiments import trajectory
from gradsift.experiments.sweep.plan import curve_of
from gradsift.experiments.trajectory import Trajectory
from gradsift.regret.best import Best, best
from gradsift.regret.interval import ratio
from gradsift.regret.reach import cost_to

RESULTS = ROOT / "docs/results/data"
TARGETS = {"femnist": (2.5, 2.0, 1.5), "cifar10": (1.88, 1.76, 1.65)}
SEEDS = (0, 1, 2)
UNSEEN = (1, 2)  # the seeds of these that no run in law.json has
EDGES = (0.0, 0.5, 1.0, 2.0, math.inf)  # of k over the best fixed k


class Key(NamedTuple):
    """One run of a sweep."""

    controller: str
    k: float | None
    comm_time: float
    seed: int


@cache
def runs(name: str) -> dict[Key, Trajectory]:
    """The runs of a task without options of the controller."""
    made = {}
    for run in trajectory.load(RESULTS / f"regret-{name}.npz").values():
        asked = run.config["experiment"]
        if not asked["set"]:
            made[Key(asked["controller"], asked["k"], asked["comm_time"], asked["seed"])] = run
    return made


def costs(name: str, comm_time: float, k: float, target: float, seeds: Sequence[int]) -> list[float]:
    """The cost of a fixed k to a target, of each seed; NaN where there is no run, or it does not get there."""
    sweep = {(key.k, key.seed): run for key, run in runs(name).items() if key.controller == "fixed"}
    found = [sweep.get((k, seed)) for seed in seeds]
    clock = NormalizedTime(comm_time)
    return [math.nan if run is None else float(cost_to(curve_of(run.repriced(clock)), target)[0]) for run in found]


@cache
def best_fixed(name: str, comm_time: float, target: float, seeds: tuple[int, ...] = SEEDS) -> Best:
    """The best fixed k by the mean of these seeds."""
    ks = sorted({key.k for key in runs(name) if key.controller == "fixed" and key.k is not None})
    found = best([int(k) for k in ks], np.array([costs(name, comm_time, k, target, seeds) for k in ks]))
    assert found is not None
    return found


def planned_over_best(name: str, comm_time: float, target: float, seeds: tuple[int, ...] = UNSEEN) -> float:
    """The cost of the planned k over that of the best fixed k, which is chosen on the same seeds."""
    made = [runs(name)[Key("planned", None, comm_time, seed)] for seed in seeds]
    spent = [float(cost_to(curve_of(run), target)[0]) for run in made]
    return ratio(spent, best_fixed(name, comm_time, target, seeds).costs).mean


class Signs(NamedTuple):
    """The rounds of Algorithm 3 with a usable sign until the lowest target, of all seeds."""

    over: Floats  # [M] k over the best fixed k
    smaller: Floats  # [M] 1 where the sign asks for a smaller k, 0 where for a larger one

    def shares(self, edges: Sequence[float] = EDGES) -> list[tuple[int, float]]:
        """The number of signs between two of these, and the share that asks for a smaller k."""
        place = np.digitize(self.over, edges) - 1
        parts = [self.smaller[place == number] for number in range(len(edges) - 1)]
        return [(len(part), float(part.mean()) if len(part) else math.nan) for part in parts]


def signs(name: str, comm_time: float) -> Signs:
    """Which way the signs point, and from where."""
    target = min(TARGETS[name])
    best_k = best_fixed(name, comm_time, target).k
    over, smaller = [], []
    for seed in SEEDS:
        run = runs(name)[Key("extended-sign", None, comm_time, seed)]
        met = run.evaluated[(run.loss <= target) & (run.evaluated > 0)]
        until = run.cut(int(met[0])) if len(met) else run
        usable = np.isin(until.sign, (-1, 1))
        over.append(until.k[usable] / best_k)
        smaller.append((until.sign[usable] == 1).astype(float))
    return Signs(np.concatenate(over), np.concatenate(smaller))
