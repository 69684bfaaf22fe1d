"""Format the summary as a table of text, for the page and for the terminal."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from gradsift.report import text
from gradsift.report.summary import Row, Spread

PLAIN_BITS = (32.0, 64.0)  # of an element, without and with its index, where no encoded bytes are counted
Formatter = Callable[[list[float]], tuple[list[str], str]]  # from numbers to their texts and their common unit


class Cell(NamedTuple):
    """A number as text: the mean, the range over seeds, and the number of seeds if some have no value."""

    mean: str
    spread: str = ""
    note: str = ""

    def __str__(self) -> str:
        """All parts on one line."""
        return " ".join(filter(None, (self.mean, self.spread and f"({self.spread})", self.note)))


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[Cell]]]:
    """Return the column names, and a line of cells for each row; a number that no method has gets no column."""
    columns = {"Method": [Cell(row.label) for row in rows], "Seeds": [Cell(str(len(row.seeds))) for row in rows]}
    if not rows:
        return list(columns), []

    def add(name: str, spreads: list[Spread], show: Formatter, empty: str = "not evaluated") -> None:
        if any(spread.values for spread in spreads):
            columns[name] = [_cell(spread, show, empty) for spread in spreads]

    def add_cost_to(name: str, spreads: list[Spread | None], results: list[Spread]) -> None:
        # Shown even if no method reached the target; a run that was not evaluated did not miss it.
        columns[name] = [
            _cell(spread, _digits(4), "not reached" if result.values else "not evaluated")
            for spread, result in zip(spreads, results, strict=True)
        ]

    equal, loss, accuracy = rows[0].equal_cost, rows[0].target_loss, rows[0].target_accuracy
    if loss is not None:
        add_cost_to(f"Cost to loss {text.number(loss)}", [r.cost_to_loss for r in rows], [r.loss for r in rows])
    if accuracy is not None:
        name = f"Cost to accuracy {text.percent(accuracy)}"
        add_cost_to(name, [r.cost_to_accuracy for r in rows], [r.accuracy for r in rows])
    # If every run ended near the equal cost, the final numbers already are those at equal cost.
    if equal is not None and any(cost > 1.05 * equal for row in rows for cost in row.cost.values):
        add(f"Loss at cost {text.number(equal)}", [r.loss_at_equal_cost for r in rows], _digits(4))
        add(f"Accuracy at cost {text.number(equal)}", [r.accuracy_at_equal_cost for r in rows], _percent)
    add("Final loss", [r.loss for r in rows], _digits(4))
    add("Final accuracy", [r.accuracy for r in rows], _percent)
    add("Cost spent", [r.cost for r in rows], _digits(4))
    add("Rounds", [r.rounds for r in rows], _digits(1))
    if any(row.gradients.values and row.gradients != row.rounds for row in rows):
        add("Gradients", [r.gradients for r in rows], _digits(1))
    if any(row.exchanges.values and row.exchanges != row.rounds for row in rows):
        add("Exchanges", [r.exchanges for r in rows], _digits(1))
    add("Sent up", [r.up_bytes for r in rows], text.in_bytes)
    add("Sent down", [r.down_bytes for r in rows], text.in_bytes)
    if any(bits not in PLAIN_BITS for row in rows for bits in row.up_bits.values):
        add("Bits an element up", [r.up_bits for r in rows], _digits(2))
        add("Bits an element down", [r.down_bits for r in rows], _digits(2))
    add("Least-used client", [r.least_used for r in rows], _digits(3), "not known")
    return list(columns), [list(line) for line in zip(*columns.values(), strict=True)]


def _digits(digits: int) -> Formatter:
    return lambda values: (text.fixed(values, digits), "")


def _percent(values: list[float]) -> tuple[list[str], str]:
    return [f"{100 * value:.1f}" for value in values], "%"


def _cell(spread: Spread | None, show: Formatter, empty: str) -> Cell:
    if spread is None:
        return Cell("")
    if not spread.values:
        return Cell(empty)
    low, high = min(spread.values), max(spread.values)
    shown, unit = show([fmean(spread.values), low, high])
    mean = f"{shown[0]}\N{NO-BREAK SPACE}{unit}" if unit else shown[0]
    if len(spread.values) == 1:
        return Cell(mean, "", spread.missing)
    return Cell(mean, "all equal" if low == high else f"{shown[1]} to {shown[2]}", spread.missing)
