"""The same runs priced by other cost models, without running them again: Figures 7 and 8, energy and money."""

from collections.abc import Sequence

import numpy as np

from gradsift.cost import CostModel, Energy, Money, NormalizedTime
from gradsift.experiments.paper.figures import COMM_TIMES, PRICES
from gradsift.experiments.paper.methods import Family, as_methods, over_seeds, settled
from gradsift.experiments.trajectory import Trajectory
from gradsift.report.curves import Curve
from gradsift.report.summary import Spread, cost_to_reach, summarise_methods

OTHER: dict[str, CostModel] = {"energy": Energy(**PRICES["energy"]), "money": Money(**PRICES["money"])}
TIME = NormalizedTime(10.0)


def under(found: Sequence[Family], cost: CostModel) -> list[Family]:
    """The same runs priced by another cost model, all cut at the cost that every one of them reaches."""
    priced = [(label, [t.repriced(cost) for t in seeds]) for label, seeds in found]
    common = min(float(t.cost[-1]) for _, seeds in priced for t in seeds)
    return [(label, [_cut(t, common) for t in seeds]) for label, seeds in priced]


def _cut(t: Trajectory, cost: float) -> Trajectory:
    """Up to the first evaluation at this cost or later, so that there is a value at it."""
    rounds = t.evaluated[t.evaluated > 0]
    enough = rounds[t.cost[rounds - 1] >= cost * (1 - 1e-12)]
    return t.cut(int(enough[0])) if len(enough) else t


def matrix(found: Sequence[Family]) -> tuple[list[str], list[list[object]]]:
    """Every sequence of k under every communication time, at the cost that all of them reach."""
    lines: list[list[object]] = []
    for comm_time in COMM_TIMES:
        priced = under(found, NormalizedTime(comm_time))
        rows = summarise_methods(as_methods(priced))
        losses = [row.loss_at_equal_cost for row in rows]
        for row, (label, seeds) in zip(rows, found, strict=True):
            lines.append(
                [
                    f"{comm_time:g}",
                    label,
                    row.equal_cost,
                    row.loss_at_equal_cost,
                    row.accuracy_at_equal_cost,
                    _wins(row.loss_at_equal_cost, losses),
                    over_seeds(seeds, lambda t: float(np.mean(t.k))),
                ]
            )
    names = ["comm_time", "Sequence", "At cost", "Loss", "Accuracy", "Seeds in which it is best", "Mean k"]
    return names, lines


def _wins(one: Spread, every: Sequence[Spread]) -> str:
    """In how many seeds no other sequence has a lower loss."""
    if any(len(spread.values) != spread.seeds or spread.seeds != one.seeds for spread in every):
        return "seeds are missing"
    best = [min(values) for values in zip(*(spread.values for spread in every), strict=True)]
    return f"{sum(mine <= low for mine, low in zip(one.values, best, strict=True))} of {one.seeds}"


def savings(found: Sequence[Family], what: str) -> tuple[list[str], list[list[object]]]:
    """Energy or money, and time, until the lowest loss that every run reaches; and the k that was found."""
    target = max(float(t.loss.min()) for _, seeds in found for t in seeds)
    lines: list[list[object]] = []
    spent = [{t.seed: _until(t.repriced(OTHER[what]), target) for t in seeds} for _, seeds in found]
    for (label, seeds), mine in zip(found, spent, strict=True):
        paired = [mine[seed] / other for seed, other in spent[-1].items() if seed in mine]  # the last minimises time
        lines.append(
            [
                label,
                Spread(tuple(mine.values()), len(seeds)),
                Spread(tuple(paired), len(seeds)),
                over_seeds(seeds, lambda t: _until(t.repriced(TIME), target)),
                over_seeds(seeds, lambda t: settled(t)[0]),
            ]
        )
    names = ["Method", f"{what.capitalize()} to loss {target:.4g}", "Over that of saving time", "Time to it"]
    return [*names, "Mean k, second half"], lines


def _until(t: Trajectory, target: float) -> float:
    spent = np.append(0.0, t.cost)[t.evaluated]
    reached = cost_to_reach(Curve(spent, t.loss), target, falling=True)
    assert reached is not None  # the target is a loss that every run reaches
    return reached
