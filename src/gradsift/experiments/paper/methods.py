"""The runs of a figure grouped by method, as ``gradsift.report`` draws and summarises them."""

from collections.abc import Callable, Iterable
from statistics import fmean

import numpy as np

from gradsift.experiments.experiment import Experiment
from gradsift.experiments.store import Store
from gradsift.experiments.trajectory import Trajectory
from gradsift.report.curves import Curve, curve
from gradsift.report.methods import Method
from gradsift.report.summary import Spread

Family = tuple[str, list[Trajectory]]  # a label, and its seeds in their order


def families(store: Store, experiments: Iterable[Experiment]) -> list[Family]:
    """The runs that there are of each method, cut where its experiment ends; methods in the order of the figure."""
    found: dict[str, list[Trajectory]] = {}
    for experiment in experiments:
        there = store.get(experiment)
        if there is not None:
            found.setdefault(experiment.label, []).append(there.within(experiment.stop))
    return [(label, sorted(seeds, key=lambda t: t.seed)) for label, seeds in found.items()]


def as_methods(found: Iterable[Family]) -> list[Method]:
    """For ``gradsift.report``."""
    return [Method(label, tuple(t.as_run() for t in seeds), {}) for label, seeds in found]


def over_seeds(seeds: Iterable[Trajectory], value: Callable[[Trajectory], float]) -> Spread:
    """One number of each seed."""
    values = tuple(value(t) for t in seeds)
    return Spread(values, len(values))


def settled(t: Trajectory) -> tuple[float, float]:
    """The mean of k over the second half of the rounds, and its unrest: its standard deviation over that mean."""
    late = t.k[t.rounds // 2 :]
    mean = fmean(late)
    return mean, float(np.std(late)) / mean


def largest_lead(first: Iterable[Trajectory], other: Iterable[Trajectory]) -> Spread:
    """The largest lead of the first method in accuracy at equal cost, seed by seed, from where both have learned."""
    mine, theirs = ({t.seed: _accuracy(t) for t in seeds} for seeds in (first, other))
    leads = []
    for seed in sorted(mine.keys() & theirs.keys()):
        one, two = mine[seed], theirs[seed]
        if not len(one.x) or not len(two.x):
            continue
        grid = np.unique(np.concatenate([one.x, two.x]))
        grid = grid[(grid >= max(one.x[0], two.x[0])) & (grid <= min(one.x[-1], two.x[-1]))]
        leads.append(float((np.interp(grid, *one) - np.interp(grid, *two)).max(initial=0.0)))
    return Spread(tuple(leads), len(theirs))


def _accuracy(t: Trajectory) -> Curve:
    """The accuracy from where the weights first changed: FedAvg's do not before its first exchange."""
    learned = t.loss != t.loss[0]
    return curve(np.append(0.0, t.cost)[t.evaluated[learned]], t.accuracy[learned])
