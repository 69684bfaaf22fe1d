"""The numbers of the figures, for the terminal and for docs/results: means over seeds with the lowest and highest."""

from collections.abc import Sequence

import numpy as np

from gradsift.experiments.experiment import Experiment
from gradsift.experiments.paper import pricing
from gradsift.experiments.paper.methods import as_methods, families, largest_lead, over_seeds, settled
from gradsift.experiments.store import Store
from gradsift.experiments.trajectory import Trajectory
from gradsift.report import table as report_table
from gradsift.report import text
from gradsift.report.summary import Spread, summarise_methods
from gradsift.report.text import Table


def table(figure: str, experiments: Sequence[Experiment], store: Store, target_accuracy: float) -> Table:
    """The table of a figure, from the runs that there are so far."""
    if figure == "fig1":
        return independence(experiments, store)
    found = families(store, experiments)
    unfinished = {e.label for e in experiments if store.get(e) is not None and not store.finished(e)}
    marked = [(f"{label} (not finished)" if label in unfinished else label, seeds) for label, seeds in found]
    if found and figure in ("fig7", "fig8"):
        return _in_words(*pricing.matrix(marked))
    if found and figure in pricing.OTHER:
        return _in_words(*pricing.savings(marked, figure))
    names, cells = report_table(summarise_methods(as_methods(marked), None, target_accuracy))
    lines = [[str(cell) for cell in line] for line in cells]
    if len(found) > 1:
        names = [*names, f"Largest lead of {found[0][0]} in accuracy"]
        for line, (_, seeds) in zip(lines, found, strict=True):
            line.append(largest_lead(found[0][1], seeds).words(3))
    if found and figure != "fig4":
        names = [*names, "Mean k, second half", "Unrest of k"]
        for line, (_, seeds) in zip(lines, found, strict=True):
            line.append(over_seeds(seeds, lambda t: settled(t)[0]).words())
            line.append(over_seeds(seeds, lambda t: settled(t)[1]).words(3))
    return names, lines


def _in_words(names: list[str], lines: list[list[object]]) -> Table:
    return names, [[_word(cell) for cell in line] for line in lines]


def _word(cell: object) -> str:
    if isinstance(cell, Spread):
        return cell.words()
    return text.number(cell) if isinstance(cell, float) else str(cell)


def independence(experiments: Sequence[Experiment], store: Store) -> Table:
    """Assumption 1 in numbers: the loss a number of rounds after psi, for each k before it."""
    lines = []
    for label, psi in dict.fromkeys((e.label, e.switch.loss) for e in experiments if e.switch is not None):
        same = [e for e in experiments if e.label == label and e.switch is not None and e.switch.loss == psi]
        there = [(e, t) for e in same if (t := store.get(e)) is not None and t.switched_after is not None]
        finished = [t for e, t in there if e.remaining(t) is None]
        columns = [
            [float(t.switched_after or 0) for _, t in there],
            [_at_switch(t) for _, t in there],
            [_mean_after(t) for t in finished],
            [float(t.loss[-1]) for t in finished],
        ]
        lines.append([f"{psi:g}", label, *(Spread(tuple(values), len(same)).words() for values in columns)])
    after = next((e.switch.rounds for e in experiments if e.switch is not None), 0)
    names = ["psi", "k before psi", "Rounds to psi", "Loss at psi"]
    return [*names, f"Mean loss of the next {after:,} rounds", f"Loss {after:,} rounds later"], lines


def _at_switch(t: Trajectory) -> float:
    return float(t.loss[np.flatnonzero(t.evaluated == t.switched_after)[0]])


def _mean_after(t: Trajectory) -> float:
    assert t.switched_after is not None
    return float(t.loss[t.evaluated > t.switched_after].mean())
