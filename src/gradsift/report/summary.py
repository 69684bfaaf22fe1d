"""What came of each method, in numbers: mean and spread over its seeds. No figures here, so no matplotlib."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from gradsift.report import text
from gradsift.report.curves import Curve, at, evaluations
from gradsift.report.methods import Method, group
from gradsift.report.runs import Run, find_runs, load_run


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
    equal = equal_cost(methods)
    return [_row(method, target_loss, target_accuracy, equal) for method in methods]


def stated_target(runs: Iterable[Run], name: str) -> float | None:
    """The "target_loss" or "target_accuracy" that the runs were told to stop at, if those that have one agree."""
    stated = {(run.config.get("stop") or {}).get(name) for run in runs} - {None}
    return float(stated.pop()) if len(stated) == 1 else None


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

    def last(run: Run, curve: Curve) -> float | None:
        # The evaluation before round 1 is not the outcome of a run.
        return float(curve.y[-1]) if len(curve.y) and run.evaluated[-1] > 0 else None

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
        loss=over(lambda run: last(run, loss[id(run)])),
        accuracy=over(lambda run: last(run, accuracy[id(run)])),
        cost_to_loss=reach(loss, target_loss, falling=True),
        cost_to_accuracy=reach(accuracy, target_accuracy, falling=False),
        equal_cost=equal,
        loss_at_equal_cost=over(lambda run: None if equal is None else at(loss[id(run)], equal)),
        accuracy_at_equal_cost=over(lambda run: None if equal is None else at(accuracy[id(run)], equal)),
        up_bytes=over(lambda run: float(run.up[-1])),
        down_bytes=over(lambda run: float(run.down[-1])),
        least_used=over(least_used),
    )


class Cell(NamedTuple):
    """A number of the table as text: its mean, its spread over seeds, and from how many of them if not from all."""

    mean: str
    spread: str = ""
    note: str = ""

    def __str__(self) -> str:
        """On one line."""
        return " ".join(filter(None, (self.mean, self.spread and f"({self.spread})", self.note)))


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[Cell]]]:
    """Column names, and a line of cells for each row, without columns that say nothing about any method."""
    columns = [("Method", [Cell(row.label) for row in rows]), ("Seeds", [Cell(str(len(row.seeds))) for row in rows])]

    def add(name: str, each: Callable[[Row], Spread | None], show: Formatter, empty: str, *, always: bool) -> None:
        spreads = [each(row) for row in rows]
        if any(s is not None and (s.values or always) for s in spreads):
            columns.append((name, [_cell(s, show, empty) for s in spreads]))

    equal = rows[0].equal_cost if rows else None
    add("Cost to reach the loss", lambda r: r.cost_to_loss, text.fixed, "not reached", always=True)
    add("Cost to reach the accuracy", lambda r: r.cost_to_accuracy, text.fixed, "not reached", always=True)
    if equal is not None and not _all_spent(equal, rows):
        at_cost = f"at cost {text.number(equal)}"
        add(f"Loss {at_cost}", lambda r: r.loss_at_equal_cost, text.fixed, "not evaluated", always=False)
        add(f"Accuracy {at_cost}", lambda r: r.accuracy_at_equal_cost, text.percent, "not evaluated", always=False)
    add("Final loss", lambda r: r.loss, text.fixed, "not evaluated", always=True)
    add("Final accuracy", lambda r: r.accuracy, text.percent, "not evaluated", always=False)
    add("Cost spent", lambda r: r.cost, text.fixed, "", always=True)
    add("Rounds", lambda r: r.rounds, text.fixed, "", always=True)
    add("Sent up", lambda r: r.up_bytes, text.in_bytes, "", always=True)
    add("Sent down", lambda r: r.down_bytes, text.in_bytes, "", always=True)
    add("Least-used client", lambda r: r.least_used, text.fixed, "nothing used", always=True)
    return [name for name, _ in columns], [list(line) for line in zip(*(cells for _, cells in columns), strict=True)]


Formatter = Callable[[list[float]], list[str]]


def _all_spent(equal: float, rows: Sequence[Row]) -> bool:
    """Whether every run ended near the same cost, so that its final numbers are already those at equal cost."""
    return all(value <= 1.05 * equal or math.isclose(value, equal) for row in rows for value in row.cost.values)


def _cell(spread: Spread | None, show: Formatter, empty: str) -> Cell:
    if spread is None:
        return Cell("")
    if not spread.values:
        return Cell(empty)
    mean, low, high = spread.mean, spread.low, spread.high
    assert mean is not None and low is not None and high is not None
    shown = show([mean, low, high])
    some = "" if len(spread.values) == spread.seeds else f"{len(spread.values)} of {spread.seeds} seeds"
    return Cell(shown[0], f"{shown[1]} to {shown[2]}" if len(spread.values) > 1 else "", some)
