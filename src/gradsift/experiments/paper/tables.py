"""The tables of the figures, for the terminal and for docs/results: means over seeds with the lowest and highest."""

from collections.abc import Sequence

from gradsift.experiments.experiment import Experiment
from gradsift.experiments.paper import pricing
from gradsift.experiments.paper.methods import as_methods, families, largest_lead, late_k, over_seeds
from gradsift.experiments.store import Store
from gradsift.report import table as report_table
from gradsift.report import text
from gradsift.report.summary import Spread, summarise_methods
from gradsift.report.text import Table


def table(figure: str, experiments: Sequence[Experiment], store: Store, target_accuracy: float) -> Table:
    """Return the table of a figure, from the runs so far."""
    if figure == "fig1":
        return independence(experiments, store)
    methods = families(store, experiments)
    unfinished = {e.label for e in experiments if store.get(e) is not None and not store.finished(e)}
    marked = [(f"{label} (not finished)" if label in unfinished else label, runs) for label, runs in methods]
    if methods and figure in ("fig7", "fig8"):
        return _as_text(*pricing.matrix(marked))
    if methods and figure in pricing.OTHER:
        return _as_text(*pricing.savings(marked, figure))
    columns, cells = report_table(summarise_methods(as_methods(marked), None, target_accuracy))
    names, lines = list(columns), [[str(cell) for cell in line] for line in cells]
    if len(methods) > 1:
        names.append(f"Largest lead of {methods[0][0]} in accuracy")
    if methods and figure != "fig4":
        names += ["Mean k, second half", "Unrest of k"]
    for line, (_, runs) in zip(lines, methods, strict=True):
        if len(methods) > 1:
            line.append(largest_lead(methods[0][1], runs).words(3))
        if figure != "fig4":
            line.append(over_seeds(runs, lambda t: late_k(t)[0]).words())
            line.append(over_seeds(runs, lambda t: late_k(t)[1]).words(3))
    return names, lines


def _as_text(names: list[str], lines: list[list[object]]) -> Table:
    def cell(value: object) -> str:
        if isinstance(value, Spread):
            return value.words()
        return text.number(value) if isinstance(value, float) else str(value)

    return names, [[cell(value) for value in line] for line in lines]


def independence(experiments: Sequence[Experiment], store: Store) -> Table:
    """Return the table of Figure 1 on Assumption 1: the loss after psi, for each k before it."""
    lines = []
    for label, psi in dict.fromkeys((e.label, e.switch.loss) for e in experiments if e.switch is not None):
        same = [e for e in experiments if e.label == label and e.switch is not None and e.switch.loss == psi]
        switched = [(e, t) for e in same if (t := store.get(e)) is not None and t.switched_after is not None]
        finished = [t for e, t in switched if e.remaining(t) is None]
        columns = [
            [float(t.switched_after or 0) for _, t in switched],
            [float(t.loss[t.evaluated == t.switched_after][0]) for _, t in switched],
            [float(t.loss[t.evaluated > (t.switched_after or 0)].mean()) for t in finished],
            [float(t.loss[-1]) for t in finished],
        ]
        lines.append([f"{psi:g}", label, *(Spread(tuple(values), len(same)).words() for values in columns)])
    after = next((e.switch.rounds for e in experiments if e.switch is not None), 0)
    names = ["psi", "k before psi", "Rounds to psi", "Loss at psi"]
    return [*names, f"Mean loss of the next {after:,} rounds", f"Loss {after:,} rounds later"], lines
