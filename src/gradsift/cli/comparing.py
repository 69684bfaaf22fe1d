"""``gradsift compare``: several methods and seeds on one set-up at equal cost, with a table and a page.

``gradsift resume`` is here too, since it continues comparisons as well as single runs.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import gradsift
from gradsift import check
from gradsift.cli import reporting, running
from gradsift.describe import differences
from gradsift.errors import GradsiftError, UsageError
from gradsift.experiments import build
from gradsift.experiments.settings import BY_NAME, DEFAULTS, explicit, gather
from gradsift.records import files
from gradsift.records.folder import CONFIG, read_records
from gradsift.records.stop import STOPS, StopWhen
from gradsift.registry import nearest
from gradsift.report import find_runs

PLAN = "comparison.json"
COST_BUDGET = 400.0  # for each method, unless a budget or a number of rounds is given
TARGET_ACCURACY = {"digits": 0.8}  # by data set, unless a target is given: the table has the cost of reaching it


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
    methods = [method.strip() for method in given.methods.split(",") if method.strip()]
    if len(methods) == 0 or len(set(methods)) < len(methods):
        raise UsageError(f"--methods must name each method once, got {given.methods!r}")
    if given.seeds < 1:
        raise UsageError(f"--seeds must be at least 1, got {given.seeds}")
    for folder in given.beside:
        try:
            find_runs([folder])
        except GradsiftError as problem:
            raise UsageError(f"--beside {folder}: {problem}") from problem
    plan = {"settings": settings, "methods": methods, "seeds": given.seeds}
    out = given.out or running.free_folder(Path("runs"), f"comparison-{Path(settings['data']).stem}")
    _create(out, plan)
    return run_all(out, plan, given)


def _create(out: Path, plan: dict[str, Any]) -> None:
    """Create the folder of a comparison; a folder with another plan, or with anything else, is refused."""
    if (out / PLAN).is_file():
        stored, wanted = json.loads((out / PLAN).read_text()), json.loads(json.dumps(plan))
        differing = differences(stored.pop("settings"), wanted.pop("settings")) + differences(stored, wanted)
        if differing:
            other = f"{out} holds a comparison with other settings: {'; '.join(differing)}"
            raise UsageError(f"{other}; `gradsift resume {out}` continues it")
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
    if not (given.folder / PLAN).is_file():
        return running.resume(given)
    for name in STOPS:
        if getattr(given, name) is not None:
            raise UsageError(f"{BY_NAME[name].flag} cannot change in a comparison such as {given.folder}")
    plan = json.loads((given.folder / PLAN).read_text())
    return run_all(given.folder, {**plan, "settings": DEFAULTS | plan["settings"]}, given)


def resolve(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of one method: the common ones, with its sparsifier and controller."""
    sparsifier, controller = settings["sparsifier"], "fixed"
    if "+" in method:
        sparsifier, controller = method.split("+", 1)
    elif method == "adaptive":
        controller = "extended-sign"
    elif build.class_name(method) in gradsift.sparsifiers():
        sparsifier = method
    elif build.class_name(method) in gradsift.controllers():
        controller = method
    elif method != "fixed":
        valid = list(dict.fromkeys(["adaptive", "fixed", *gradsift.sparsifiers(), *gradsift.controllers()]))
        raise UsageError(f"unknown method {method!r}{nearest(method, valid)}")
    for slot, name in (("sparsifier", sparsifier), ("controller", controller)):
        if build.class_name(name) not in (valid := build.SLOTS[slot].names()):
            raise UsageError(f"unknown method {method!r}: {name!r}{nearest(name, valid)}")
    # Options given with --set are for a controller that learns k, and for the sparsifier of the settings.
    parts = dict(settings["set"])
    if controller == "fixed":
        parts.pop("controller", None)
    if sparsifier != settings["sparsifier"]:
        parts.pop("sparsifier", None)
    chosen = {**settings, "sparsifier": sparsifier, "controller": controller, "set": parts}
    if build.make_sparsifier(chosen).local != gradsift.OneGradient():  # FedAvg keeps its own, or it would be send-all
        chosen |= {"local": None, "set": {name: parts[name] for name in parts if name != "local"}}
    # Targets are for the table only: a run that stopped at one could not be compared at equal cost.
    chosen |= {"target_loss": None, "target_accuracy": None}
    chosen |= {"k_min": None, "k_max": None} if controller == "fixed" else {"k": None}
    if settings["eval_every"] is None:  # a method that sends whole vectors has few and costly rounds
        chosen["eval_every"] = 1 if build.ignores_k(chosen) else 5
    return chosen


def run_all(out: Path, plan: dict[str, Any], given: argparse.Namespace) -> int:
    """Run what is not finished, all methods with one seed before the next seed, then make the table and the page."""
    folders, settings = [], plan["settings"]
    for seed in range(plan["seeds"]):
        for method in plan["methods"]:
            folders.append(out / f"{method}-seed{seed}")
            if not _run(folders[-1], {**resolve(method, settings), "seed": seed}, given):
                print(f"stopped; continue with: gradsift resume {out}")
                return running.INTERRUPTED
    folders += getattr(given, "beside", [])
    reporting.write(folders, out / "report", settings["target_loss"], settings["target_accuracy"], None)
    for method in plan["methods"]:
        _explain(method, settings)
    return 0


def _explain(method: str, settings: dict[str, Any]) -> None:
    """Print where a fixed k comes from, and the period that FedAvg derives from it."""
    chosen = resolve(method, settings)
    if chosen["controller"] != "fixed" or build.ignores_k(chosen):
        return
    arguments = build.simulate_arguments({**chosen, "seed": 0})
    k, dim = arguments["controller"].k, build.trainable(arguments["model"])
    rule = "as given" if settings["k"] is not None else "the paper's ratio, 1,000 of 444,062"
    period = arguments["local"].period(dim, int(k))
    exchanges = f"; it exchanges every {period} rounds, floor(D / 2k)" if period > 1 else ""
    print(f"{method}: k = {k:g} of D = {dim:,}, {rule}{exchanges}")


def _run(folder: Path, settings: dict[str, Any], given: argparse.Namespace) -> bool:
    """Run or resume one run of a comparison; returns False if it was interrupted."""
    exists = (folder / CONFIG).is_file()
    records = read_records(folder) if exists else []
    if records and StopWhen(**{name: settings[name] for name in STOPS}).finished(records[-1]) is not None:
        return True
    arguments = build.simulate_arguments(settings)
    return running.train(arguments, settings, folder, given, folder.name, resume=exists).stopped != "interrupted"
