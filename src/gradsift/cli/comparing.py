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
from gradsift.errors import UsageError
from gradsift.experiments import build
from gradsift.experiments.settings import BY_NAME, asked, gather
from gradsift.records import files
from gradsift.records.folder import CONFIG, read_records
from gradsift.records.stop import STOPS, StopWhen
from gradsift.registry import nearest

PLAN = "comparison.json"
COST_BUDGET = 400.0  # of every method, unless a budget or a number of rounds is given
TARGET_ACCURACY = {"digits": 0.8}  # unless a target is given: the table has the cost of reaching it
WORDS = ("adaptive", "fixed")


def compare(given: argparse.Namespace) -> int:
    """Plan a comparison, or find it in its folder, and carry out what is not finished."""
    settings = gather(vars(given), given.set_, given.file)
    chosen = asked(vars(given), given.file)
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
        settings["eval_every"] = None  # by method
    methods = [method.strip() for method in given.methods.split(",") if method.strip()]
    if len(methods) == 0 or len(set(methods)) < len(methods):
        raise UsageError(f"--methods must name each method once, got {given.methods!r}")
    if given.seeds < 1:
        raise UsageError(f"--seeds must be at least 1, got {given.seeds}")
    plan = {"settings": settings, "methods": methods, "seeds": given.seeds}
    out = given.out or running.free_folder(Path("runs"), f"comparison-{Path(settings['data']).stem}")
    if is_comparison(out):
        there, wanted = json.loads((out / PLAN).read_text()), json.loads(json.dumps(plan))
        said = differences(there.pop("settings"), wanted.pop("settings")) + differences(there, wanted)
        if said:
            other = f"{out} holds a comparison with other settings: {'; '.join(said)}"
            raise UsageError(f"{other}; `gradsift resume {out}` goes on with it")
    elif os.path.lexists(out):
        raise UsageError(f"{out} exists already and is not a comparison: choose another folder")
    else:
        check.folder("--out", out)
        for method in methods:
            _try(resolve(method, settings))
        out.mkdir(parents=True)
        files.write(out / PLAN, json.dumps(plan, indent=2).encode() + b"\n")
    return carry_out(out, plan, given)


def _try(settings: dict[str, Any]) -> None:
    """Make the parts of a run, so that wrong settings are refused before anything is written."""
    arguments = build.simulate_arguments(settings)
    arguments["controller"].init(dim=build.trainable(arguments["model"]), seed=settings["seed"])
    gradsift.check_pair(arguments["sparsifier"], arguments["controller"])


def resume(given: argparse.Namespace) -> int:
    """Continue a run, or every unfinished run of a comparison."""
    if not is_comparison(given.folder):
        return running.resume(given)
    for name in STOPS:
        if getattr(given, name) is not None:
            raise UsageError(f"{BY_NAME[name].flag} cannot change in a comparison: {given.folder} is one")
    return carry_out(given.folder, json.loads((given.folder / PLAN).read_text()), given)


def is_comparison(folder: Path) -> bool:
    """Whether a folder was made by ``compare``."""
    return (folder / PLAN).is_file()


def resolve(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of one method: the common ones, with its sparsifier and controller."""
    sparsifier, controller = settings["sparsifier"], "fixed"
    if "+" in method:
        sparsifier, controller = method.split("+", 1)
    elif method == "adaptive":
        controller = "extended-sign"
    elif method in gradsift.sparsifiers():
        sparsifier = method
    elif method in gradsift.controllers():
        controller = method
    elif method != "fixed":
        known = list(dict.fromkeys([*WORDS, *gradsift.sparsifiers(), *gradsift.controllers()]))
        raise UsageError(f"unknown method {method!r}{nearest(method, known)}")
    for name, valid in ((sparsifier, gradsift.sparsifiers()), (controller, gradsift.controllers())):
        if name not in valid and name != settings["sparsifier"]:
            raise UsageError(f"unknown method {method!r}: {name!r}{nearest(name, valid)}")
    # Options given with --set are for a controller that learns k, and for the sparsifier of the settings.
    parts = dict(settings["set"])
    if controller == "fixed":
        parts.pop("controller", None)
    if sparsifier != settings["sparsifier"]:
        parts.pop("sparsifier", None)
    chosen = {**settings, "sparsifier": sparsifier, "controller": controller, "set": parts}
    # Targets are for the table only: a run that stopped at one could not be compared at equal cost.
    chosen |= {"target_loss": None, "target_accuracy": None}
    chosen |= {"k_min": None, "k_max": None} if controller == "fixed" else {"k": None}
    if settings["eval_every"] is None:  # whole vectors in every round make few and costly rounds
        chosen["eval_every"] = 1 if build.ignores_k(chosen) else 5
    return chosen


def carry_out(out: Path, plan: dict[str, Any], given: argparse.Namespace) -> int:
    """Every run that is not finished yet, then the table and the page."""
    folders = []
    for seed in range(plan["seeds"]):  # all methods with one seed before the next seed
        for method in plan["methods"]:
            folder = out / f"{method}-seed{seed}"
            folders.append(folder)
            if not _one(folder, {**resolve(method, plan["settings"]), "seed": seed}, given):
                print(f"stopped; what is done is kept: gradsift resume {out}")
                return running.INTERRUPTED
    folders += getattr(given, "beside", [])
    reporting.write(folders, out / "report", plan["settings"]["target_loss"], plan["settings"]["target_accuracy"], None)
    for method in plan["methods"]:
        _explain(method, plan["settings"])
    return 0


def _explain(method: str, settings: dict[str, Any]) -> None:
    """Print where a fixed k comes from, and the period that FedAvg derives from it: it explains few exchanges."""
    chosen = resolve(method, settings)
    if chosen["controller"] != "fixed" or build.ignores_k(chosen):
        return
    arguments = build.simulate_arguments({**chosen, "seed": 0})
    k, dim = arguments["controller"].k, build.trainable(arguments["model"])
    rule = "as given" if settings["k"] is not None else "the paper's ratio, 1,000 of 444,062"
    period = arguments["local"].period(dim, int(k))
    exchanges = f"; it exchanges every {period} rounds, floor(D / 2k)" if period > 1 else ""
    print(f"{method}: k = {k:g} of D = {dim:,}, {rule}{exchanges}")


def _one(folder: Path, settings: dict[str, Any], given: argparse.Namespace) -> bool:
    there = (folder / CONFIG).is_file()
    if there and _is_finished(folder, settings):
        return True
    arguments = build.simulate_arguments(settings)
    result = running.train(arguments, settings, folder, given, folder.name, resume=there)
    return result.stopped != "interrupted"


def _is_finished(folder: Path, settings: dict[str, Any]) -> bool:
    records = read_records(folder)
    stop = StopWhen(**{name: settings[name] for name in STOPS})
    return bool(records) and stop.finished(records[-1]) is not None
