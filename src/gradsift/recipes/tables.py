"""The numbers of the figures, for the terminal and for docs/results: means over seeds with the lowest and highest."""

from collections.abc import Sequence

import numpy as np

from gradsift.recipes import clocks
from gradsift.recipes.experiment import Experiment
from gradsift.recipes.methods import as_methods, families, largest_lead, over_seeds, settled
from gradsift.recipes.store import Store
from gradsift.recipes.trajectory import Trajectory
from gradsift.report import table as report_table
from gradsift.report import text
from gradsift.report.summary import Spread, summarise_methods

Table = tuple[list[str], list[list[str]]]  # the names of the columns, and the lines


def table(figure: str, experiments: Sequence[Experiment], store: Store, target_accuracy: float) -> Table:
    """The table of a figure, from whatever there is."""
    if figure == "fig1":
        return independence(experiments, store)
    found = families(store, experiments)
    unfinished = {e.label for e in experiments if store.get(e) is not None and not store.finished(e)}
    marked = [(f"{label} (not finished)" if label in unfinished else label, seeds) for label, seeds in found]
    if found and figure in ("fig7", "fig8"):
        return in_words(clocks.matrix(marked))
    if found and figure in clocks.OTHER:
        return in_words(clocks.savings(marked, figure))
    names, cells = report_table(summarise_methods(as_methods(marked), None, target_accuracy))
    lines = [[str(cell) for cell in line] for line in cells]
    if len(found) > 1:
        names = [*names, f"Largest lead of {found[0][0]} in accuracy"]
        for line, (_, seeds) in zip(lines, found, strict=True):
            line.append(spread(largest_lead(found[0][1], seeds), 3))
    if found and figure != "fig4":
        names = [*names, "Mean k, second half", "Unrest of k"]
        for line, (_, seeds) in zip(lines, found, strict=True):
            line += [spread(over_seeds(seeds, lambda t: settled(t)[0]))]
            line += [spread(over_seeds(seeds, lambda t: settled(t)[1]), 3)]
    return names, lines


def in_words(made: tuple[list[str], list[list[object]]]) -> Table:
    """Numbers and spreads as text."""
    return made[0], [[_word(cell) for cell in line] for line in made[1]]


def _word(cell: object) -> str:
    if isinstance(cell, Spread):
        return spread(cell)
    return text.number(cell) if isinstance(cell, float) else str(cell)


def independence(experiments: Sequence[Experiment], store: Store) -> Table:
    """Assumption 1 in numbers: the loss so many rounds after psi, for each k before it."""
    lines = []
    for label, psi in dict.fromkeys((e.label, e.switch.loss) for e in experiments if e.switch is not None):
        same = [e for e in experiments if e.label == label and e.switch is not None and e.switch.loss == psi]
        done = [(e, t) for e in same if (t := store.get(e)) is not None and t.switched_after is not None]
        rounds = [float(t.switched_after or 0) for _, t in done]
        ends = [float(t.loss[-1]) for e, t in done if e.remaining(t) is None]
        means = [_mean_after(t) for e, t in done if e.remaining(t) is None]
        lines.append(
            [
                f"{psi:g}",
                label,
                spread(Spread(tuple(rounds), len(same))),
                *(
                    spread(Spread(tuple(values), len(same)))
                    for values in ([_at_switch(t) for _, t in done], means, ends)
                ),
            ]
        )
    after = next((e.switch.rounds for e in experiments if e.switch is not None), 0)
    names = ["psi", "k before psi", "Rounds to psi", "Loss at psi"]
    return [*names, f"Mean loss of the next {after:,} rounds", f"Loss {after:,} rounds later"], lines


def _at_switch(t: Trajectory) -> float:
    return float(t.loss[np.flatnonzero(t.evaluated == t.switched_after)[0]])


def _mean_after(t: Trajectory) -> float:
    assert t.switched_after is not None
    return float(t.loss[t.evaluated > t.switched_after].mean())


def spread(values: Spread, digits: int = 4) -> str:
    """Mean (lowest to highest), and of how many seeds where some have none."""
    if values.mean is None or values.low is None or values.high is None:
        return "not reached"
    some = "" if len(values.values) == values.seeds else f", {len(values.values)} of {values.seeds} seeds"
    if len(values.values) == 1:
        return text.number(values.mean, digits) + some
    low, high = text.number(values.low, digits), text.number(values.high, digits)
    return f"{text.number(values.mean, digits)} ({low} to {high}{some})"


def in_lines(made: Table) -> str:
    """For the terminal, a line a row."""
    names, lines = made
    rows = [names, *lines]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([shown[0], "-" * max(map(len, shown)), *shown[1:]])


def markdown(made: Table) -> str:
    """For a page."""
    names, lines = made
    rows = [names, ["---"] * len(names), *lines]
    return "".join("| " + " | ".join(cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row) + " |\n" for row in rows)
