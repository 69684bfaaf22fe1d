"""Runs priced by other cost models, without running them again: Figures 7 and 8, energy and money."""

from collections.abc import Sequence

import numpy as np

from gradsift.cost import CostModel, Energy, Money, NormalizedTime
from gradsift.experiments.paper.figures import COMM_TIMES, PRICES
from gradsift.experiments.paper.methods import Family, as_methods, late_k, over_seeds
from gradsift.experiments.trajectory import Trajectory
from gradsift.report.curves import Curve
from gradsift.report.summary import Spread, cost_to_reach, summarise_methods

OTHER: dict[str, CostModel] = {"energy": Energy(**PRICES["energy"]), "money": Money(**PRICES["money"])}
TIME = NormalizedTime(10.0)
Cells = tuple[list[str], list[list[object]]]  # the names of the columns, and the lines


def priced_by(methods: Sequence[Family], cost: CostModel) -> list[Family]:
    """Price the runs by another cost model, and cut all of them at the cost that every one reaches."""
    priced = [(label, [t.repriced(cost) for t in runs]) for label, runs in methods]
    common = min(float(t.cost[-1]) for _, runs in priced for t in runs)
    return [(label, [_cut(t, common) for t in runs]) for label, runs in priced]


def _cut(t: Trajectory, cost: float) -> Trajectory:
    """Cut a run at its first evaluation at this cost or later, so that it has a value at the cost."""
    rounds = t.evaluated[t.evaluated > 0]
    enough = rounds[t.cost[rounds - 1] >= cost * (1 - 1e-12)]
    return t.cut(int(enough[0])) if len(enough) else t


def matrix(methods: Sequence[Family]) -> Cells:
    """Compare every sequence of k at every communication time, at the cost that all of them reach."""
    names = ["comm_time", "Sequence", "At cost", "Loss", "Accuracy", "Seeds in which it is best", "Mean k"]
    lines: list[list[object]] = []
    for comm_time in COMM_TIMES:
        rows = summarise_methods(as_methods(priced_by(methods, NormalizedTime(comm_time))))
        losses = [row.loss_at_equal_cost for row in rows]
        for row, loss, (label, runs) in zip(rows, losses, methods, strict=True):
            line = [f"{comm_time:g}", label, row.equal_cost, loss, row.accuracy_at_equal_cost]
            lines.append([*line, _wins(loss, losses), over_seeds(runs, lambda t: float(np.mean(t.k)))])
    return names, lines


def _wins(loss: Spread, losses: Sequence[Spread]) -> str:
    """Count the seeds in which no other sequence has a lower loss."""
    if any(len(spread.values) != spread.seeds or spread.seeds != loss.seeds for spread in losses):
        return "seeds are missing"
    lowest = [min(values) for values in zip(*(spread.values for spread in losses), strict=True)]
    return f"{sum(value <= low for value, low in zip(loss.values, lowest, strict=True))} of {loss.seeds}"


def savings(methods: Sequence[Family], what: str) -> Cells:
    """Compare energy or money, and time, until the lowest loss that every run reaches; the last method saves time."""
    target = max(float(t.loss.min()) for _, runs in methods for t in runs)
    names = ["Method", f"{what.capitalize()} to loss {target:.4g}", "Over that of saving time", "Time to it"]
    lines: list[list[object]] = []
    spent = [{t.seed: _until(t.repriced(OTHER[what]), target) for t in runs} for _, runs in methods]
    for (label, runs), by_seed in zip(methods, spent, strict=True):
        paired = tuple(by_seed[seed] / other for seed, other in spent[-1].items() if seed in by_seed)
        line = [label, Spread(tuple(by_seed.values()), len(runs)), Spread(paired, len(runs))]
        time = over_seeds(runs, lambda t: _until(t.repriced(TIME), target))
        lines.append([*line, time, over_seeds(runs, lambda t: late_k(t)[0])])
    return [*names, "Mean k, second half"], lines


def _until(t: Trajectory, target: float) -> float:
    """Return the cost of a run until it reaches a loss that every run reaches."""
    spent = np.append(0.0, t.cost)[t.evaluated]
    reached = cost_to_reach(Curve(spent, t.loss), target, falling=True)
    assert reached is not None
    return reached
