"""Render index.html from the methods, their summary and their figures."""

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gradsift.report import export, style, text
from gradsift.report.figures import Section
from gradsift.report.methods import Flat, Method, common, cost_axis, differing, flatten, look_number
from gradsift.report.summary import Row
from gradsift.report.table import table
from gradsift.report.template import PAGE, STYLE
from gradsift.version import __version__

UNLISTED = ("run", "start", "command", "experiment")  # sections that the configuration tables leave out
VALUE_LENGTH = 400  # characters of a value in a table; the run folder has it in full
MARKS = {"o": "M11 6a5 5 0 1 0 10 0a5 5 0 1 0 -10 0", "s": "M11.5 1.5h9v9h-9z", "^": "M16 .5l5.5 10h-11z"}
MARKS |= {"v": "M16 11.5l5.5 -10h-11z", "<": "M10.5 6l10 -5.5v11z", ">": "M21.5 6l-10 -5.5v11z"}
MARKS |= {"D": "M16 0l6 6l-6 6l-6 -6z", "P": "M14 1h4v3h3v4h-3v3h-4v-3h-3v-4h3z"}
MARKS |= {"X": "M11 3l2 -2l3 3l3 -3l2 2l-3 3l3 3l-2 2l-3 -3l-3 3l-2 -2l3 -3z"}


def render(
    title: str,
    methods: Sequence[Method],
    rows: Sequence[Row],
    sections: Sequence[Section],
    notes: Sequence[str],
    formats: Sequence[str],
) -> str:
    """Return the page as HTML, with links to the files of each figure in these ``formats``."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_finalize, trim_blocks=True)
    colours = {
        mode: " ".join(f"{name}: {value};" for name, value in style.css_variables(dark=mode == "dark").items())
        for mode in ("light", "dark")
    }
    columns, lines = table(rows)
    return environment.from_string(PAGE).render(
        title=title,
        version=__version__,
        style=Markup(environment.from_string(STYLE).render(colours)),
        about=about(methods),
        notes=notes,
        caption=_caption(methods, rows),
        columns=columns,
        lines=lines,
        swatches=[_swatch(look_number(methods, i)) for i in range(len(methods))],
        sections=sections,
        svg=lambda drawn: Markup(export.inline(drawn.figure, drawn.name, drawn.title, drawn.alt)),
        formats=formats,
        apart=_apart(methods),
        shared=_shared(methods),
        runs=_runs(methods),
    )


def about(methods: Sequence[Method]) -> str:
    """Describe the runs in one line: how many, on which data, with which model."""
    runs = [run for method in methods for run in method.runs]
    seeds = sorted({len(method.runs) for method in methods})
    count = _count(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    each = " each" if len(methods) > 1 else ""
    parts = [_count(len(runs), "run"), f"{_count(len(methods), 'method')} with {count}{each}"]
    same = common([flatten(run.config) for run in runs])
    if "data.name" in same:
        clients = f", {text.number(same['data.clients'])} clients" if "data.clients" in same else ""
        parts.append(f"data: {text.shortened(same['data.name'], 80)}{clients}")
    if "model.dim" in same:
        kind = text.shortened(str(same.get("model.class", "")).rpartition(".")[2], 60)
        parts.append(f"model: {kind} with {same['model.dim']:,} weights")
    return " · ".join(parts)


def _caption(methods: Sequence[Method], rows: Sequence[Row]) -> str:
    """The caption of the summary."""
    many = any(len(row.seeds) > 1 for row in rows)
    axis = cost_axis(methods)
    sentences = ["Mean over seeds; below it the lowest and the highest seed." if many else "One seed each: no spread."]
    sentences.append(f"Cost: {axis[0].lower()}{axis[1:]}.")
    if any(row.target_loss is not None or row.target_accuracy is not None for row in rows):
        sentences.append("The cost to a target counts only the seeds that reached it.")
    sentences.append(
        "Traffic is that of all clients. Least-used client: its contribution over an equal share, 1 is fair."
    )
    return " ".join(sentences)


def _apart(methods: Sequence[Method]) -> list[tuple[str, list[tuple[str, str]]]]:
    """For each method, the settings that all its runs share but not all methods."""
    if len(methods) < 2:
        return []
    configs = [_listed(method.config) for method in methods]
    paths = differing(configs)
    return [
        (method.label, [(p, text.shortened(config[p], VALUE_LENGTH)) for p in paths if p in config])
        for method, config in zip(methods, configs, strict=True)
    ]


def _shared(methods: Sequence[Method]) -> list[tuple[str, str]]:
    """The settings that all runs share."""
    same = common([_listed(flatten(run.config)) for method in methods for run in method.runs])
    return [(path, _value(value)) for path, value in same.items()]


def _runs(methods: Sequence[Method]) -> list[tuple[Any, ...]]:
    """For each run, its folder, method, seed, rounds, and the settings that the method's other runs do not share."""
    lines = []
    for method in methods:
        for run in method.runs:
            limit = (run.config.get("stop") or {}).get("rounds")
            rounds = f"{run.rounds:,}" if run.finished else f"{run.rounds:,} of {text.plain(limit)}, not finished"
            own = {p: value for p, value in _listed(flatten(run.config)).items() if p not in method.config}
            settings = [(p, text.shortened(value, 80)) for p, value in own.items()]
            lines.append((str(run.path), method.label, run.seed, rounds, settings))
    return lines


def _listed(config: Flat) -> Flat:
    return {p: v for p, v in config.items() if p.partition(".")[0] not in UNLISTED and p != "settings.seed"}


def _value(value: Any) -> str:
    if isinstance(value, str) and "\n" in value:
        return value if len(value) <= 4000 else value[:4000] + "\n…"
    return text.shortened(value, VALUE_LENGTH)


def _swatch(number: int | None) -> Markup:
    """Draw the line of a method for the table; screen readers skip it, because they read the name beside it."""
    look = style.ASIDE if number is None else style.look(number)
    colour = "--axis" if number is None else f"--line{number % len(style.LIGHT_LINES)}"
    dashes = " ".join(f"{1.8 * part:g}" for part in look.dashes) or "none"
    return Markup(
        '<span class="swatch" aria-hidden="true"><svg viewBox="0 0 32 12">'
        '<path d="M0 6H32" style="stroke: var({0}); stroke-width: {3}; stroke-dasharray: {1}"/>'
        '<path d="{2}" style="fill: var({0}); stroke: var(--paper)"/></svg></span>'
    ).format(colour, dashes, MARKS.get(look.marker, ""), 1 if number is None else 2.4)


def _finalize(value: Any) -> Any:
    return text.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
