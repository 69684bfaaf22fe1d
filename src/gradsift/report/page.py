"""index.html: what goes into the template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gradsift.report import text
from gradsift.report.figures import Drawn
from gradsift.report.methods import Method, cost_axis, differing, flatten
from gradsift.report.style import css_variables, look
from gradsift.report.summary import Row
from gradsift.report.table import table
from gradsift.report.template import PAGE, STYLE
from gradsift.version import __version__

UNSAID = ("run", "start", "command")  # sections that the configuration tables leave out
VALUE_LENGTH = 400  # characters of a value in a table; the folder has it in full
MARKS = {"o": "M11 6a5 5 0 1 0 10 0a5 5 0 1 0 -10 0", "s": "M11.5 1.5h9v9h-9z", "^": "M16 .5l5.5 10h-11z"}
MARKS |= {"v": "M16 11.5l5.5 -10h-11z", "<": "M10.5 6l10 -5.5v11z", ">": "M21.5 6l-10 -5.5v11z"}
MARKS |= {"D": "M16 0l6 6l-6 6l-6 -6z", "P": "M14 1h4v3h3v4h-3v3h-4v-3h-3v-4h3z"}
MARKS |= {"X": "M11 3l2 -2l3 3l3 -3l2 2l-3 3l3 3l-2 2l-3 -3l-3 3l-2 -2l3 -3z"}


@dataclass(frozen=True)
class Shown:
    """A figure as the template wants it."""

    name: str
    title: str
    caption: str
    svg: Markup
    files: tuple[str, ...]  # relative to the page


@dataclass(frozen=True)
class Section:
    """A heading with figures under it."""

    id: str
    title: str
    text: tuple[str, ...]
    figures: tuple[Shown, ...]


def shown(drawn: Drawn, svg: str, files: Sequence[str]) -> Shown:
    """A drawn figure and its element for the page, in which every text is escaped already."""
    return Shown(drawn.name, drawn.title, drawn.caption, Markup(svg), tuple(files))


def render(
    title: str, methods: Sequence[Method], rows: Sequence[Row], sections: Sequence[Section], notes: Sequence[str]
) -> str:
    """The page as text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_finalize, trim_blocks=True)
    colours = {"light": _declarations(css_variables(dark=False)), "dark": _declarations(css_variables(dark=True))}
    columns, lines = table(rows)
    return environment.from_string(PAGE).render(
        title=title,
        version=__version__,
        style=Markup(environment.from_string(STYLE).render(colours)),
        about=about(methods),
        notes=notes,
        summary={"caption": _summary_caption(methods, rows), "columns": columns, "lines": lines},
        swatches=[_swatch(i) for i in range(len(methods))],
        sections=[section for section in sections if section.figures or section.text],
        apart=_apart(methods),
        shared=_shared(methods),
        runs=_runs(methods),
    )


def about(methods: Sequence[Method]) -> str:
    """What was run, in a line."""
    runs = [run for method in methods for run in method.runs]
    seeds = sorted({len(method.runs) for method in methods})
    count = _count(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    each = " each" if len(methods) > 1 else ""
    parts = [_count(len(runs), "run"), f"{_count(len(methods), 'method')} with {count}{each}"]
    configs = [flatten(run.config) for run in runs]
    different = set(differing(configs))
    same = {path: value for path, value in configs[0].items() if path not in different}
    if "data.name" in same:
        clients = f", {text.number(same['data.clients'])} clients" if "data.clients" in same else ""
        parts.append(f"data: {text.shortened(same['data.name'], 80)}{clients}")
    if "model.dim" in same:
        kind = text.shortened(str(same.get("model.class", "")).rpartition(".")[2], 60)
        parts.append(f"model: {kind} with {same['model.dim']:,} weights")
    return " · ".join(parts)


def _summary_caption(methods: Sequence[Method], rows: Sequence[Row]) -> str:
    many = any(len(row.seeds) > 1 for row in rows)
    said = ["Mean over seeds; below it the lowest and the highest seed." if many else "One seed each: no spread."]
    said.append(f"Cost: {_lower_first(cost_axis(methods))}.")
    if any(target is not None for row in rows for target in (row.target_loss, row.target_accuracy)):
        said.append("A cost to a target counts only the seeds that reached it.")
    said.append("Traffic is that of all clients. Least-used client: its contribution over an equal share, 1 is fair.")
    return " ".join(said)


def _apart(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Of each method, what its runs have in common and not all other methods have."""
    if len(methods) < 2:
        return []
    configs = [_said(method.config) for method in methods]
    paths = differing(configs)
    return [
        {"label": m.label, "settings": [(p, text.shortened(c[p], VALUE_LENGTH)) for p in paths if p in c]}
        for m, c in zip(methods, configs, strict=True)
    ]


def _shared(methods: Sequence[Method]) -> list[tuple[str, str]]:
    configs = [_said(flatten(run.config)) for method in methods for run in method.runs]
    different = set(differing(configs))
    return [(path, _value(value)) for path, value in configs[0].items() if path not in different]


def _runs(methods: Sequence[Method]) -> list[dict[str, Any]]:
    lines = []
    for method in methods:
        for run in method.runs:
            config = _said(flatten(run.config))
            own = [p for p in config if p not in method.config]
            limit = (run.config.get("stop") or {}).get("rounds")
            state = f"{run.rounds:,}" if run.finished else f"{run.rounds:,} of {text.plain(limit)}, not finished"
            lines.append(
                {
                    "folder": str(run.path),
                    "method": method.label,
                    "seed": run.seed,
                    "rounds": state,
                    "own": [(p, text.shortened(config[p], 80)) for p in own],
                }
            )
    return lines


def _said(config: Mapping[str, Any]) -> dict[str, Any]:
    return {p: v for p, v in config.items() if p.partition(".")[0] not in UNSAID and p != "settings.seed"}


def _value(value: Any) -> str:
    if isinstance(value, str) and "\n" in value:
        return value if len(value) <= 4000 else value[:4000] + "\n…"
    return text.shortened(value, VALUE_LENGTH)


def _swatch(number: int) -> Markup:
    """The line of a method as it is in the figures, for the table; decoration, since its name stands beside it."""
    chosen = look(number)
    colour = next(name for name, value in css_variables(dark=False).items() if value == chosen.colour)
    dashes = " ".join(f"{1.8 * part:g}" for part in chosen.dashes) or "none"
    return Markup(
        '<span class="swatch" aria-hidden="true"><svg viewBox="0 0 32 12">'
        '<path d="M0 6H32" style="stroke: var({0}); stroke-width: 2.4; stroke-dasharray: {1}"/>'
        '<path d="{2}" style="fill: var({0}); stroke: var(--paper)"/></svg></span>'
    ).format(colour, dashes, MARKS[chosen.marker])


def _declarations(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}: {value};" for name, value in variables.items())


def _finalize(value: Any) -> Any:
    return text.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _lower_first(words: str) -> str:
    return words[:1].lower() + words[1:]
