"""``gradsift report``, and the table and the page of a comparison."""

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from gradsift import check
from gradsift.errors import UsageError, install
from gradsift.report import summarise, table, text, write_report


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
        print(as_text(*table(summarise(runs, target_loss, target_accuracy))))
        print(f"\na page needs matplotlib: {install('report')}")
        return
    made = write_report(runs, out, title=title, target_loss=target_loss, target_accuracy=target_accuracy)
    print(as_text(*table(made.rows)))
    for note in made.notes:
        print(f"note: {note}")
    print(f"\nthe page: {made.page}")


def as_text(names: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """Format a table for the terminal with a column for each method, since there are fewer methods than numbers."""
    return text.aligned(list(zip(names, *lines, strict=True)))
