"""Summarise each method in numbers with their spread over seeds: loss, accuracy, cost, traffic. Needs no matplotlib."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from gradsift.records.stop import StopWhen
from gradsift.report import text
from gradsift.report.curves import Curve, evaluations, value_at
from gradsift.report.methods import Method, group
from gradsift.report.runs import Floats, Run, find_runs, load_run


class Spread(NamedTuple):
    """A number of a method, such as its final loss: the values of those of its ``seeds`` seeds that have one."""

    values: tuple[float, ...]
    seeds: int

    @property
    def mean(self) -> float | None:
        """The mean, or None without a value."""
        return fmean(self.values) if self.values else None

    @property
    def low(self) -> float | None:
        """The lowest value, or None without a value."""
        return min(self.values, default=None)

    @property
    def high(self) -> float | None:
        """The highest value, or None without a value."""
        return max(self.values, default=None)

    @property
    def missing(self) -> str:
        """How many seeds have a value ("2 of 3 seeds"); empty if all have one."""
        return "" if len(self.values) == self.seeds else f"{len(self.values)} of {self.seeds} seeds"

    def words(self, digits: int = 4) -> str:
        """Return "mean (lowest to highest)", with the number of seeds if some have no value."""
        if not self.values:
            return "not reached"
        mean, low, high = (text.number(v, digits) for v in (fmean(self.values), min(self.values), max(self.values)))
        missing = self.missing and f", {self.missing}"
        return mean + missing if len(self.values) == 1 else f"{mean} ({low} to {high}{missing})"


@dataclass(frozen=True)
class Row:
    """The numbers of one method; a Spread is empty if no seed was evaluated or reached the target."""

    label: str
    seeds: tuple[int, ...]
    paths: tuple[Path, ...]
    rounds: Spread
    cost: Spread  # spent at the end
    loss: Spread  # at the last evaluation
    accuracy: Spread
    target_loss: float | None
    target_accuracy: float | None
    cost_to_loss: Spread | None  # None if no target was given
    cost_to_accuracy: Spread | None
    equal_cost: float | None  # the highest cost that all runs reached; None with one method or different cost models
    loss_at_equal_cost: Spread
    accuracy_at_equal_cost: Spread
    gradients: Spread  # of a client in all rounds
    exchanges: Spread  # rounds in which something was sent
    up_bytes: Spread
    down_bytes: Spread
    up_bits: Spread  # the mean of an element
    down_bits: Spread
    least_used: Spread  # the least-used client's contribution over an equal share: 1 is fair, 0 is never used
    aside: bool = False  # one of many fixed k, but not the best of them in hindsight
    best_of: int = 0  # the number of fixed k of which this is the best in hindsight; 0 if that was not asked


def summarise(
    runs: Iterable[Run | str | Path], target_loss: float | None = None, target_accuracy: float | None = None
) -> list[Row]:
    """Return one row per method, in the order of their first runs; ``runs`` are folders or loaded runs."""
    return summarise_methods(group(load_runs(runs))[0], target_loss, target_accuracy)


def load_runs(runs: Iterable[Run | str | Path]) -> list[Run]:
    """Load the runs that are given as run folders or as folders of run folders."""
    return [r for run in runs for r in ([run] if isinstance(run, Run) else map(load_run, find_runs([run])))]


def summarise_methods(
    methods: Sequence[Method], target_loss: float | None = None, target_accuracy: float | None = None
) -> list[Row]:
    """Do what ``summarise`` does, for runs that are already grouped."""
    StopWhen(target_loss=target_loss, target_accuracy=target_accuracy)  # refuses impossible targets
    ends = [run.evaluated_cost[-1] for method in methods for run in method.runs if len(run.evaluated) > 1]
    cost_models = {str(method.runs[0].config.get("cost")) for method in methods}
    equal = float(min(ends)) if len(methods) > 1 and len(cost_models) == 1 and ends else None
    return [_row(method, target_loss, target_accuracy, equal) for method in methods]


def stated_target(runs: Iterable[Run], name: str) -> float | None:
    """Return "target_loss" or "target_accuracy" from the stop rules of the runs; None without one or if they differ."""
    targets = [(run.config.get("stop") or {}).get(name) for run in runs]
    stated = {float(target) for target in targets if target is not None}
    return stated.pop() if len(stated) == 1 else None


def cost_to_reach(curve: Curve, target: float, *, falling: bool) -> float | None:
    """Return the cost at which a curve first reaches the target, interpolated between evaluations, or None if never."""
    above = curve.y - target if falling else target - curve.y
    reached = np.flatnonzero(above <= 0)
    if len(reached) == 0:
        return None
    i = int(reached[0])
    if i == 0:
        return float(curve.x[0])
    part = above[i - 1] / (above[i - 1] - above[i])
    return float(curve.x[i - 1] + part * (curve.x[i] - curve.x[i - 1]))


def _row(method: Method, target_loss: float | None, target_accuracy: float | None, equal: float | None) -> Row:
    runs = method.runs

    def spread(value: Callable[[Run], float | None]) -> Spread:
        return Spread(tuple(v for v in map(value, runs) if v is not None), len(runs))

    def final(run: Run, values: Floats) -> float | None:
        # The evaluation before round 1 is not a result of the run.
        results = values[(run.evaluated > 0) & np.isfinite(values)]
        return float(results[-1]) if len(results) else None

    def cost_to(target: float | None, what: str) -> Spread | None:
        if target is None:
            return None
        return spread(lambda run: cost_to_reach(evaluations(run, what, "cost"), target, falling=what == "loss"))

    def at_equal(what: str) -> Spread:
        return spread(lambda run: None if equal is None else value_at(evaluations(run, what, "cost"), equal))

    def least_used(run: Run) -> float | None:
        return float(run.contribution.min() / run.contribution.mean()) if run.contribution.any() else None

    def exchanged(name: str) -> Spread:
        found = [math.nan if run.exchanges is None else float(getattr(run.exchanges, name)) for run in runs]
        return Spread(tuple(value for value in found if math.isfinite(value)), len(runs))

    return Row(
        label=method.label,
        seeds=tuple(run.seed for run in runs),
        paths=tuple(run.path for run in runs),
        rounds=spread(lambda run: run.rounds),
        cost=spread(lambda run: float(run.cost[-1])),
        loss=spread(lambda run: final(run, run.loss)),
        accuracy=spread(lambda run: final(run, run.accuracy)),
        target_loss=target_loss,
        target_accuracy=target_accuracy,
        cost_to_loss=cost_to(target_loss, "loss"),
        cost_to_accuracy=cost_to(target_accuracy, "accuracy"),
        equal_cost=equal,
        loss_at_equal_cost=at_equal("loss"),
        accuracy_at_equal_cost=at_equal("accuracy"),
        gradients=exchanged("gradients"),
        exchanges=exchanged("exchanges"),
        up_bytes=spread(lambda run: float(run.up[-1])),
        down_bytes=spread(lambda run: float(run.down[-1])),
        up_bits=exchanged("up_bits"),
        down_bits=exchanged("down_bits"),
        least_used=spread(least_used),
    )
