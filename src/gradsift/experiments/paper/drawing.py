"""Drawings of the paper's figures, from trajectories. This module needs matplotlib."""

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
    """Draw a figure from the runs so far; returns the files that it wrote in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with drawing():
        methods = families(store, experiments)
        if figure == "fig1":
            drawings = _aligned(experiments, store)
        elif figure in ("fig7", "fig8"):
            drawings = _sequences(methods)
        else:
            drawings = _compared(figure, methods)
        for drawn in filter(None, drawings):
            paths.append(folder / f"{figure}-{drawn.name}.svg")
            export.save(drawn.figure, paths[-1])
    return paths


def _compared(figure: str, families: Sequence[Family]) -> list[Drawn | None]:
    """Draw loss and accuracy against cost, and k or the contributions of the clients."""
    methods = as_methods(families)
    priced = as_methods(pricing.priced_by(families, pricing.OTHER[figure])) if figure in pricing.OTHER else methods
    drawings = [figures.course(priced, what, "cost", None) for what in ("loss", "accuracy")]
    if figure == "fig4":
        drawings += [figures.contributions(methods), _distribution(families)]
    else:
        drawings.append(figures.all_k(_first_seeds(methods)))
    if figure in ("fig5", "fig6"):
        drawings += [figures.search_interval(i, methods) for i, m in enumerate(methods) if m.label == "Algorithm 3"]
    return drawings


def _distribution(families: Sequence[Family]) -> Drawn | None:
    """Draw how many elements were used from each client, for the methods that do not use all clients equally."""
    plot = Plot.new("Elements used from a client, mean of its rounds", "Clients with at most so many (%)")
    for number, (label, runs) in enumerate(families):
        if all(len(t.contribution) and np.ptp(t.contribution) > 0 for t in runs):
            for t in runs:
                share = 100 * np.arange(1, len(t.contribution) + 1) / len(t.contribution)
                plot.axes.step(np.sort(t.contribution / t.rounds), share, where="post", **look(number).line)
            plot.entry(Line2D([], [], **look(number).line), label)
    if not plot.labels:
        return None
    plot.axes.set_xlim(left=0)
    plot.axes.set_ylim(0, 100)
    title = "Distribution of the elements used from each client"
    return Drawn("distribution", title, f"{title}, one line per seed.", f"Line chart: {title.lower()}.", plot.done())


def _sequences(families: Sequence[Family]) -> list[Drawn | None]:
    """Draw the sequences of k, and the loss and accuracy of each at each communication time."""
    drawings = [figures.all_k(_first_seeds(as_methods(families)))]
    for comm_time in COMM_TIMES:
        methods = as_methods(pricing.priced_by(families, NormalizedTime(comm_time)))
        for what in ("loss", "accuracy"):
            drawn = figures.course(methods, what, "cost", None)
            drawings.append(None if drawn is None else replace(drawn, name=f"{what}-comm{comm_time:g}"))
    return drawings


def _first_seeds(methods: Sequence[Method]) -> list[Method]:
    """Return one run of each method: a mean over seeds would hide how k moves."""
    return [replace(method, runs=method.runs[:1]) for method in methods]


def _aligned(experiments: Sequence[Experiment], store: Store) -> list[Drawn | None]:
    """Draw Figure 1: the loss against the rounds before and after psi, one drawing for each psi."""
    drawings: list[Drawn | None] = []
    for switch in dict.fromkeys(e.switch for e in experiments if e.switch is not None):
        psi, rounds = switch.loss, switch.rounds
        plot = Plot.new("Rounds since the loss was \N{GREEK SMALL LETTER PSI}", "Global loss")
        same = [e for e in experiments if e.switch == switch]
        seeds, lowest = 0, psi
        for number, label in enumerate(dict.fromkeys(e.label for e in same)):
            line = band([curve for e in same if e.label == label and (curve := aligned(e, store)) is not None])
            if line is not None:
                seeds, lowest = max(seeds, line.seeds), min(lowest, float(line.low.min()))
                plot.band(line, look(number), label, number)
        plot.level(psi, f"\N{GREEK SMALL LETTER PSI} = {psi:g}")
        plot.axes.set_xlim(-rounds, rounds)
        if lowest < psi:  # as far above psi as below it: with a large k, the losses before psi are far higher
            plot.axes.set_ylim(lowest - 0.1, 2 * psi - lowest + 0.1)
        if seeds > 1:
            plot.legend_title = BANDS
        title = f"Loss before and after psi = {psi:g}"
        drawings.append(Drawn(f"psi{psi:g}", title, title, title, plot.done()))
    return drawings


def aligned(experiment: Experiment, store: Store) -> Curve | None:
    """Return the loss against the rounds since k was switched, or None if it has not been."""
    t = store.get(experiment)
    if t is None or t.switched_after is None:
        return None
    return Curve((t.evaluated - t.switched_after).astype(float), t.loss)
