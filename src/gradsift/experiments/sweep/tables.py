"""The tables of ``gradsift regret``."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from gradsift.experiments.sweep.plan import Clock, Measured, curve_of, in_words
from gradsift.experiments.trajectory import Trajectory
from gradsift.regret.assumption2 import Shape, one_minimiser, shape
from gradsift.regret.best import Best
from gradsift.regret.interval import ratio
from gradsift.regret.reach import cost_to, least_unit_cost, regret, unit_cost
from gradsift.regret.spending import Spending, right_signs, spending
from gradsift.report import text
from gradsift.report.curves import Curve
from gradsift.report.summary import Spread
from gradsift.report.text import Table


def ratios(measured: Measured) -> Table:
    """For each cost model and target: the best fixed k, its cost, and the cost of each controller over it."""
    controllers = measured.plan.controllers
    names = ["Clock", "Target loss", "Best fixed k", "Its cost", *(in_words(name) for name in controllers)]
    lines = []
    for clock in measured.plan.clocks:
        for target in measured.targets:
            best = measured.bests.get((clock.label, target))
            if best is None:
                cells = ["not reached" if target < measured.start else "above the first loss", ""]
                cells += [""] * len(controllers)
            else:
                cells = [_best_k(best), Spread(best.costs, len(best.costs)).words()]
                cells += [_over_best(measured, name, clock.label, target, best) for name in controllers]
            lines.append([clock.label, text.number(target), *cells])
    return names, lines


def _best_k(best: Best) -> str:
    """The best fixed k, and why another one may be better."""
    edge = ", at the edge of the k that reached it" if best.at_edge else ""
    return f"{best.k:,}{edge}" + (f"; runs that ended above it at a lower cost: {_ks(best.open)}" if best.open else "")


def _over_best(measured: Measured, name: str, label: str, target: float, best: Best) -> str:
    """The cost of a controller over that of the best fixed k, paired by seed."""
    seeds = measured.plan.seeds
    ran = sum((name, label, seed) in measured.controlled for seed in range(seeds))
    costs = reached(measured, name, label, target)
    if not costs:
        return "not reached" if ran else "not run"
    some = "" if ran == seeds else f", {ran} of {seeds} seeds run"
    some += "" if len(costs) == ran else f", not reached in {ran - len(costs)}"
    paired = ratio(list(costs.values()), [best.costs[seed] for seed in costs])
    if paired.low is None or paired.high is None:
        return text.number(paired.mean, 3) + some
    return f"{text.number(paired.mean, 3)} ({text.number(paired.low, 3)} to {text.number(paired.high, 3)}{some})"


def reached(measured: Measured, name: str, label: str, target: float) -> dict[int, float]:
    """Return the cost of a controller to a target, by seed, for the seeds that reached it."""
    runs = [(seed, measured.controlled.get((name, label, seed))) for seed in range(measured.plan.seeds)]
    costs = {seed: float(cost_to(curve_of(t), target)[0]) for seed, t in runs if t is not None}
    return {seed: cost for seed, cost in costs.items() if np.isfinite(cost)}


def definition4(measured: Measured) -> Table:
    """R(M) and R(M)/M after a quarter, half and all of the rounds to the lowest target, against its best fixed k."""
    names = ["Clock", "Controller", "k*", "Rounds M", "R(M)/M at M/4", "R(M)/M at M/2", "R(M)/M at M", "R(M)"]
    lines = []
    for clock, name, best, target in _against_best(measured):
        runs = {s: t for s in range(measured.plan.seeds) if (t := measured.controlled.get((name, clock.label, s)))}
        curves = measured.curves[clock.label]
        regrets = [r for s, t in runs.items() if (r := _regret(_until(t, target), curves[best.k, s])) is not None]
        cells = ["not reached" if runs else "not run", *[""] * 5]
        if regrets:
            cells = [Spread(column, measured.plan.seeds).words() for column in zip(*regrets, strict=True)]
            if any(total <= 0 for *_, total, _ in regrets):
                cells[-1] = ""  # a share of a regret of 0 or less has no meaning
        lines.append([clock.label, in_words(name), f"{best.k:,}", *cells])
    return [*names, "Of it in the first tenth"], lines


def _regret(t: Trajectory, best: Curve) -> tuple[float, ...] | None:
    """(M, R/M after M/4, M/2 and M rounds, R(M), its share in the first M/10), each at the nearest evaluation.

    M ends where the run of k* does, if that ends at a higher loss.
    """
    values = regret(curve_of(t), best)
    known = np.flatnonzero(np.isfinite(values) & (t.evaluated > 0))
    if len(known) == 0:
        return None
    last = t.evaluated[known[-1]]
    tenth, *at = (known[np.abs(t.evaluated[known] - share * last).argmin()] for share in (0.1, 0.25, 0.5, 1.0))
    total = float(values[at[-1]])
    per_round = [float(values[i] / t.evaluated[i]) for i in at]
    return float(last), *per_round, total, float(values[tenth]) / total if total else 0.0


def _against_best(measured: Measured) -> Iterator[tuple[Clock, str, Best, float]]:
    """Yield every cost model with every controller, and the best fixed k for the lowest target, if there is one."""
    target = min(measured.targets, default=0.0)
    for clock in measured.plan.clocks:
        best = measured.bests.get((clock.label, target))
        if best is not None:
            for name in measured.plan.controllers:
                yield clock, name, best, target


def _until(t: Trajectory, target: float) -> Trajectory:
    """Return the rounds until a run's first evaluation at its target; all of them if it never reached it."""
    met = t.evaluated[(t.loss <= target) & (t.evaluated > 0)]
    return t.cut(int(met[0])) if len(met) else t


def cost_shares(measured: Measured) -> Table:
    """Shares of the cost to the lowest target: rounds with k far from the best, and with a missing or wrong sign."""
    names = ["Clock", "Controller", "Rounds", "Cost at k above 2 k*", "At k below k*/2"]
    names += ["Rounds without a sign", "Their cost", "Signs that can be judged", "Wrong, of these"]
    lines = []
    for clock, name, best, target in _against_best(measured):
        costs = measured.costs(clock.label, target).mean(axis=1)
        seeds = []
        for seed in range(measured.plan.seeds):
            run = measured.controlled.get((name, clock.label, seed))
            if run is not None:
                t = _until(run, target)
                right = right_signs(t.k, t.probe, measured.ks, costs)
                seeds.append(spending(t.k, t.round_cost, t.sign, right, best.k))
        cells = _spent(seeds, measured.plan.seeds) if seeds else ["not run", *[""] * 6]
        lines.append([clock.label, in_words(name), *cells])
    return names, lines


def _spent(seeds: list[Spending], planned: int) -> list[str]:
    shares = [
        [float(s.rounds) for s in seeds],
        [s.large_cost for s in seeds],
        [s.small_cost for s in seeds],
        [s.no_sign / s.rounds for s in seeds],
        [s.no_sign_cost for s in seeds],
        [s.judged / (s.rounds - s.no_sign) for s in seeds if s.rounds > s.no_sign],
        [s.wrong / s.judged for s in seeds if s.judged],
    ]
    none = {5: "no signs", 6: ""}  # texts of the columns that may have no value
    return [Spread(tuple(v), planned).words(3) if v else none[column] for column, v in enumerate(shares)]


def assumption2(measured: Measured) -> tuple[Table, list[str], dict[str, list[Shape]]]:
    """t(k, l) by cost model and interval of losses: a table, a sentence on the minimisers of each, and the shapes."""
    names = ["Clock", "Losses", "Minimiser of t(k, l)", "As good", "Not convex at", "Steepest slope"]
    seeds = range(measured.plan.seeds)
    lines, sentences = [], []
    shapes: dict[str, list[Shape]] = {}
    for label, curves in measured.curves.items():
        shapes[label] = []
        for high, low in intervals(measured):
            middle, half = (high + low) / 2, (high - low) / 2
            t, least_t = (
                np.array([[cost(curves[k, seed], [middle], half)[0] for seed in seeds] for k in measured.ks])
                for cost in (unit_cost, least_unit_cost)
            )
            shapes[label].append(shape(middle, measured.ks, t, least_t))
            lines.append([label, f"{text.number(high)} to {text.number(low)}", *_shape(shapes[label][-1])])
        sentences.append(f"{label}: {_minimisers(shapes[label], measured.plan.seeds)}")
    return (names, lines), sentences, shapes


def intervals(measured: Measured) -> list[tuple[float, float]]:
    """Return the losses that t(k, l) is averaged over: from the start to the first target, then to the next, and so on.

    They are wide enough for evaluations that are a few rounds apart.
    """
    lower = sorted((target for target in measured.targets if target < measured.start), reverse=True)
    return list(pairwise([measured.start, *lower]))


def _shape(shape: Shape) -> list[str]:
    """The cells about t(k, l) at one loss."""
    if shape.minimiser is None:
        return ["not reached", "", "", ""]
    bends = ", ".join(f"{k:,}{'*' if k in shape.sure else ''}" for k in shape.bends) or "nowhere"
    return [f"{shape.minimiser:,}", _ks(shape.as_good), bends, text.number(shape.steepest)]


def _minimisers(shapes: Sequence[Shape], seeds: int) -> str:
    """Whether one k can be the minimiser at every loss."""
    least = [shape.minimiser for shape in shapes if shape.minimiser is not None]
    if not least:
        return "no k reached these losses in every seed"
    if common := one_minimiser(shapes):
        return f"one k can be best at every loss: {_ks(sorted(common))}"
    if seeds == 1:
        return f"with one seed it cannot be told whether one k is best at every loss; the minimisers are {_ks(least)}"
    if maybe := one_minimiser(shapes, or_open=True):
        return f"it cannot be told whether the best k moves with the loss: {_ks(sorted(maybe))} ended before the lowest"
    return "the best k moves with the loss"


def _ks(ks: Sequence[int]) -> str:
    return ", ".join(f"{k:,}" for k in ks)
