"""``gradsift regret``: how near to the best fixed k controllers come, on any set-up."""

import argparse
import importlib.util
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradsift
from gradsift import check
from gradsift.cli.paper import check_positive
from gradsift.cli.parser import COMM_TIMES
from gradsift.cli.running import INTERRUPTED
from gradsift.errors import RunError, UsageError, install
from gradsift.experiments import build
from gradsift.experiments.experiment import Setup
from gradsift.experiments.paper.figures import FIGURES
from gradsift.experiments.paper.scale import SCALES
from gradsift.experiments.settings import BY_NAME, asked, gather
from gradsift.experiments.store import Store
from gradsift.experiments.sweep import tables
from gradsift.experiments.sweep.plan import Clock, Measured, Plan
from gradsift.experiments.work import as_jobs, work
from gradsift.registry import nearest
from gradsift.regret.best import refined
from gradsift.report import text

# Settings that this command decides itself, and what to use instead.
DECIDED = {
    "seed": "--seeds N runs seeds 0 to N-1",
    "controller": "name them in --controllers",
    "k": "the sweep covers k_min to k_max",
    "comm_time": "name them in --comm-times",
    "target_loss": "name them in --targets",
    "target_accuracy": "targets are losses: --targets",
    "cost_budget": "runs end at the lowest target, or after --rounds",
}


def regret(given: argparse.Namespace) -> int:
    """Carry out the sweep, refine it, and report how near each controller came to the best fixed k."""
    check_positive(given, "seeds", "jobs", "minutes", "rounds")
    if given.points < 2:
        raise UsageError(f"--points must be at least 2, got {given.points}")
    if given.refine < 0:
        raise UsageError(f"--refine must be 0 or more, got {given.refine}")
    plan = _plan(given)
    name = f"regret-{plan.setup.name}"
    runs = given.out or Path("runs") / (f"paper-{given.scale or 'smoke'}" if given.like else name)
    store = Store(runs, given.results or runs / "results", (*FIGURES, name))
    end = None if given.minutes is None else time.monotonic() + 60 * given.minutes
    ks, outcome = plan.first_grid(), "nothing was run"
    for again in range(given.refine + 1):
        if not given.report:
            jobs = [job for job in as_jobs(plan.experiments(ks)) if not all(store.finished(e) for e in job)]
            left = None if end is None else max(0.0, (end - time.monotonic()) / 60)
            outcome = work(jobs, runs, processes=given.jobs, minutes=left, quiet=given.quiet)
        if again == given.refine or outcome in ("interrupted", "time limit"):
            break
        finer = refined(ks, [found.k for found in Measured.of(plan, ks, store).bests.values() if found is not None])
        if finer == ks:
            break
        ks = finer
    experiments = plan.experiments(ks)
    there = any(store.get(e) is not None for e in experiments)
    if given.report and not there:
        raise UsageError(f"--report: none of these runs is in {runs} or {store.results}")
    if there:
        store.write(name, experiments)
        _report(Measured.of(plan, ks, store), name, store)
    finished = sum(store.finished(e) for e in experiments)
    print(f"{finished} of {len(experiments)} runs are finished ({outcome}); results: {store.results}")
    return {"interrupted": INTERRUPTED, "failed": 1}.get(outcome, 0)


def _plan(given: argparse.Namespace) -> Plan:
    settings, chosen = gather(vars(given), given.set_, given.file), asked(vars(given), given.file)
    for name, instead in DECIDED.items():
        if name in chosen:
            raise UsageError(f"{BY_NAME[name].flag} has no meaning here: {instead}")
    if "controller" in settings["set"]:
        wrong = next(iter(settings["set"]["controller"]))
        raise UsageError(f"--set controller.{wrong}: several controllers run here, each with its own defaults")
    controllers = tuple(dict.fromkeys(_words(given.controllers)))
    if not controllers:
        raise UsageError(f"--controllers takes names, with commas between them, got {given.controllers!r}")
    for name in controllers:
        if name not in gradsift.controllers() or name in ("fixed", "replay"):
            known = [one for one in gradsift.controllers() if one not in ("fixed", "replay")]
            raise UsageError(f"--controllers: no {name!r}{nearest(name, known)}")
    targets = tuple(_numbers("--targets", given.targets)) if given.targets is not None else ()
    if given.like:
        own = sorted(chosen - {"rounds", "device"}) + ["options"] * bool(settings["set"])
        if own:
            raise UsageError(f"--like {given.like} has its own {own[0]}: leave that out")
        scale = SCALES[given.scale or "smoke"]
        setup = scale.femnist if given.like == "femnist" else scale.cifar10
        setup = replace(setup, settings={**setup.settings, "device": settings["device"]})
        rounds = settings["rounds"] if "rounds" in chosen else scale.rounds
        sparsifier, eval_every = "fab-top-k", scale.eval_every
    elif given.scale is not None:
        raise UsageError(f"--scale {given.scale} has no meaning without --like")
    else:
        setup, rounds = _own_setup(settings), settings["rounds"]
        sparsifier, eval_every = settings["sparsifier"], settings["eval_every"]
    clocks = _clocks(settings, given)
    return Plan(setup, clocks, controllers, given.seeds, rounds, targets, eval_every, given.points, sparsifier)


def _own_setup(settings: dict[str, Any]) -> Setup:
    dim = build.trainable(build.load_model({**settings, "seed": 0}, build.load_data(settings)))
    name = Path(settings["data"]).stem.replace(":", "-")
    if build.make_sparsifier(settings).dense:
        raise UsageError(f"--sparsifier {settings['sparsifier']} sends whole vectors: there is no k to sweep")
    return Setup(name, dim, settings)


def _clocks(settings: dict[str, Any], given: argparse.Namespace) -> tuple[Clock, ...]:
    if settings["encoded_bytes"]:
        raise UsageError("--encoded-bytes: a sweep is priced again from the elements sent, not from their bytes")
    if settings["cost"] != "normalized-time":
        if settings["clients_per_round"] is not None:
            raise UsageError(f"--clients-per-round: a sweep cannot be priced again by {settings['cost']}")
        if given.comm_times is not None:
            raise UsageError(f"--comm-times has no meaning with --cost {settings['cost']}: it is of normalized-time")
        name, chosen = settings["cost"], settings["set"].get("cost", {})
        return (Clock(name, build.make_cost(settings), named=(name, name, chosen)),)
    if "comm_time" in settings["set"].get("cost", {}):
        raise UsageError(f"--set cost.comm_time has no meaning here: {DECIDED['comm_time']}")
    times = _numbers("--comm-times", COMM_TIMES if given.comm_times is None else given.comm_times, low=0.0)
    return tuple(Clock(f"comm_time {time:g}", build.make_cost({**settings, "comm_time": time}), time) for time in times)


def _words(given: str) -> list[str]:
    return [word.strip() for word in given.split(",") if word.strip()]


def _numbers(flag: str, given: str, low: float = -math.inf) -> list[float]:
    try:
        found = [float(word) for word in _words(given)]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found):
        raise UsageError(f"{flag} takes different numbers, with commas between them, got {given!r}")
    for number in found:
        check.real(flag, number, low)
    return found


def _report(measured: Measured, name: str, store: Store) -> None:
    """Print the tables, and write them and the figures."""
    if not measured.ks:
        print("no k of the sweep is finished in every seed yet")
        return
    if not measured.targets():
        if not set(measured.plan.first_grid()) <= set(measured.ks):
            print("no k that is finished in every seed lowers the loss yet")
            return
        raise RunError(
            "fewer than half of the fixed k lower the loss in every seed: try another --lr or more --rounds, or name"
            " --targets"
        )
    shape_table, said, shapes = tables.assumption2(measured)
    parts = [
        ("Cost over that of the best fixed k", tables.ratios(measured)),
        ("Regret of Definition 4", tables.definition4(measured)),
        ("Where the cost went", tables.where_it_goes(measured)),
        ("Assumption 2: t(k, l)", shape_table),
    ]
    page = ""
    for title, made in parts:
        if made[1]:
            print(f"{title}\n\n{text.aligned([made[0], *made[1]])}\n")
            page += f"## {title}\n\n{text.markdown(*made)}\n"
    page += "".join(f"- {line}\n" for line in said)
    print("\n".join(said))
    (store.results / f"{name}.md").write_text(page, encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no figures: {install('report')}")
        return
    from gradsift.experiments.sweep.drawing import draw

    for path in draw(measured, shapes, name, store.results / "figures"):
        print(path)
