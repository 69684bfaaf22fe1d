"""``write_report``: from run folders to a page and its figures."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gradsift.errors import GradsiftError, RunError, install
from gradsift.records import files
from gradsift.registry import nearest
from gradsift.report.methods import Method, group
from gradsift.report.runs import Run
from gradsift.report.summary import Row, loaded, stated_target, summarise_methods

if TYPE_CHECKING:
    from gradsift.report.figures import Drawn

FIGURES = "figures"
FIXED_NAMES = {f"{what}-{against}" for what in ("loss", "accuracy") for against in ("cost", "rounds")}
FIXED_NAMES |= {"k", "traffic-up", "traffic-down", "contributions"}


class ReportFiles(NamedTuple):
    """What was written."""

    page: Path
    figures: tuple[Path, ...]
    rows: tuple[Row, ...]  # the numbers of the summary
    notes: tuple[str, ...]  # what a reader should know: runs left out, not finished, not comparable


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

    ``runs`` are run folders, or folders of them. Runs that differ only in their seed become one method. The targets, if
    left out, are those that the runs were told to stop at. ``formats`` of the figures: "svg", "png", "pdf", or none.
    """
    try:
        from gradsift.report import export, plot
    except ImportError as problem:
        raise GradsiftError(f"a report needs matplotlib ({problem}): {install('report')}") from problem
    for kind in formats:
        if kind not in export.FORMATS:
            raise GradsiftError(f"unknown format {kind!r}{nearest(kind, list(export.FORMATS))}")
    read = loaded(runs)
    if not read:
        raise GradsiftError("no runs were given")
    methods, notes = group(read)
    kept = [run for method in methods for run in method.runs]
    target_loss = stated_target(kept, "target_loss") if target_loss is None else target_loss
    target_accuracy = stated_target(kept, "target_accuracy") if target_accuracy is None else target_accuracy
    rows = summarise_methods(methods, target_loss, target_accuracy)
    notes += _notes(methods)
    try:
        with plot.drawing():
            return _write(methods, rows, notes, Path(out), title, formats, target_loss, target_accuracy)
    except OSError as problem:
        raise RunError(f"could not write the report in {out}: {problem}") from problem


def _write(
    methods: list[Method],
    rows: list[Row],
    notes: list[str],
    out: Path,
    title: str | None,
    formats: Sequence[str],
    target_loss: float | None,
    target_accuracy: float | None,
) -> ReportFiles:
    from gradsift.report import export, page

    folder = out / FIGURES
    out.mkdir(parents=True, exist_ok=True)
    if formats:
        folder.mkdir(exist_ok=True)
    written: list[Path] = []

    def shown(drawn: "Drawn") -> page.Shown:
        paths = [folder / f"{drawn.name}.{kind}" for kind in formats]
        for path in paths:
            export.save(drawn.figure, path)
        written.extend(paths)
        svg = export.inline(drawn.figure, drawn.name, drawn.title, drawn.alt)
        return page.shown(drawn, svg, [f"{FIGURES}/{path.name}" for path in paths])

    sections = [
        page.Section(name, heading, said, tuple(shown(drawn) for drawn in figures if drawn is not None))
        for name, heading, said, figures in _sections(methods, target_loss, target_accuracy)
    ]
    name = str((methods[0].runs[0].config.get("data") or {}).get("name") or "runs")
    html = page.render(title or f"gradsift: {name}", methods, rows, sections, notes)
    index = out / "index.html"
    files.write(index, html.encode())
    _remove_old(folder, written)
    return ReportFiles(index, tuple(written), tuple(rows), tuple(notes))


def _sections(
    methods: list[Method], target_loss: float | None, target_accuracy: float | None
) -> list[tuple[str, str, tuple[str, ...], list["Drawn | None"]]]:
    """The sections of the page: id, heading, text above the figures, and the figures, None where there is no data."""
    from gradsift.report import figures

    courses = [
        figures.course(methods, what, against, target)
        for what, target in (("loss", target_loss), ("accuracy", target_accuracy))
        for against in ("cost", "rounds")
    ]
    missing: list[str] = []
    if courses[0] is None:
        missing.append("No run has been evaluated after its start, so there is no loss to show yet.")
    elif courses[2] is None:
        missing.append("The runs have no test accuracy: there are no test data, or no classes.")
    intervals = [figures.search_interval(i, methods) for i in range(len(methods))]
    every = figures.all_k(methods)
    sparse = [method for method in methods if not method.dense]
    if len(sparse) == 1 and any(intervals):
        every = None  # the figure of its interval shows the same line
    no_k = (
        ()
        if every is not None or any(intervals)
        else ("No method sends part of its vector, so there is no k to show.",)
    )
    return [
        ("course", "Loss and accuracy", tuple(missing), courses),
        ("k-over-rounds", "How many elements are sent", no_k, [every, *intervals]),
        ("traffic", "Traffic", (), [figures.traffic(methods, way) for way in ("up", "down")]),
        ("fairness", "Fairness", (), [figures.contributions(methods)]),
    ]


def _notes(methods: list[Method]) -> list[str]:
    runs = [run for method in methods for run in method.runs]
    cut = [run for run in runs if not run.finished]
    notes = [f"{run.path} is under way or was interrupted: its first {run.rounds:,} rounds are shown." for run in cut]
    if len(cut) > 3:
        notes = [
            f"{len(cut)} of {len(runs)} runs are under way or were interrupted (see Runs): what they have is shown."
        ]
    for section in ("data", "model", "cost"):
        configs = [m.runs[0].config.get(section) or {"class": None} for m in methods]
        pairs = itertools.combinations(configs, 2)
        # A deployment's configuration says less of its model and data than that of a simulated run.
        if any(one[key] != other[key] for one, other in pairs for key in one.keys() & other.keys() - {"checksum"}):
            notes.append(f"The methods were not run with the same {section}: compare them with care.")
    return notes


def _remove_old(folder: Path, written: list[Path]) -> None:
    """Remove figures that an earlier report left in the folder and that this one does not have."""
    from gradsift.report.export import FORMATS

    for path in folder.glob("*"):
        ours = path.stem in FIXED_NAMES or path.stem.startswith("k-interval-")
        if ours and path.suffix.removeprefix(".") in FORMATS and path not in written:
            path.unlink()
