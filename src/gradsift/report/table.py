"""The summary as a table of text, for the page and for the terminal."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from gradsift.report import text
from gradsift.report.summary import Row, Spread


class Cell(NamedTuple):
    """A number of the table as text: its mean, its spread over seeds, and from how many of them if not from all."""

    mean: str
    spread: str = ""
    note: str = ""

    def __str__(self) -> str:
        """On one line."""
        return " ".join(filter(None, (self.mean, self.spread and f"({self.spread})", self.note)))


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[Cell]]]:
    """Column names, and a line of cells for each row; there is no column of a number that no method has."""
    names, columns = ["Method", "Seeds"], [[Cell(row.label) for row in rows], [Cell(str(len(r.seeds))) for r in rows]]
    if not rows:
        return names, []

    def add(name: str, each: Callable[[Row], Spread | None], show: Formatter, empty: str = "none") -> None:
        spreads = [each(row) for row in rows]
        if any(spread is not None and spread.values for spread in spreads):
            names.append(name)
            columns.append([_cell(spread, show, empty) for spread in spreads])

    def reach(name: str, each: Callable[[Row], Spread | None], final: Callable[[Row], Spread]) -> None:
        # Shown even if no method reached it; a run without an evaluation is told from one that missed the target.
        names.append(name)
        columns.append([_cell(each(r), _numbers, "not reached" if final(r).values else "not evaluated") for r in rows])

    equal, loss, accuracy = rows[0].equal_cost, rows[0].target_loss, rows[0].target_accuracy
    if loss is not None:
        reach(f"Cost to loss {text.number(loss)}", lambda r: r.cost_to_loss, lambda r: r.loss)
    if accuracy is not None:
        reach(f"Cost to accuracy {text.percent(accuracy)}", lambda r: r.cost_to_accuracy, lambda r: r.accuracy)
    if equal is not None and not _all_spent(equal, rows):
        at_cost = f"at cost {text.number(equal)}"
        add(f"Loss {at_cost}", lambda r: r.loss_at_equal_cost, _numbers, "not evaluated")
        add(f"Accuracy {at_cost}", lambda r: r.accuracy_at_equal_cost, _percent, "not evaluated")
    add("Final loss", lambda r: r.loss, _numbers, "not evaluated")
    add("Final accuracy", lambda r: r.accuracy, _percent, "not evaluated")
    add("Cost spent", lambda r: r.cost, _numbers)
    add("Rounds", lambda r: r.rounds, _whole)
    add("Sent up", lambda r: r.up_bytes, text.in_bytes)
    add("Sent down", lambda r: r.down_bytes, text.in_bytes)
    add("Least-used client", lambda r: r.least_used, _three, "not known")
    return names, [list(line) for line in zip(*columns, strict=True)]


Formatter = Callable[[list[float]], tuple[list[str], str]]  # numbers side by side, and the unit of all


def _numbers(values: list[float]) -> tuple[list[str], str]:
    return text.fixed(values), ""


def _three(values: list[float]) -> tuple[list[str], str]:
    return text.fixed(values, 3), ""


def _whole(values: list[float]) -> tuple[list[str], str]:
    return [f"{value:,.0f}" for value in values], ""


def _percent(values: list[float]) -> tuple[list[str], str]:
    return [f"{100 * value:.1f}" for value in values], "%"


def _all_spent(equal: float, rows: Sequence[Row]) -> bool:
    """Whether every run ended near the same cost, so that its final numbers are already those at equal cost."""
    return all(value <= 1.05 * equal for row in rows for value in row.cost.values)


def _cell(spread: Spread | None, show: Formatter, empty: str) -> Cell:
    if spread is None:
        return Cell("")
    if not spread.values:
        return Cell(empty)
    low, high = min(spread.values), max(spread.values)
    shown, unit = show([fmean(spread.values), low, high])
    mean = f"{shown[0]}\N{NO-BREAK SPACE}{unit}" if unit else shown[0]
    some = "" if len(spread.values) == spread.seeds else f"{len(spread.values)} of {spread.seeds} seeds"
    if len(spread.values) == 1:
        return Cell(mean, "", some)
    return Cell(mean, "all equal" if low == high else f"{shown[1]} to {shown[2]}", some)
