"""The runs behind ``gradsift regret``: a sweep of fixed k, and controllers under each cost model."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gradsift.control.base import Search
from gradsift.cost import CostModel
from gradsift.errors import GradsiftError, UsageError
from gradsift.experiments.experiment import CONTROLLERS, Experiment, Setup, in_short, make_experiment
from gradsift.experiments.settings import literal
from gradsift.experiments.store import Store
from gradsift.experiments.trajectory import Trajectory
from gradsift.regret.best import Best, best, grid
from gradsift.regret.reach import Floats, cost_to, descent
from gradsift.report.curves import Curve

FRACTIONS = (0.5, 0.75, 0.9)  # the default targets, as fractions of the way from the first loss to the lowest


def split_options(controller: str) -> tuple[str, dict[str, Any]]:
    """Split ``planned[guess=10]`` into the name of a controller and its options."""
    name, bracket, given = controller.partition("[")
    if not bracket:
        return name, {}
    pairs = [option.partition("=") for option in given.removesuffix("]").split(";")]
    if not given.endswith("]") or not all(option and equals for option, equals, _ in pairs):
        raise UsageError(f"a controller with options is written NAME[OPTION=VALUE;...], got {controller!r}")
    return name, {option: literal(value) for option, _, value in pairs}


def in_words(controller: str) -> str:
    """The controller's name in tables and figures."""
    name, options = split_options(controller)
    return ", ".join([CONTROLLERS.get(name, name), *(f"{option} {in_short(options[option])}" for option in options)])


@dataclass(frozen=True)
class Clock:
    """A cost model under which the controllers are run."""

    label: str
    cost: CostModel
    comm_time: float = 10.0
    named: tuple[str, Mapping[str, Any]] | None = None  # its name and options, if it is not normalised time


@dataclass(frozen=True)
class Plan:
    """A sweep of fixed k on one set-up, and the controllers and cost models to compare with it."""

    setup: Setup
    clocks: tuple[Clock, ...]
    controllers: tuple[str, ...]
    seeds: int
    rounds: int  # limit for runs that do not reach the lowest target
    targets: tuple[float, ...]  # losses; if empty, they are chosen from the runs
    eval_every: int
    points: int = 12
    sparsifier: str = "fab-top-k"

    def first_grid(self) -> list[int]:
        """Return the k of the sweep before it is refined, over the range that the controllers search."""
        settings = self.setup.settings
        interval = Search(settings.get("k_min"), settings.get("k_max")).interval(self.setup.dim)
        low, high = interval["low"], interval["high"]
        if math.ceil(low) >= math.floor(high):
            raise GradsiftError(f"--k-min {low:.10g} and --k-max {high:.10g} leave no two whole k to sweep")
        return grid(low, high, self.points)

    def fixed(self, k: int, seed: int) -> Experiment:
        """Return the experiment of a fixed k."""
        return self._experiment(seed, f"k = {k:,}", k=float(k))

    def controlled(self, controller: str, clock: Clock, seed: int) -> Experiment:
        """Return the experiment of a controller under a cost model."""
        name, options = split_options(controller)
        options |= {"horizon": self.rounds} if name in ("exp3", "continuous-bandit") else {}
        method = {"controller": name, "comm_time": clock.comm_time, "cost": clock.named, "options": options}
        return self._experiment(seed, in_words(controller), **method)

    def experiments(self, ks: Iterable[int]) -> list[Experiment]:
        """Return all experiments, those of one seed before those of the next."""
        experiments, sweep = [], list(ks)
        for seed in range(self.seeds):
            experiments += [self.fixed(k, seed) for k in sweep]
            experiments += [self.controlled(name, clock, seed) for name in self.controllers for clock in self.clocks]
        return experiments

    def _experiment(self, seed: int, label: str, **options: Any) -> Experiment:
        # All are evaluated at the same rounds: a run that is evaluated more often is seen to reach a loss sooner.
        options |= {"eval_every": self.eval_every, "evaluate_alike": True, "sparsifier": self.sparsifier}
        options |= {"rounds": self.rounds, "target_loss": min(self.targets, default=None)}
        experiment = make_experiment(self.setup, seed, label, **options)
        unused = {"k_min": None, "k_max": None} if experiment.settings["controller"] == "fixed" else {}
        return replace(experiment, settings={**experiment.settings, **unused})


@dataclass(frozen=True)
class Measured:
    """The finished runs of a plan: the sweep by (k, seed), and those of controllers by (name, clock, seed)."""

    plan: Plan
    ks: tuple[int, ...]  # the k that are finished in every seed, so that all means are over the same seeds
    sweep: dict[tuple[int, int], Trajectory]
    controlled: dict[tuple[str, str, int], Trajectory]

    @classmethod
    def of(cls, plan: Plan, ks: Sequence[int], store: Store) -> "Measured":
        """Read the finished runs."""
        seeds = range(plan.seeds)

        def done(experiment: Experiment) -> Trajectory | None:
            return store.get(experiment) if store.finished(experiment) else None

        sweep = {(k, seed): t for k in ks for seed in seeds if (t := done(plan.fixed(k, seed))) is not None}
        controlled = {
            (name, clock.label, seed): t
            for name in plan.controllers
            for clock in plan.clocks
            for seed in seeds
            if (t := done(plan.controlled(name, clock, seed))) is not None
        }
        return cls(plan, tuple(k for k in ks if all((k, seed) in sweep for seed in seeds)), sweep, controlled)

    @cached_property
    def targets(self) -> tuple[float, ...]:
        """The targets of the plan; else losses on the way to the lowest that half of the fixed k reach in every seed.

        There are none if that loss is not below the one before the first round.
        """
        if self.plan.targets or not self.ks:
            return self.plan.targets
        seeds = range(self.plan.seeds)
        first = [k for k in self.plan.first_grid() if k in self.ks] or self.ks  # refining must not move the targets
        lowest = sorted(max(float(self.sweep[k, seed].loss.min()) for seed in seeds) for k in first)
        start, end = self.start, lowest[(len(lowest) - 1) // 2]
        return tuple(start + fraction * (end - start) for fraction in FRACTIONS) if end < start else ()

    @cached_property
    def start(self) -> float:
        """The loss before the first round, which does not depend on k: the mean over seeds."""
        return float(np.mean([self.sweep[self.ks[0], seed].loss[0] for seed in range(self.plan.seeds)]))

    @cached_property
    def curves(self) -> dict[str, dict[tuple[int, int], Curve]]:
        """The lowest loss so far against the cost, by cost model and (k, seed), for every run of the sweep."""
        runs = [(k, seed) for k in self.ks for seed in range(self.plan.seeds)]
        return {
            clock.label: {run: curve_of(self.sweep[run].repriced(clock.cost)) for run in runs}
            for clock in self.plan.clocks
        }

    def costs(self, label: str, target: float) -> Floats:
        """[K, S] Return the cost of each run of the sweep to reach a target."""
        curves, seeds = self.curves[label], range(self.plan.seeds)
        return np.array([[cost_to(curves[k, seed], target)[0] for seed in seeds] for k in self.ks])

    @cached_property
    def bests(self) -> dict[tuple[str, float], Best | None]:
        """The best fixed k by cost model and target, for the targets below the loss before the first round."""
        bests = {}
        for label, curves in self.curves.items():
            spent = np.array([[curves[k, seed].x[-1] for seed in range(self.plan.seeds)] for k in self.ks])
            for target in self.targets if self.ks else ():
                if target < self.start:
                    bests[label, target] = best(self.ks, self.costs(label, target), spent)
        return bests


def curve_of(t: Trajectory) -> Curve:
    """Return the lowest loss so far against the cost."""
    return descent(np.append(0.0, t.cost)[t.evaluated], t.loss)
