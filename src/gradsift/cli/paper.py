"""``gradsift paper``: the figures of the paper, run, kept and drawn."""

import argparse
import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradsift.cli.options import Parser, UsageError, whole
from gradsift.errors import install

if TYPE_CHECKING:
    from gradsift.recipes.experiment import Experiment
    from gradsift.recipes.scale import Scale
    from gradsift.recipes.store import Store

FIGURES = ("fig1", "fig4", "fig5", "fig6", "fig7", "fig8", "sparsifiers", "energy", "money")
BY_LINE = ("fig1", "fig7", "fig8")  # tables with few columns and many lines
DRAWINGS = "figures"


def add_to(made: Parser) -> None:
    """The flags of the command."""
    made.add_argument(
        "figures", nargs="+", choices=(*FIGURES, "all"), metavar="FIGURE", help=f"{', '.join(FIGURES)}, all"
    )
    made.add_argument(
        "--scale",
        choices=("smoke", "paper"),
        default="smoke",
        help="smoke: the embedded digits, in minutes; paper: FEMNIST and CIFAR-10 from GRADSIFT_DATA, for a GPU"
        " (default: %(default)s)",
    )
    made.add_argument("--seeds", type=whole, default=1, metavar="N", help="seeds 0 to N-1 (default: %(default)s)")
    made.add_argument("--only", metavar="WORDS", help="comma-separated: only runs with one of these in their name")
    made.add_argument("--jobs", type=whole, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    made.add_argument("--minutes", type=float, metavar="T", help="stop after so long; the same command goes on")
    made.add_argument(
        "--cost-budget", type=float, metavar="C", help="what each method may spend: fig4, fig5, fig6, sparsifiers"
    )
    made.add_argument(
        "--rounds", type=whole, metavar="N", help="rounds of fig7, fig8, energy and money, and after psi in fig1"
    )
    made.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    made.add_argument("--out", type=Path, help="folder of the runs (default: runs/paper-SCALE)")
    made.add_argument("--results", type=Path, help="folder of the results and figures (default: results in --out)")
    made.add_argument(
        "--report", action="store_true", help="make no runs: results, figures and tables from what is there"
    )
    made.add_argument("--list", action="store_true", help="name the runs and how far they are")
    made.add_argument("--quiet", "-q", action="store_true", help="print results only")


def paper(given: argparse.Namespace) -> int:
    """Make the runs that are missing, then the files of results, the figures and the tables."""
    from gradsift.cli.running import INTERRUPTED
    from gradsift.recipes.store import Store

    check_positive(given, "seeds", "jobs", "minutes", "cost_budget", "rounds")
    figures = list(FIGURES) if "all" in given.figures else list(dict.fromkeys(given.figures))
    scale = _scale(given)
    planned = {name: _experiments(name, scale, given) for name in figures}
    _check_stops(given, figures, [e for name in figures for e in planned[name]])
    runs = given.out or Path("runs") / f"paper-{given.scale}"
    store = Store(runs, given.results or runs / "results", FIGURES)
    # One seed of everything before a second of anything.
    everything = [e for seed in range(given.seeds) for name in figures for e in planned[name] if e.seed == seed]
    chosen = [e for e in everything if given.only is None or any(word in e.name for word in given.only.split(","))]
    if not chosen:
        raise UsageError(f"--only {given.only}: no run has that in its name; --list names them all")
    if given.list:
        return _list(chosen, store)
    if given.report and all(store.get(e) is None for e in everything):
        raise UsageError(f"--report: none of these runs is in {runs} or {store.results}")
    outcome = "nothing was run" if given.report else _work(chosen, store, given)
    for name in figures:
        _report(name, planned[name], store, scale)
    finished = sum(store.finished(e) for e in chosen)
    print(f"{finished} of {len(chosen)} experiments are finished ({outcome}); results: {store.results}")
    return {"interrupted": INTERRUPTED, "failed": 1}.get(outcome, 0)


def check_positive(given: argparse.Namespace, *names: str) -> None:
    """Refuse numbers that are given and not above 0."""
    for name in names:
        value = getattr(given, name, None)
        if value is not None and not value > 0:  # nor NaN
            raise UsageError(f"--{name.replace('_', '-')} must be above 0, got {value}")


def _check_stops(given: argparse.Namespace, figures: "Sequence[str]", experiments: "Sequence[Experiment]") -> None:
    """Refuse a limit that none of the figures has."""
    budgets = [e.settings["cost_budget"] is not None for e in experiments]
    if given.cost_budget is not None and not any(budgets):
        raise UsageError(f"--cost-budget has no meaning for {', '.join(figures)}: rounds end these runs, --rounds")
    if given.rounds is not None and all(budgets):
        raise UsageError(f"--rounds has no meaning for {', '.join(figures)}: a budget ends these runs, --cost-budget")


def _scale(given: argparse.Namespace) -> "Scale":
    from gradsift.recipes.scale import scale_named

    scale = scale_named(given.scale)
    if given.cost_budget is not None:
        scale = replace(scale, cost_budget=given.cost_budget, far_budget=given.cost_budget)
    if given.rounds is not None:
        scale = replace(scale, rounds=given.rounds, after=given.rounds)
    return scale


def _experiments(figure: str, scale: "Scale", given: argparse.Namespace) -> "list[Experiment]":
    from gradsift.recipes.figures import figure_named

    made = [e for seed in range(given.seeds) for e in figure_named(figure)(scale, seed)]
    return [replace(e, settings={**e.settings, "device": given.device}) for e in made]


def _work(chosen: "Sequence[Experiment]", store: "Store", given: argparse.Namespace) -> str:
    from gradsift.recipes.work import as_jobs, work

    jobs = [job for job in as_jobs(chosen) if not all(store.finished(e) for e in job)]
    return work(jobs, store.runs, processes=given.jobs, minutes=given.minutes, quiet=given.quiet)


def _list(chosen: "Sequence[Experiment]", store: "Store") -> int:
    for experiment in chosen:
        there = store.get(experiment)
        state = "not begun" if there is None else f"{there.rounds} rounds, cost {there.round_cost.sum():.1f}"
        print(f"{experiment.name:<60} {state}{', finished' if store.finished(experiment) else ''}")
    return 0


def _report(figure: str, experiments: "Sequence[Experiment]", store: "Store", scale: "Scale") -> None:
    """The file of results, the table, and the drawings where matplotlib is."""
    from gradsift.cli.reporting import as_text
    from gradsift.recipes.tables import in_lines, markdown, table

    if all(store.get(e) is None for e in experiments):
        return
    file = store.write(figure, experiments)
    made = table(figure, experiments, store, scale.target_accuracy)
    file.with_suffix(".md").write_text(markdown(made), encoding="utf-8")
    print(f"{figure}: {file}\n\n{in_lines(made) if figure in BY_LINE else as_text(*made)}\n")
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no figures: {install('report')}")
        return
    from gradsift.recipes.drawing import draw

    for path in draw(figure, experiments, store, store.results / DRAWINGS):
        print(path)
