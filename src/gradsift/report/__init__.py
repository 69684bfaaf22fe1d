"""Compare runs: a table of numbers (``summarise``), and a page with figures (``write_report``, needs ``.[report]``)."""

from gradsift.report.runs import Run, find_runs, load_run
from gradsift.report.summary import Row, Spread, stated_target, summarise
from gradsift.report.table import Cell, table
from gradsift.report.write import ReportFiles, write_report

__all__ = [
    "Cell",
    "ReportFiles",
    "Row",
    "Run",
    "Spread",
    "find_runs",
    "load_run",
    "stated_target",
    "summarise",
    "table",
    "write_report",
]
