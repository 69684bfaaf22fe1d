"""``gradsift report``, and the table and the page of a comparison."""

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from gradsift import check
from gradsift.errors import UsageError, install
from gradsift.report import Row, table, text, write_report
from gradsift.report.hindsight import mark
from gradsift.report.methods import group
from gradsift.report.summary import load_runs, summarise_methods

IN_SHORT = ("Method", "Cost to", "Loss at", "Accuracy at", "Final", "Rounds")  # columns of the table of many fixed k


def report(given: argparse.Namespace) -> int:
    """Write the page and the figures, and print the table."""
    out = given.out or given.runs[0] / "report"
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"a report needs matplotlib: {install('report')}")
    check.folder("--out", out)
    write(given.runs, out, given.target_loss, given.target_accuracy, given.title)
    return 0


def write(
    runs: Sequence[Path], out: Path, target_loss: float | None, target_accuracy: float | None, title: str | None
) -> None:
    """Print the table of the runs; if matplotlib is installed, also write the page and print its path."""
    if importlib.util.find_spec("matplotlib") is None:
        methods, notes = group(load_runs(runs))
        _, rows, chosen = mark(methods, summarise_methods(methods, target_loss, target_accuracy))
        _print(rows, [*notes, *chosen])
        print(f"\na page needs matplotlib: {install('report')}")
        return
    made = write_report(runs, out, title=title, target_loss=target_loss, target_accuracy=target_accuracy)
    _print(made.rows, made.notes)
    print(f"\nthe page: {made.page}")


def _print(rows: Sequence[Row], notes: Sequence[str]) -> None:
    """Print the table, a second one of many fixed k in fewer columns, and the notes."""
    print(as_text(*table([row for row in rows if not row.aside])))
    names, lines = table([row for row in rows if row.aside or row.best_of])
    if lines:
        shown = [i for i, name in enumerate(names) if name.startswith(IN_SHORT)]
        print(f"\n{text.aligned([[names[i] for i in shown], *([line[i] for i in shown] for line in lines)])}\n")
    for note in notes:
        print(f"note: {note}")


def as_text(names: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """Format a table for the terminal with a column for each method, since there are fewer methods than numbers."""
    return text.aligned(list(zip(names, *lines, strict=True)))
