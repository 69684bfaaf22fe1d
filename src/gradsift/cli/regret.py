"""``gradsift regret``: how near to the best fixed k controllers come, on any set-up."""

import argparse
import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradsift import check
from gradsift.cli import options
from gradsift.cli.options import BY_NAME, Parser, UsageError, gather, whole
from gradsift.errors import RunError, install

if TYPE_CHECKING:
    from gradsift.recipes.store import Store
    from gradsift.recipes.sweep import Clock, Measured, Plan

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

COMM_TIMES = "0.1,1,10,100"


def add_to(made: Parser) -> None:
    """The flags of the command."""
    made.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="settings of the set-up")
    options.add_to(made)
    made.add_argument(
        "--like", choices=("femnist", "cifar10"), help="the set-up of the paper's figures, whose runs are then shared"
    )
    made.add_argument("--scale", choices=("smoke", "paper"), help="of --like (default: smoke)")
    made.add_argument(
        "--controllers", default="extended-sign,sign", help="comma-separated names (default: %(default)s)"
    )
    made.add_argument("--comm-times", metavar="TIMES", help=f"comma-separated (default: {COMM_TIMES})")
    made.add_argument("--targets", metavar="LOSSES", help="comma-separated (default: three on the way down)")
    made.add_argument("--points", type=whole, default=12, metavar="N", help="fixed k to begin with (default: 12)")
    made.add_argument("--refine", type=whole, default=1, metavar="N", help="times to look around the best (default: 1)")
    made.add_argument("--seeds", type=whole, default=3, metavar="N", help="seeds 0 to N-1 (default: %(default)s)")
    made.add_argument("--jobs", type=whole, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    made.add_argument("--minutes", type=float, metavar="T", help="stop after so long; the same command goes on")
    made.add_argument("--out", type=Path, help="folder of the runs (default: runs/regret-DATA, or that of the figures)")
    made.add_argument("--results", type=Path, help="folder of the results (default: results in --out)")
    made.add_argument(
        "--report", action="store_true", help="make no runs: results, tables and figures from what is there"
    )
    made.add_argument("--quiet", "-q", action="store_true", help="print results only")


def regret(given: argparse.Namespace) -> int:
    """Make the sweep, refine it, and say how near each controller came."""
    import time

    from gradsift.cli.paper import FIGURES, check_positive
    from gradsift.cli.running import INTERRUPTED
    from gradsift.recipes.store import Store
    from gradsift.recipes.sweep import Measured
    from gradsift.recipes.work import as_jobs, work
    from gradsift.regret.best import refined

    check_positive(given, "seeds", "jobs", "minutes", "rounds")
    if given.points < 2:
        raise UsageError(f"--points must be at least 2, got {given.points}")
    if given.refine < 0:
        raise UsageError(f"--refine must be 0 or more, got {given.refine}")
    plan = _plan(given)
    default = f"paper-{_scale(given)}" if given.like else f"regret-{plan.setup.name}"
    runs = given.out or Path("runs") / default
    name = f"regret-{plan.setup.name}"
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


def _plan(given: argparse.Namespace) -> "Plan":
    import gradsift
    from gradsift.recipes.scale import SMOKE, scale_named
    from gradsift.recipes.sweep import Plan
    from gradsift.registry import nearest

    settings, asked = gather(given, given.file), options.asked(given, given.file)
    for name, instead in DECIDED.items():
        if name in asked:
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
        if asked - {"rounds", "device"} or settings["set"]:
            wrong = sorted(asked - {"rounds", "device"})
            raise UsageError(f"--like {given.like} has its own {wrong[0] if wrong else 'options'}: leave that out")
        scale = scale_named(_scale(given))
        setup = scale.femnist if given.like == "femnist" else scale.cifar10
        setup = replace(setup, settings={**setup.settings, "device": settings["device"]})
        rounds = settings["rounds"] if "rounds" in asked else scale.rounds
        sparsifier = "fab-top-k"
    elif given.scale is not None:
        raise UsageError(f"--scale {given.scale} has no meaning without --like")
    else:
        scale = replace(SMOKE, eval_every=settings["eval_every"])
        setup, rounds, sparsifier = _own_setup(settings), settings["rounds"], settings["sparsifier"]
    clocks = _clocks(settings, given)
    return Plan(scale, setup, clocks, controllers, given.seeds, rounds, targets, given.points, sparsifier)


def _scale(given: argparse.Namespace) -> str:
    return given.scale or "smoke"


def _own_setup(settings: dict[str, Any]) -> Any:
    from gradsift.cli import build
    from gradsift.recipes.scale import Setup

    dim = build.trainable(build.load_model({**settings, "seed": 0}, build.load_data(settings)))
    name = Path(settings["data"]).stem.replace(":", "-")
    if build.make_sparsifier(settings).dense:
        raise UsageError(f"--sparsifier {settings['sparsifier']} sends whole vectors: there is no k to sweep")
    return Setup(name, dim, settings)


def _clocks(settings: dict[str, Any], given: argparse.Namespace) -> "tuple[Clock, ...]":
    from gradsift.cli import build
    from gradsift.recipes.sweep import Clock

    if settings["encoded_bytes"]:
        raise UsageError("--encoded-bytes: a sweep is clocked again from the elements sent, not from their bytes")
    if settings["cost"] != "normalized-time":
        if settings["clients_per_round"] is not None:
            raise UsageError(f"--clients-per-round: a sweep cannot be clocked again by {settings['cost']}")
        if given.comm_times is not None:
            raise UsageError(f"--comm-times has no meaning with --cost {settings['cost']}: it is of normalized-time")
        chosen = settings["set"].get("cost", {})
        return (Clock(settings["cost"], build.make_cost(settings), named=(settings["cost"], settings["cost"], chosen)),)
    if "comm_time" in settings["set"].get("cost", {}):
        raise UsageError(f"--set cost.comm_time has no meaning here: {DECIDED['comm_time']}")
    times = _numbers("--comm-times", COMM_TIMES if given.comm_times is None else given.comm_times, low=0.0)
    return tuple(Clock(f"comm_time {time:g}", build.make_cost({**settings, "comm_time": time}), time) for time in times)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(flag: str, text: str, low: float = -math.inf) -> list[float]:
    try:
        found = [float(word) for word in _words(text)]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found):
        raise UsageError(f"{flag} takes different numbers, with commas between them, got {text!r}")
    for number in found:
        check.real(flag, number, low)
    return found


def _report(measured: "Measured", name: str, store: "Store") -> None:
    from gradsift.recipes import regret_tables as tables
    from gradsift.recipes.tables import in_lines, markdown

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
            print(f"{title}\n\n{in_lines(made)}\n")
            page += f"## {title}\n\n{markdown(made)}\n"
    page += "".join(f"- {line}\n" for line in said)
    print("\n".join(said))
    (store.results / f"{name}.md").write_text(page, encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no figures: {install('report')}")
        return
    from gradsift.recipes.regret_drawing import draw

    for path in draw(measured, shapes, name, store.results / "figures"):
        print(path)
