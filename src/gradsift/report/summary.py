"""What came of each method, in numbers: mean and spread over its seeds. No figures here, so no matplotlib."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from gradsift.records.stop import StopWhen
from gradsift.report.curves import Curve, at, evaluations
from gradsift.report.methods import Method, group
from gradsift.report.runs import Floats, Run, find_runs, load_run


class Spread(NamedTuple):
    """One number a seed, from the seeds that have it: ``len(values)`` of ``seeds``."""

    values: tuple[float, ...]
    seeds: int

    @property
    def mean(self) -> float | None:
        """The mean; None without a value."""
        return fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """The sample standard deviation; None with fewer than two values."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def low(self) -> float | None:
        """The lowest."""
        return min(self.values, default=None)

    @property
    def high(self) -> float | None:
        """The highest."""
        return max(self.values, default=None)


@dataclass(frozen=True)
class Row:
    """One method. A Spread without values: no seed has such a number (not evaluated, not reached)."""

    label: str
    seeds: tuple[int, ...]
    paths: tuple[Path, ...]
    rounds: Spread
    cost: Spread  # spent at the end
    loss: Spread  # at the last evaluation
    accuracy: Spread
    target_loss: float | None
    target_accuracy: float | None
    cost_to_loss: Spread | None  # None: no target was given
    cost_to_accuracy: Spread | None
    equal_cost: float | None  # the cost at which the next two are taken; None: nothing to compare, or no common clock
    loss_at_equal_cost: Spread
    accuracy_at_equal_cost: Spread
    up_bytes: Spread
    down_bytes: Spread
    least_used: Spread  # the least-used client's contribution over an equal share: 1 is fair, 0 is never used


def summarise(
    runs: Iterable[Run | str | Path], target_loss: float | None = None, target_accuracy: float | None = None
) -> list[Row]:
    """One row a method, in the order in which the methods first occur among ``runs`` (folders, or loaded runs)."""
    return summarise_methods(group(loaded(runs))[0], target_loss, target_accuracy)


def loaded(runs: Iterable[Run | str | Path]) -> list[Run]:
    """Runs as they are; folders (and folders of folders) read."""
    found: list[Run] = []
    for run in runs:
        found += [run] if isinstance(run, Run) else [load_run(path) for path in find_runs([run])]
    return found


def summarise_methods(
    methods: Sequence[Method], target_loss: float | None = None, target_accuracy: float | None = None
) -> list[Row]:
    """``summarise`` for runs that are grouped already."""
    StopWhen(target_loss=target_loss, target_accuracy=target_accuracy)  # refuses what no run could be told either
    equal = equal_cost(methods)
    return [_row(method, target_loss, target_accuracy, equal) for method in methods]


def stated_target(runs: Iterable[Run], name: str) -> float | None:
    """The "target_loss" or "target_accuracy" that the runs were told to stop at, if those that have one agree."""
    told = [(run.config.get("stop") or {}).get(name) for run in runs]
    stated = {float(value) for value in told if value is not None}
    return stated.pop() if len(stated) == 1 else None


def equal_cost(methods: Sequence[Method]) -> float | None:
    """The largest cost that every evaluated run has reached; None with one method, or where clocks differ."""
    ends = [run.evaluated_cost[-1] for method in methods for run in method.runs if len(run.evaluated) > 1]
    clocks = {str(method.runs[0].config.get("cost")) for method in methods}
    return float(min(ends)) if len(methods) > 1 and len(clocks) == 1 and ends else None


def cost_to_reach(given: Curve, target: float, *, falling: bool) -> float | None:
    """The cost at which a curve first reaches the target, on the line between two evaluations; None: it does not."""
    sign = 1.0 if falling else -1.0
    above = sign * (given.y - target)
    there = np.flatnonzero(above <= 0)
    if len(there) == 0:
        return None
    i = int(there[0])
    if i == 0:
        return float(given.x[0])
    part = above[i - 1] / (above[i - 1] - above[i])
    return float(given.x[i - 1] + part * (given.x[i] - given.x[i - 1]))


def least_used(run: Run) -> float | None:
    """The least contribution of a client, over the mean of all; None before anything was used."""
    mean = run.contribution.mean() if len(run.contribution) else 0.0
    return float(run.contribution.min() / mean) if mean > 0 else None


def _row(method: Method, target_loss: float | None, target_accuracy: float | None, equal: float | None) -> Row:
    runs = method.runs
    loss = {id(run): evaluations(run, "loss", "cost") for run in runs}
    accuracy = {id(run): evaluations(run, "accuracy", "cost") for run in runs}

    def over(value: Callable[[Run], float | None]) -> Spread:
        values = [value(run) for run in runs]
        return Spread(tuple(v for v in values if v is not None), len(runs))

    def last(run: Run, values: Floats) -> float | None:
        # The evaluation before round 1 is not the outcome of a run.
        outcome = values[(run.evaluated > 0) & np.isfinite(values)]
        return float(outcome[-1]) if len(outcome) else None

    def reach(curves: dict[int, Curve], target: float | None, *, falling: bool) -> Spread | None:
        if target is None:
            return None
        return over(lambda run: cost_to_reach(curves[id(run)], target, falling=falling))

    return Row(
        label=method.label,
        seeds=tuple(run.seed for run in runs),
        paths=tuple(run.path for run in runs),
        rounds=over(lambda run: run.rounds),
        cost=over(lambda run: float(run.cost[-1])),
        loss=over(lambda run: last(run, run.loss)),
        accuracy=over(lambda run: last(run, run.accuracy)),
        target_loss=target_loss,
        target_accuracy=target_accuracy,
        cost_to_loss=reach(loss, target_loss, falling=True),
        cost_to_accuracy=reach(accuracy, target_accuracy, falling=False),
        equal_cost=equal,
        loss_at_equal_cost=over(lambda run: None if equal is None else at(loss[id(run)], equal)),
        accuracy_at_equal_cost=over(lambda run: None if equal is None else at(accuracy[id(run)], equal)),
        up_bytes=over(lambda run: float(run.up[-1])),
        down_bytes=over(lambda run: float(run.down[-1])),
        least_used=over(least_used),
    )
