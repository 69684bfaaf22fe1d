"""The tables of ``gradsift regret``."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from gradsift.experiments.experiment import CONTROLLERS
from gradsift.experiments.sweep.plan import Clock, Measured, curve_of
from gradsift.experiments.trajectory import Trajectory
from gradsift.regret.assumption2 import Shape, one_minimiser, shape
from gradsift.regret.best import Best
from gradsift.regret.interval import Interval, ratio
from gradsift.regret.reach import cost_to, least_unit_cost, regret, unit_cost
from gradsift.regret.spending import Spending, right_signs, spending
from gradsift.report import text
from gradsift.report.summary import Spread
from gradsift.report.text import Table


def ratios(measured: Measured) -> Table:
    """For each cost model and target: the best fixed k, its cost, and each controller's cost over it."""
    names = ["Clock", "Target loss", "Best fixed k", "Its cost"]
    names += [CONTROLLERS.get(name, name) for name in measured.plan.controllers]
    lines = []
    for clock in measured.plan.clocks:
        for target in measured.targets():
            line = [clock.label, text.number(target)]
            found = measured.bests.get((clock.label, target))
            if found is None:
                why = "not reached" if target < measured.start() else "above the first loss"
                lines.append([*line, why, "", *[""] * len(measured.plan.controllers)])
                continue
            line += [_named(found), Spread(found.costs, len(found.costs)).words()]
            line += [_controlled(measured, name, clock.label, target, found) for name in measured.plan.controllers]
            lines.append(line)
    return names, lines


def _named(found: Best) -> str:
    """The best fixed k, and the reasons why another may be better."""
    said = f"{found.k:,}"
    if found.at_edge:
        said += ", at the end of what got there"
    if found.open:
        said += f"; {_ks(found.open)} ended before, with less spent"
    return said


def definition4(measured: Measured) -> Table:
    """R(M) and R(M)/M after a quarter, half and all of the rounds to the lowest target, against its best fixed k."""
    names = ["Clock", "Controller", "k*", "Rounds M", "R(M)/M at M/4", "R(M)/M at M/2", "R(M)/M at M", "R(M)"]
    names += ["Of it in the first tenth"]
    lines = []
    target = _lowest(measured)
    for clock, name, found in _against_best(measured):
        seeds = [
            made
            for seed in range(measured.plan.seeds)
            if (made := _regret(measured, name, clock, seed, found, target)) is not None
        ]
        line = [clock.label, CONTROLLERS.get(name, name), f"{found.k:,}"]
        if seeds:
            columns = [Spread(column, measured.plan.seeds).words() for column in zip(*seeds, strict=True)]
            some_regret = all(one[-2] > 0 for one in seeds)  # else the first tenth has no share in it
            lines.append([*line, *columns[:-1], columns[-1] if some_regret else ""])
        else:
            ran = any((name, clock.label, seed) in measured.searches for seed in range(measured.plan.seeds))
            lines.append([*line, "not reached" if ran else "not run", *[""] * 5])
    return names, lines


def _lowest(measured: Measured) -> float:
    return min(measured.targets(), default=0.0)


def _against_best(measured: Measured) -> Iterator[tuple[Clock, str, Best]]:
    """Every cost model that has a best fixed k for the lowest target, with every controller and that k."""
    for clock in measured.plan.clocks:
        found = measured.bests.get((clock.label, _lowest(measured)))
        if found is not None:
            for name in measured.plan.controllers:
                yield clock, name, found


def assumption2(measured: Measured) -> tuple[Table, list[str], dict[str, list[Shape]]]:
    """t(k, l) under each cost model and interval of losses: where it is not convex, whether one k is best in all."""
    names = ["Clock", "Losses", "Minimiser of t(k, l)", "As good", "Not convex at", "Steepest slope"]
    lines, said, shapes = [], [], {}
    for clock in measured.plan.clocks:
        curves = measured.curves[clock.label]
        made = []
        for high, low in intervals(measured):
            middle, half = (high + low) / 2, (high - low) / 2
            seeds = range(measured.plan.seeds)
            t, least_t = (
                np.array([[cost(curves[k, seed], [middle], half)[0] for seed in seeds] for k in measured.ks])
                for cost in (unit_cost, least_unit_cost)
            )
            one = shape(middle, measured.ks, t, least_t)
            lines.append([clock.label, f"{text.number(high)} to {text.number(low)}", *_shape(one)])
            made.append(one)
        shapes[clock.label] = made
        said.append(f"{clock.label}: {_said(made, measured.plan.seeds)}")
    return (names, lines), said, shapes


def intervals(measured: Measured) -> list[tuple[float, float]]:
    """The losses that t(k, l) is averaged over: from the start to the first target, from there to the next, and so on.

    They are wide enough for evaluations that are a few rounds apart.
    """
    start = measured.start()
    return list(pairwise([start, *sorted((target for target in measured.targets() if target < start), reverse=True)]))


def _shape(one: Shape) -> list[str]:
    """The cells about t(k, l) at one loss."""
    if one.minimiser is None:
        return ["not reached", "", "", ""]
    bends = ", ".join(f"{k:,}{'*' if k in one.sure else ''}" for k in one.bends) or "nowhere"
    return [f"{one.minimiser:,}", _ks(one.as_good), bends, text.number(one.steepest)]


def _said(shapes: Sequence[Shape], seeds: int) -> str:
    """Whether one k can be the minimiser at every loss."""
    least = [shape.minimiser for shape in shapes if shape.minimiser is not None]
    if not least:
        return "no k got there in every seed"
    common = sorted(one_minimiser(shapes))
    if seeds == 1 and not common:
        return f"with one seed it cannot be told whether one k is best at every loss; the minimisers are {_ks(least)}"
    if common:
        return f"one k can be best at every loss: {_ks(common)}"
    maybe = sorted(one_minimiser(shapes, or_open=True))
    if maybe:
        return f"it cannot be told whether the best k moves with the loss: {_ks(maybe)} ended before the lowest"
    return "the best k moves with the loss"


def _ks(ks: Sequence[int]) -> str:
    return ", ".join(f"{k:,}" for k in ks)


def where_it_goes(measured: Measured) -> Table:
    """Shares of the cost to the lowest target: at k far from the best, and with estimated signs missing or wrong."""
    names = ["Clock", "Controller", "Rounds", "Cost at k above 2 k*", "At k below k*/2"]
    names += ["Rounds without a sign", "Their cost", "Signs that can be judged", "Wrong, of these"]
    lines = []
    target = _lowest(measured)
    for clock, name, found in _against_best(measured):
        costs = measured.costs(clock.label, target).mean(axis=1)
        seeds = []
        for seed in range(measured.plan.seeds):
            t = measured.searches.get((name, clock.label, seed))
            if t is not None:
                part = _until(t, target)
                right = right_signs(part.k, part.probe, measured.ks, costs)
                seeds.append(spending(part.k, part.round_cost, part.sign, right, found.k))
        lines.append([clock.label, CONTROLLERS.get(name, name), *_spent(seeds, measured.plan.seeds)])
    return names, lines


def _spent(seeds: list[Spending], planned: int) -> list[str]:
    if not seeds:
        return ["not run", *[""] * 6]

    def over(values: list[float]) -> str:
        return Spread(tuple(values), planned).words(3)

    signed = any(s.rounds > s.no_sign for s in seeds)

    return [
        over([float(s.rounds) for s in seeds]),
        over([s.large_cost for s in seeds]),
        over([s.small_cost for s in seeds]),
        over([s.no_sign / s.rounds for s in seeds]),
        over([s.no_sign_cost for s in seeds]),
        over([s.judged / (s.rounds - s.no_sign) for s in seeds if s.rounds > s.no_sign]) if signed else "no signs",
        over([s.wrong / s.judged for s in seeds if s.judged]) if any(s.judged for s in seeds) else "",
    ]


def reached(measured: Measured, name: str, label: str, target: float) -> dict[int, float]:
    """The cost of a controller to a target, by seed; seeds that did not reach it are left out."""
    own = {
        seed: float(cost_to(curve_of(t), target)[0])
        for (controller, ran, seed), t in measured.searches.items()
        if (controller, ran) == (name, label)
    }
    return {seed: own[seed] for seed in sorted(own) if np.isfinite(own[seed])}


def _controlled(measured: Measured, name: str, label: str, target: float, found: Best) -> str:
    """A controller's cost over that of the best fixed k, paired by seed, as text."""
    ran = [seed for seed in range(measured.plan.seeds) if (name, label, seed) in measured.searches]
    own = reached(measured, name, label, target)
    if not ran:
        return "not run"
    if not own:
        return "not reached"
    some = "" if len(ran) == measured.plan.seeds else f", {len(ran)} of {measured.plan.seeds} seeds run"
    some += "" if len(own) == len(ran) else f", not reached in {len(ran) - len(own)}"
    made: Interval = ratio(list(own.values()), [found.costs[seed] for seed in own])
    if made.low is None or made.high is None:
        return text.number(made.mean, 3) + some
    return f"{text.number(made.mean, 3)} ({text.number(made.low, 3)} to {text.number(made.high, 3)}{some})"


def _regret(
    measured: Measured, name: str, clock: Clock, seed: int, found: Best, target: float
) -> tuple[float, ...] | None:
    """(M, R/M after M/4, M/2 and M rounds, R(M), its share in the first M/10), each at the nearest evaluation.

    M ends where the run of k* does, if that ends at a higher loss.
    """
    t = measured.searches.get((name, clock.label, seed))
    if t is None:
        return None
    part = _until(t, target)
    values = regret(curve_of(part), measured.curves[clock.label][found.k, seed])
    known = np.flatnonzero(np.isfinite(values) & (part.evaluated > 0))
    if len(known) == 0:
        return None
    last = part.evaluated[known[-1]]
    at = [known[np.abs(part.evaluated[known] - share * last).argmin()] for share in (0.1, 0.25, 0.5, 1.0)]
    each = [float(values[i] / part.evaluated[i]) for i in at[1:]]
    first, end = float(values[at[0]]), float(values[at[-1]])
    return float(last), *each, end, first / end if end else 0.0


def _until(t: Trajectory, target: float) -> Trajectory:
    """The rounds until a run's first evaluation at its target; all of them if it never got there."""
    met = t.evaluated[(t.loss <= target) & (t.evaluated > 0)]
    return t.cut(int(met[0])) if len(met) else t
