"""``gradsift compare``: several methods and seeds on one set-up at equal cost, with a table and a page.

``gradsift resume`` is here too, since it continues comparisons as well as single runs.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradsift
from gradsift import check
from gradsift.cli import reporting, running
from gradsift.cli.paper import check_positive
from gradsift.describe import differences
from gradsift.errors import GradsiftError, RunError, UsageError
from gradsift.experiments import build
from gradsift.experiments.comparison import expand, fixed_ks, folder_name, resolve, split
from gradsift.experiments.experiment import Experiment
from gradsift.experiments.settings import BY_NAME, DEFAULTS, explicit, gather
from gradsift.experiments.trajectory import from_folder
from gradsift.experiments.work import work
from gradsift.records import files
from gradsift.records.stop import STOPS
from gradsift.report import find_runs

PLAN = "comparison.json"
COST_BUDGET = 300.0  # for each method, unless a budget or a number of rounds is given
TARGET_ACCURACY = {"digits": 0.8}  # by data set, unless a target is given: the table has the cost of reaching it
SMALL = 100_000  # weights of a model that one thread computes about as fast as several
MOST_JOBS = 8  # at a time, unless --jobs is given: each takes half a gigabyte


def compare(given: argparse.Namespace) -> int:
    """Plan a comparison, or read the plan of an existing one, and run what is not finished."""
    settings, chosen = gather(vars(given), given.set_, given.file), explicit(vars(given), given.file)
    for name, instead in (("seed", "--seeds N runs seeds 0 to N-1"), ("controller", "name it in --methods")):
        if name in chosen:
            raise UsageError(f"{BY_NAME[name].flag} has no meaning in a comparison: {instead}")
    if not chosen & {"cost_budget", "rounds"}:
        settings["cost_budget"] = COST_BUDGET
    if "rounds" not in chosen:
        settings["rounds"] = 1_000_000  # the budget ends the runs
    if not chosen & {"target_loss", "target_accuracy"}:
        settings["target_accuracy"] = TARGET_ACCURACY.get(settings["data"])
    if "eval_every" not in chosen:
        settings["eval_every"] = None  # it depends on the method
    words = split(given.methods)
    if len(words) == 0 or len(set(words)) < len(words):
        raise UsageError(f"--methods must name each method once, got {given.methods!r}")
    if given.seeds < 1:
        raise UsageError(f"--seeds must be at least 1, got {given.seeds}")
    check_positive(given, "jobs")
    for folder in given.beside:
        try:
            find_runs([folder])
        except GradsiftError as problem:
            raise UsageError(f"--beside {folder}: {problem}") from problem
    for word in words:
        resolve(word, settings)  # refuses unknown names before the data are loaded
    dim, clients = _dim_and_clients(settings)
    methods = expand(words, settings, fixed_ks(dim, build.make_cost(settings), clients))
    plan = {"settings": settings, "methods": methods, "seeds": given.seeds}
    out = given.out or running.free_folder(Path("runs"), f"comparison-{Path(settings['data']).stem}")
    _create(out, plan)
    return run_all(out, plan, given, dim)


def _create(out: Path, plan: dict[str, Any]) -> None:
    """Create the folder of a comparison; a folder with another plan, or with anything else, is refused."""
    if (out / PLAN).is_file():
        stored, wanted = json.loads((out / PLAN).read_text()), json.loads(json.dumps(plan))
        differing = differences(stored.pop("settings"), wanted.pop("settings")) + differences(stored, wanted)
        if differing:
            other = f"{out} holds a comparison with other settings: {'; '.join(differing)}"
            raise UsageError(f"{other}; choose another --out, or `gradsift resume {out}` continues it")
        return
    if os.path.lexists(out):
        raise UsageError(f"{out} exists already and is not a comparison: choose another folder")
    check.folder("--out", out)
    for method in plan["methods"]:  # refuse wrong settings before anything is written
        settings = resolve(method, plan["settings"])
        arguments = build.simulate_arguments(settings)
        parts = gradsift.Method.of(**{part: arguments[part] for part in (*build.SLOTS, "lr")})
        parts.controller.init(dim=build.trainable(arguments["model"]), seed=settings["seed"])
    out.mkdir(parents=True)
    files.write(out / PLAN, json.dumps(plan, indent=2).encode() + b"\n")


def resume(given: argparse.Namespace) -> int:
    """Continue a run, or every unfinished run of a comparison."""
    check_positive(given, "jobs")
    if not (given.folder / PLAN).is_file():
        if given.jobs is not None:
            raise UsageError(f"--jobs has no meaning for a single run such as {given.folder}")
        return running.resume(given)
    for name in STOPS:
        if getattr(given, name) is not None:
            raise UsageError(f"{BY_NAME[name].flag} cannot change in a comparison such as {given.folder}")
    plan = json.loads((given.folder / PLAN).read_text())
    settings = DEFAULTS | plan["settings"]
    return run_all(given.folder, {**plan, "settings": settings}, given, _dim_and_clients(settings)[0])


def run_all(out: Path, plan: dict[str, Any], given: argparse.Namespace, dim: int) -> int:
    """Run what is not finished, all methods with one seed before the next seed, then make the table and the page.

    ``dim`` is the number of the model's weights.
    """
    settings, methods = plan["settings"], plan["methods"]
    experiments = [
        Experiment(f"{folder_name(method)}-seed{seed}", method, {**resolve(method, settings), "seed": seed})
        for seed in range(plan["seeds"])
        for method in methods
    ]
    jobs = [[e] for e in experiments if e.remaining(from_folder(out / e.name)) is not None]
    if jobs:
        processes, threads = _side_by_side(settings, given.jobs, dim)
        how: dict[str, Any] = {"quiet": given.quiet, "tensorboard": given.tensorboard, "together": True}
        outcome = work(jobs, out, processes=processes, threads=threads, **how)
        if outcome == "interrupted":
            print(f"stopped; continue with: gradsift resume {out}")
            return running.INTERRUPTED
        if outcome == "failed":
            raise RunError(
                f"not every run of {out} succeeded, see above; `gradsift resume {out}` tries the others again,"
                f" `gradsift report {out}` shows those that did"
            )
    folders = [out / e.name for e in experiments] + getattr(given, "beside", [])
    reporting.write(folders, out / "report", settings["target_loss"], settings["target_accuracy"], None)
    _explain(methods, settings, dim)
    return 0


def _side_by_side(settings: dict[str, Any], jobs: int | None, dim: int) -> tuple[int, int | None]:
    """Return how many runs to make at a time, and the threads of each; None: all cores, or a worker's share of them.

    Small models on the CPU get one thread however many run at a time, since the last digits of a sum depend on it.
    """
    small = build.pick_device(settings["device"]).type == "cpu" and dim <= SMALL
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return jobs or (min(MOST_JOBS, cores) if small else 1), 1 if small else None


def _dim_and_clients(settings: dict[str, Any]) -> tuple[int, int]:
    data = build.load_data(settings)
    return build.trainable(build.load_model({**settings, "seed": 0}, data)), data.num_clients


def _explain(methods: Sequence[str], settings: dict[str, Any], dim: int) -> None:
    """Print what the fixed k are, and the period that FedAvg derives from its own."""
    many = [resolve(method, settings)["k"] for method in methods if method.startswith("fixed@")]
    if len(many) > 1:
        print(f"fixed: {len(many)} k from {min(many):,g} to {max(many):,g} of D = {dim:,}")
    for method in methods:
        chosen = resolve(method, settings)
        if chosen["controller"] != "fixed" or build.ignores_k(chosen) or (method.startswith("fixed@") and many[1:]):
            continue
        parts = build.method_parts(chosen, dim)
        period = parts["local"].period(dim, int(parts["controller"].k))
        exchanges = f"; it exchanges every {period} rounds, floor(D / 2k)" if period > 1 else ""
        print(f"{method}: k = {parts['controller'].k:,g} of D = {dim:,}{exchanges}")
