"""The runs behind ``gradsift regret``: fixed k over the whole search range, and controllers under each cost model."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gradsift.control.base import Search
from gradsift.cost import CostModel
from gradsift.errors import GradsiftError
from gradsift.experiments.experiment import CONTROLLERS, Experiment, Setup, method
from gradsift.experiments.store import Store
from gradsift.experiments.trajectory import Trajectory
from gradsift.regret.best import Best, best, grid
from gradsift.regret.reach import Floats, cost_to, descent
from gradsift.report.curves import Curve

PARTS = (0.5, 0.75, 0.9)  # of the way down: the targets where none are named


@dataclass(frozen=True)
class Clock:
    """A cost model under which the controllers are run."""

    label: str
    cost: CostModel
    comm_time: float = 10.0
    named: tuple[str, str, Mapping[str, Any]] | None = None  # where it is not normalised time: ``cost`` of ``method``


@dataclass(frozen=True)
class Plan:
    """What is compared."""

    setup: Setup
    clocks: tuple[Clock, ...]
    controllers: tuple[str, ...]
    seeds: int
    rounds: int  # of a run that does not reach the lowest target before
    targets: tuple[float, ...]  # losses; empty: chosen from the runs
    eval_every: int
    points: int = 12
    sparsifier: str = "fab-top-k"

    def first_grid(self) -> list[int]:
        """The k of the sweep before it is refined, over the range that the controllers search."""
        chosen = self.setup.settings
        whole = Search(chosen.get("k_min"), chosen.get("k_max")).interval(self.setup.dim)
        low, high = whole["low"], whole["high"]
        if math.ceil(low) >= math.floor(high):
            raise GradsiftError(f"--k-min {low:.10g} and --k-max {high:.10g} leave no two whole k to sweep")
        return grid(low, high, self.points)

    def fixed(self, k: int, seed: int) -> Experiment:
        """A run of the sweep."""
        return self._run(seed, f"k = {k:,}", k=float(k))

    def searching(self, controller: str, clock: Clock, seed: int) -> Experiment:
        """A run of a controller."""
        options = {"horizon": self.rounds} if controller in ("exp3", "continuous-bandit") else {}
        return self._run(
            seed,
            CONTROLLERS.get(controller, controller),
            controller=controller,
            comm_time=clock.comm_time,
            cost=clock.named,
            options=options,
        )

    def experiments(self, ks: Iterable[int]) -> list[Experiment]:
        """All runs with one seed before the next seed."""
        sweep = list(ks)
        return [
            one
            for seed in range(self.seeds)
            for one in (
                *(self.fixed(k, seed) for k in sweep),
                *(self.searching(name, clock, seed) for name in self.controllers for clock in self.clocks),
            )
        ]

    def _run(self, seed: int, label: str, **options: Any) -> Experiment:
        stop: dict[str, Any] = {"rounds": self.rounds}
        if self.targets:
            stop["target_loss"] = min(self.targets)
        # All are evaluated alike: a run that is evaluated more often is seen to reach a loss sooner.
        how: dict[str, Any] = {"eval_every": self.eval_every, "evaluate_alike": True, "sparsifier": self.sparsifier}
        made = method(self.setup, seed, label, **how, **options, **stop)
        unused = {"k_min": None, "k_max": None} if made.settings["controller"] == "fixed" else {}
        return replace(made, settings={**made.settings, **unused})


@dataclass(frozen=True)
class Measured:
    """The runs of a plan that are finished: the sweep by (k, seed), and the controllers' by (name, clock, seed)."""

    plan: Plan
    ks: tuple[int, ...]
    sweep: dict[tuple[int, int], Trajectory]
    searches: dict[tuple[str, str, int], Trajectory]

    @classmethod
    def of(cls, plan: Plan, ks: Sequence[int], store: Store) -> "Measured":
        """Read the finished runs; a k of which a seed is missing is left out, so that all means have the same seeds."""
        seeds = range(plan.seeds)

        def done(experiment: Experiment) -> Trajectory | None:
            return store.get(experiment) if store.finished(experiment) else None

        sweep = {(k, seed): t for k in ks for seed in seeds if (t := done(plan.fixed(k, seed))) is not None}
        whole = tuple(k for k in ks if all((k, seed) in sweep for seed in seeds))
        searches = {
            (name, clock.label, seed): t
            for name in plan.controllers
            for clock in plan.clocks
            for seed in seeds
            if (t := done(plan.searching(name, clock, seed))) is not None
        }
        return cls(plan, whole, sweep, searches)

    def targets(self) -> tuple[float, ...]:
        """The named targets; else losses on the way to the lowest that half of the fixed k reach in every seed.

        There are none if that is not below the loss before the first round.
        """
        if self.plan.targets or not self.ks:
            return self.plan.targets
        seeds = range(self.plan.seeds)
        first = [k for k in self.plan.first_grid() if k in self.ks] or self.ks  # refining must not move them
        lowest = sorted(max(float(self.sweep[k, seed].loss.min()) for seed in seeds) for k in first)
        start, end = self.start(), lowest[(len(lowest) - 1) // 2]
        return tuple(start + part * (end - start) for part in PARTS) if end < start else ()

    def start(self) -> float:
        """The loss before the first round, which is the same for every k: the mean over seeds."""
        return float(np.mean([self.sweep[self.ks[0], seed].loss[0] for seed in range(self.plan.seeds)]))

    @cached_property
    def curves(self) -> dict[str, dict[tuple[int, int], Curve]]:
        """Every run of the sweep, by (k, seed), priced by every cost model."""
        runs = [(k, seed) for k in self.ks for seed in range(self.plan.seeds)]
        return {
            clock.label: {run: curve_of(self.sweep[run].repriced(clock.cost)) for run in runs}
            for clock in self.plan.clocks
        }

    def costs(self, label: str, target: float) -> Floats:
        """[K, S] the cost of each run of the sweep to reach a target."""
        curves, seeds = self.curves[label], range(self.plan.seeds)
        return np.array([[cost_to(curves[k, seed], target)[0] for seed in seeds] for k in self.ks])

    @cached_property
    def bests(self) -> dict[tuple[str, float], Best | None]:
        """The best fixed k for each cost model and each target below the loss before the first round."""
        if not self.ks:
            return {}
        found = {}
        for clock in self.plan.clocks:
            curves = self.curves[clock.label]
            spent = np.array([[curves[k, seed].x[-1] for seed in range(self.plan.seeds)] for k in self.ks])
            for target in self.targets():
                if target < self.start():
                    found[clock.label, target] = best(self.ks, self.costs(clock.label, target), spent)
        return found


def curve_of(t: Trajectory) -> Curve:
    """The lowest loss so far against the cost."""
    return descent(np.append(0.0, t.cost)[t.evaluated], t.loss)
