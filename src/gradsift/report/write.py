"""Write a report on run folders: one HTML page, and the same figures as files."""

import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from gradsift.errors import GradsiftError, RunError, install
from gradsift.records import files
from gradsift.registry import nearest
from gradsift.report.hindsight import mark
from gradsift.report.methods import Method, group
from gradsift.report.runs import Run
from gradsift.report.summary import Row, load_runs, stated_target, summarise_methods

# The names of all figures; those that an earlier report left in the folder are removed.
FIGURES = re.compile(
    r"((loss|accuracy)-(cost|rounds)|k(-interval-\d+)?|traffic-(up|down)|contributions)\.(svg|png|pdf)"
)


class ReportFiles(NamedTuple):
    """The files of a report, its summary and its notes."""

    page: Path
    figures: tuple[Path, ...]
    rows: tuple[Row, ...]  # the numbers of the summary
    notes: tuple[str, ...]  # warnings to the reader: runs left out, not finished, not comparable


def write_report(
    runs: Iterable[Run | str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    formats: Sequence[str] = ("svg", "png"),
    target_loss: float | None = None,
    target_accuracy: float | None = None,
) -> ReportFiles:
    """Write ``out``/index.html, a page that needs no other file, and its figures for a paper in ``out``/figures.

    ``runs`` are run folders, or folders of them. Runs that differ only in their seed become one method. A target that
    is not given is taken from the stop rules of the runs. ``formats`` of the figure files are "svg", "png" and "pdf".
    """
    try:
        from gradsift.report import export, figures, page, plot
    except ImportError as problem:
        raise GradsiftError(f"a report needs matplotlib and Jinja2 ({problem}): {install('report')}") from problem
    for kind in formats:
        if kind not in export.FORMATS:
            raise GradsiftError(f"unknown format {kind!r}{nearest(kind, list(export.FORMATS))}")
    given = load_runs(runs)
    if not given:
        raise GradsiftError("no runs were given")
    methods, notes = group(given)
    kept = [run for method in methods for run in method.runs]
    target_loss = stated_target(kept, "target_loss") if target_loss is None else target_loss
    target_accuracy = stated_target(kept, "target_accuracy") if target_accuracy is None else target_accuracy
    methods, rows, chosen = mark(methods, summarise_methods(methods, target_loss, target_accuracy))
    notes += _notes(methods) + chosen
    title = title or f"gradsift: {(kept[0].config.get('data') or {}).get('name') or 'runs'}"
    index, folder = Path(out) / "index.html", Path(out) / "figures"
    written: list[Path] = []
    try:
        (folder if formats else index.parent).mkdir(parents=True, exist_ok=True)
        with plot.drawing():
            sections = figures.sections(methods, target_loss, target_accuracy)
            for drawn in (drawn for section in sections for drawn in section.figures):
                for kind in formats:
                    written.append(folder / f"{drawn.name}.{kind}")
                    export.save(drawn.figure, written[-1])
            files.write(index, page.render(title, methods, rows, sections, notes, formats).encode())
        for path in folder.glob("*"):
            if FIGURES.fullmatch(path.name) and path not in written:
                path.unlink()
    except OSError as problem:
        raise RunError(f"could not write the report in {out}: {problem}") from problem
    return ReportFiles(index, tuple(written), tuple(rows), tuple(notes))


def _notes(methods: list[Method]) -> list[str]:
    runs = [run for method in methods for run in method.runs]
    cut = [run for run in runs if not run.finished]
    notes = [f"{run.path} is under way or was interrupted: its first {run.rounds:,} rounds are shown." for run in cut]
    if len(cut) > 3:
        notes = [f"{len(cut)} of {len(runs)} runs (see Runs) are not finished: their rounds so far are shown."]
    for section in ("data", "model", "cost"):
        configs = [method.runs[0].config.get(section) or {"class": None} for method in methods]
        # Compare only the keys that both have: a deployment records less about its model and data.
        pairs = combinations(configs, 2)
        if any(one[name] != other[name] for one, other in pairs for name in (one.keys() & other.keys()) - {"checksum"}):
            notes.append(f"The methods were not run with the same {section}: compare them with care.")
    return notes
