"""The figures of the paper, drawn from trajectories. This module needs matplotlib."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.lines import Line2D

from gradsift.cost import NormalizedTime
from gradsift.experiments.experiment import Experiment
from gradsift.experiments.paper import pricing
from gradsift.experiments.paper.figures import COMM_TIMES
from gradsift.experiments.paper.methods import Family, as_methods, families
from gradsift.experiments.store import Store
from gradsift.report import export, figures
from gradsift.report.curves import Curve, band
from gradsift.report.figures import BANDS, Drawn
from gradsift.report.methods import Method
from gradsift.report.plot import Plot, drawing
from gradsift.report.style import look


def draw(figure: str, experiments: Sequence[Experiment], store: Store, folder: Path) -> list[Path]:
    """Draw a figure from the runs that there are so far; returns the files that were written in ``folder``."""
    with drawing():
        found = families(store, experiments)
        if figure == "fig1":
            drawn = _aligned(experiments, store)
        elif figure in ("fig7", "fig8"):
            drawn = _sequences(found)
        else:
            drawn = _compared(figure, found)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for one in drawn:
            if one is not None:
                path = folder / f"{figure}-{one.name}.svg"
                export.save(one.figure, path)
                paths.append(path)
    return paths


def _compared(figure: str, found: Sequence[Family]) -> list[Drawn | None]:
    """Loss and accuracy against cost (energy and money: as far as all runs go), and what else the figure shows."""
    methods = as_methods(found)
    priced = as_methods(pricing.under(found, pricing.OTHER[figure])) if figure in pricing.OTHER else methods
    drawn = [figures.course(priced, what, "cost", None) for what in ("loss", "accuracy")]
    if figure == "fig4":
        drawn += [figures.contributions(methods), _distribution(found)]
    else:
        drawn.append(figures.all_k(_first_seeds(methods)))
    if figure in ("fig5", "fig6"):
        drawn += [figures.search_interval(i, methods) for i, m in enumerate(methods) if m.label == "Algorithm 3"]
    return drawn


def _distribution(found: Sequence[Family]) -> Drawn | None:
    """The distribution over clients of the elements used from each; methods that use all clients alike are left out."""
    chosen = [
        (i, label, seeds)
        for i, (label, seeds) in enumerate(found)
        if all(len(t.contribution) and np.ptp(t.contribution) > 0 for t in seeds)
    ]
    if not chosen:
        return None
    plot = Plot.new("Elements used from a client, mean of its rounds", "Clients with at most so many (%)")
    for number, label, seeds in chosen:
        each = [np.sort(t.contribution / t.rounds) for t in seeds]
        share = 100 * np.arange(1, len(each[0]) + 1) / len(each[0])
        for used in each:
            plot.axes.step(used, share, where="post", **look(number).line)
        plot.entry(Line2D([], [], **look(number).line), label)
    plot.axes.set_xlim(left=0)
    plot.axes.set_ylim(0, 100)
    title = "Distribution of the elements used from each client"
    return Drawn("distribution", title, f"{title}, a line a seed.", f"Line chart: {title.lower()}.", plot.done())


def _sequences(found: Sequence[Family]) -> list[Drawn | None]:
    """The sequences of k, and the loss and accuracy that each gives under each communication time."""
    drawn = [figures.all_k(_first_seeds(as_methods(found)))]
    for comm_time in COMM_TIMES:
        methods = as_methods(pricing.under(found, NormalizedTime(comm_time)))
        for what in ("loss", "accuracy"):
            one = figures.course(methods, what, "cost", None)
            drawn.append(None if one is None else replace(one, name=f"{what}-comm{comm_time:g}"))
    return drawn


def _first_seeds(methods: Sequence[Method]) -> list[Method]:
    """One run of each: a mean over seeds would hide how k moves."""
    return [replace(method, runs=method.runs[:1]) for method in methods]


def _aligned(experiments: Sequence[Experiment], store: Store) -> list[Drawn | None]:
    """Figure 1: the loss against the rounds before and after psi, one drawing for each psi."""
    drawn: list[Drawn | None] = []
    for psi in dict.fromkeys(e.switch.loss for e in experiments if e.switch is not None):
        plot = Plot.new("Rounds since the loss was \N{GREEK SMALL LETTER PSI}", "Global loss")
        same = [e for e in experiments if e.switch is not None and e.switch.loss == psi]
        seeds, lowest = 0, psi
        for number, label in enumerate(dict.fromkeys(e.label for e in same)):
            made = band([curve for e in same if e.label == label and (curve := aligned(e, store)) is not None])
            if made is not None:
                seeds, lowest = max(seeds, made.seeds), min(lowest, float(made.low.min()))
                plot.band(made, look(number), label, number)
        plot.level(psi, f"\N{GREEK SMALL LETTER PSI} = {psi:g}")
        rounds = same[0].switch.rounds if same[0].switch is not None else 0
        plot.axes.set_xlim(-rounds, rounds)
        if lowest < psi:  # as far above psi as below it: what comes before is far higher for a large k
            plot.axes.set_ylim(lowest - 0.1, 2 * psi - lowest + 0.1)
        if seeds > 1:
            plot.legend_title = BANDS
        title = f"Loss before and after psi = {psi:g}"
        drawn.append(Drawn(f"psi{psi:g}", title, title, title, plot.done()))
    return drawn


def aligned(experiment: Experiment, store: Store) -> Curve | None:
    """The loss against the rounds since k was switched; None if it has not been yet."""
    t = store.get(experiment)
    if t is None or t.switched_after is None:
        return None
    return Curve((t.evaluated - t.switched_after).astype(float), t.loss)
