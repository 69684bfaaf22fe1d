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

Family = tuple[str, list[Trajectory]]  # the label of a method, and its runs in the order of their seeds


def families(store: Store, experiments: Iterable[Experiment]) -> list[Family]:
    """Return the runs of each method so far, cut where its experiment ends; methods in the order of the figure."""
    by_label: dict[str, list[Trajectory]] = {}
    for experiment in experiments:
        run = store.get(experiment)
        if run is not None:
            by_label.setdefault(experiment.label, []).append(run.within(experiment.stop))
    return [(label, sorted(runs, key=lambda t: t.seed)) for label, runs in by_label.items()]


def as_methods(methods: Iterable[Family]) -> list[Method]:
    """Return the methods as ``gradsift.report`` takes them."""
    return [Method(label, tuple(t.as_run() for t in runs), {}) for label, runs in methods]


def over_seeds(seeds: Iterable[Trajectory], value: Callable[[Trajectory], float]) -> Spread:
    """Return one number per seed."""
    values = tuple(value(t) for t in seeds)
    return Spread(values, len(values))


def late_k(t: Trajectory) -> tuple[float, float]:
    """Return the mean of k over the second half of the rounds, and its standard deviation over this mean."""
    late = t.k[t.rounds // 2 :]
    mean = fmean(late)
    return mean, float(np.std(late)) / mean


def largest_lead(first: Iterable[Trajectory], other: Iterable[Trajectory]) -> Spread:
    """Return, for each seed, by how much at most the first method is more accurate at equal cost."""
    ours, theirs = ({t.seed: _accuracy(t) for t in seeds} for seeds in (first, other))
    leads = []
    for seed in sorted(ours.keys() & theirs.keys()):
        our, their = ours[seed], theirs[seed]
        if len(our.x) and len(their.x):
            grid = np.unique(np.concatenate([our.x, their.x]))
            grid = grid[(grid >= max(our.x[0], their.x[0])) & (grid <= min(our.x[-1], their.x[-1]))]
            leads.append(float((np.interp(grid, *our) - np.interp(grid, *their)).max(initial=0.0)))
    return Spread(tuple(leads), len(theirs))


def _accuracy(t: Trajectory) -> Curve:
    """Return accuracy against cost from where the weights first changed: for FedAvg, from its first exchange."""
    learned = t.loss != t.loss[0]
    return curve(np.append(0.0, t.cost)[t.evaluated[learned]], t.accuracy[learned])
