"""``gradsift paper``: run the experiments of the paper's figures, keep their results and draw them."""

import argparse
import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradsift.cli.reporting import as_text
from gradsift.cli.running import INTERRUPTED
from gradsift.errors import UsageError, install
from gradsift.experiments.experiment import Experiment
from gradsift.experiments.paper.figures import FIGURES
from gradsift.experiments.paper.scale import SCALES, Scale
from gradsift.experiments.paper.tables import table
from gradsift.experiments.store import Store
from gradsift.experiments.work import as_jobs, work
from gradsift.report import text

ROW_TABLES = ("fig1", "fig7", "fig8")  # figures whose tables have few columns and many rows


def paper(given: argparse.Namespace) -> int:
    """Run what is missing, then write the files of results, the figures and the tables."""
    check_positive(given, "seeds", "jobs", "minutes", "cost_budget", "rounds")
    figures = list(FIGURES) if "all" in given.figures else list(dict.fromkeys(given.figures))
    scale = _scale(given)
    planned = {name: _experiments(name, scale, given) for name in figures}
    # All experiments with one seed before the next seed.
    everything = [e for seed in range(given.seeds) for name in figures for e in planned[name] if e.seed == seed]
    _check_stops(given, figures, everything)
    runs = given.out or Path("runs") / f"paper-{given.scale}"
    store = Store(runs, given.results or runs / "results", FIGURES)
    chosen = [e for e in everything if given.only is None or any(word in e.name for word in given.only.split(","))]
    if not chosen:
        raise UsageError(f"--only {given.only}: no run has such a name; --list shows all names")
    if given.list:
        return _list(chosen, store)
    if given.report and all(store.get(e) is None for e in everything):
        raise UsageError(f"--report: none of these runs is in {runs} or {store.results}")
    outcome = run_unfinished(chosen, store, given)
    for name in figures:
        _report(name, planned[name], store, scale)
    return print_outcome(chosen, store, outcome, "experiments")


def check_positive(given: argparse.Namespace, *names: str) -> None:
    """Refuse flags whose number is not above 0; a flag that was not given is None."""
    for name in names:
        value = getattr(given, name, None)
        if value is not None and not value > 0:  # NaN is refused too
            raise UsageError(f"--{name.replace('_', '-')} must be above 0, got {value}")


def run_unfinished(experiments: Sequence[Experiment], store: Store, given: argparse.Namespace) -> str:
    """Run the experiments that are not finished, unless ``--report`` was given; returns the outcome in words."""
    if given.report:
        return "nothing was run"
    jobs = [job for job in as_jobs(experiments) if not all(store.finished(e) for e in job)]
    return work(jobs, store.runs, processes=given.jobs, minutes=given.minutes, quiet=given.quiet)


def print_outcome(experiments: Sequence[Experiment], store: Store, outcome: str, noun: str) -> int:
    """Print how many experiments are finished; returns the exit code."""
    finished = sum(store.finished(e) for e in experiments)
    print(f"{finished} of {len(experiments)} {noun} are finished ({outcome}); results: {store.results}")
    return {"interrupted": INTERRUPTED, "failed": 1}.get(outcome, 0)


def print_figures(module: str, *arguments: Any) -> None:
    """Call ``draw`` of a module in ``gradsift.experiments`` and print the files that it wrote."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"figures need matplotlib: {install('report')}")
        return
    for path in importlib.import_module(f"gradsift.experiments.{module}").draw(*arguments):
        print(path)


def _check_stops(given: argparse.Namespace, figures: Sequence[str], experiments: Sequence[Experiment]) -> None:
    """Refuse a limit that applies to none of the figures."""
    budgets = [e.settings["cost_budget"] is not None for e in experiments]
    if given.cost_budget is not None and not any(budgets):
        raise UsageError(f"--cost-budget has no meaning for {', '.join(figures)}: these runs end after --rounds")
    if given.rounds is not None and all(budgets):
        raise UsageError(f"--rounds has no meaning for {', '.join(figures)}: these runs end at --cost-budget")


def _scale(given: argparse.Namespace) -> Scale:
    scale = SCALES[given.scale]
    if given.cost_budget is not None:
        scale = replace(scale, cost_budget=given.cost_budget, far_budget=given.cost_budget)
    if given.rounds is not None:
        scale = replace(scale, rounds=given.rounds, after=given.rounds)
    return scale


def _experiments(figure: str, scale: Scale, given: argparse.Namespace) -> list[Experiment]:
    experiments = [e for seed in range(given.seeds) for e in FIGURES[figure](scale, seed)]
    return [replace(e, settings={**e.settings, "device": given.device}) for e in experiments]


def _list(experiments: Sequence[Experiment], store: Store) -> int:
    for experiment in experiments:
        run = store.get(experiment)
        state = "not started" if run is None else f"{run.rounds} rounds, cost {run.round_cost.sum():.1f}"
        print(f"{experiment.name:<60} {state}{', finished' if store.finished(experiment) else ''}")
    return 0


def _report(figure: str, experiments: Sequence[Experiment], store: Store, scale: Scale) -> None:
    """Write the file of results, the table and the drawings of a figure, if it has runs."""
    if all(store.get(e) is None for e in experiments):
        return
    file = store.write(figure, experiments)
    names, lines = table(figure, experiments, store, scale.target_accuracy)
    file.with_suffix(".md").write_text(text.markdown(names, lines), encoding="utf-8")
    shown = text.aligned([names, *lines]) if figure in ROW_TABLES else as_text(names, lines)
    print(f"{figure}: {file}\n\n{shown}\n")
    print_figures("paper.drawing", figure, experiments, store, store.results / "figures")
