"""``gradsift regret``: how near controllers come to the best fixed k, on any set-up."""

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradsift import check
from gradsift.cli.paper import check_positive, print_figures, print_outcome, run_unfinished
from gradsift.cli.parser import COMM_TIMES
from gradsift.errors import RunError, UsageError
from gradsift.experiments import build
from gradsift.experiments.experiment import Setup, along
from gradsift.experiments.paper.figures import FIGURES
from gradsift.experiments.paper.scale import SCALES
from gradsift.experiments.settings import BY_NAME, explicit, gather
from gradsift.experiments.store import Store
from gradsift.experiments.sweep import tables
from gradsift.experiments.sweep.plan import Clock, Measured, Plan, split_options
from gradsift.registry import nearest
from gradsift.regret.best import refined
from gradsift.report import text

AXES = ("local_steps", "bits", "encoded_bytes")  # settings along which the paper's set-ups may be varied
# Settings that this command chooses itself, and what to use instead.
CHOSEN_HERE = {
    "seed": "--seeds N runs seeds 0 to N-1",
    "controller": "name them in --controllers",
    "k": "the sweep covers k_min to k_max",
    "comm_time": "name them in --comm-times",
    "target_loss": "name them in --targets",
    "target_accuracy": "targets are losses: --targets",
    "cost_budget": "runs end at the lowest target, or after --rounds",
}


def regret(given: argparse.Namespace) -> int:
    """Run the sweep, refine it, and report how near each controller came to the best fixed k."""
    check_positive(given, "seeds", "jobs", "minutes", "rounds")
    if given.points < 2:
        raise UsageError(f"--points must be at least 2, got {given.points}")
    if given.refine < 0:
        raise UsageError(f"--refine must be 0 or more, got {given.refine}")
    plan = _plan(given)
    name = sweep = f"regret-{plan.setup.name}"
    if plan.clocks[0].named is not None:
        name += f"-{plan.clocks[0].label}"
    runs = given.out or Path("runs") / (f"paper-{given.scale or 'smoke'}" if given.like else name)
    store = Store(runs, given.results or runs / "results", (*FIGURES, sweep, name))
    ks = plan.first_grid()
    for refinement in range(given.refine + 1):
        start = time.monotonic()
        outcome = run_unfinished(plan.experiments(ks), store, given)
        if given.minutes is not None:
            given.minutes = max(0.0, given.minutes - (time.monotonic() - start) / 60)
        if refinement == given.refine or outcome in ("interrupted", "time limit"):
            break
        bests = Measured.of(plan, ks, store).bests.values()
        lowest = plan.setup.settings.get("k_min") or 1
        finer = refined(ks, [best.k for best in bests if best is not None], lowest)
        if finer == ks:
            break
        ks = finer
    experiments = plan.experiments(ks)
    if any(store.get(e) is not None for e in experiments):
        store.write(name, experiments)
        _report(Measured.of(plan, ks, store), name, store)
    elif given.report:
        raise UsageError(f"--report: none of these runs is in {runs} or {store.results}")
    return print_outcome(experiments, store, outcome, "runs")


def _plan(given: argparse.Namespace) -> Plan:
    settings, chosen = gather(vars(given), given.set_, given.file), explicit(vars(given), given.file)
    for name, instead in CHOSEN_HERE.items():
        if name in chosen:
            raise UsageError(f"{BY_NAME[name].flag} has no meaning here: {instead}")
    if "controller" in settings["set"]:
        option = next(iter(settings["set"]["controller"]))
        raise UsageError(f"--set controller.{option}: several controllers run here, each with its own defaults")
    controllers = tuple(dict.fromkeys(_words(given.controllers)))
    if not controllers:
        raise UsageError(f"--controllers takes names, with commas between them, got {given.controllers!r}")
    for name in controllers:
        registered = build.class_name(split_options(name)[0])
        valid = [other for other in build.SLOTS["controller"].names() if other not in ("fixed", "replay")]
        if registered not in valid:
            raise UsageError(f"--controllers: unknown controller {name!r}{nearest(name, valid)}")
    targets = tuple(_numbers("--targets", given.targets)) if given.targets is not None else ()
    if given.scale is not None and not given.like:
        raise UsageError(f"--scale {given.scale} has no meaning without --like")
    rounds, eval_every, sparsifier = settings["rounds"], settings["eval_every"], settings["sparsifier"]
    if given.like:
        wrong = sorted(chosen - {"rounds", "device", "cost", *AXES}) + ["options"] * bool(
            set(settings["set"]) - {"cost"}
        )
        if wrong:
            raise UsageError(f"--like {given.like} has its own {wrong[0]}: do not give another")
        scale = SCALES[given.scale or "smoke"]
        setup = scale.femnist if given.like == "femnist" else scale.cifar10
        setup = replace(setup, settings={**setup.settings, "device": settings["device"]})
        rounds, eval_every = rounds if "rounds" in chosen else scale.rounds, scale.eval_every
    else:
        setup = _own_setup(settings)
    if chosen.intersection(AXES):
        setup = along(setup, *(settings[name] for name in AXES))
        eval_every = max(1, eval_every // (settings["local_steps"] or 1))
    clocks = _clocks(settings, given)
    return Plan(setup, clocks, controllers, given.seeds, rounds, targets, eval_every, given.points, sparsifier)


def _own_setup(settings: dict[str, Any]) -> Setup:
    """Return the set-up that the settings describe; its name is that of the data."""
    dim = build.trainable(build.load_model({**settings, "seed": 0}, build.load_data(settings)))
    if build.make_sparsifier(settings).dense:
        raise UsageError(f"--sparsifier {settings['sparsifier']} sends whole vectors: there is no k to sweep")
    return Setup(Path(settings["data"]).stem.replace(":", "-"), dim, settings)


def _clocks(settings: dict[str, Any], given: argparse.Namespace) -> tuple[Clock, ...]:
    """Return the cost models under which the controllers are run."""
    name, options = settings["cost"], settings["set"].get("cost", {})
    if name != "normalized-time":
        if settings["encoded_bytes"] or settings["bits"] is not None:
            raise UsageError(f"--cost {name}: a sweep with encoded bytes can be priced by normalized-time only")
        if settings["clients_per_round"] is not None:
            raise UsageError(f"--clients-per-round: a sweep of some clients cannot be priced by {name}")
        if given.comm_times is not None:
            raise UsageError(f"--comm-times has no meaning with --cost {name}: it is an option of normalized-time")
        return (Clock(name, build.make_cost(settings), named=(name, options)),)
    if "comm_time" in options:
        raise UsageError(f"--set cost.comm_time has no meaning here: {CHOSEN_HERE['comm_time']}")
    times = _numbers("--comm-times", COMM_TIMES if given.comm_times is None else given.comm_times, low=0.0)
    return tuple(Clock(f"comm_time {time:g}", build.make_cost({**settings, "comm_time": time}), time) for time in times)


def _words(given: str) -> list[str]:
    return [word.strip() for word in given.split(",") if word.strip()]


def _numbers(flag: str, given: str, low: float = -math.inf) -> list[float]:
    try:
        numbers = [float(word) for word in _words(given)]
    except ValueError:
        numbers = []
    if not numbers or len(set(numbers)) < len(numbers):
        raise UsageError(f"{flag} takes different numbers, with commas between them, got {given!r}")
    for number in numbers:
        check.real(flag, number, low)
    return numbers


def _report(measured: Measured, name: str, store: Store) -> None:
    """Print the tables, and write them and the figures."""
    if not measured.ks:
        print("no k of the sweep is finished in every seed yet")
        return
    if not measured.targets:
        if not set(measured.plan.first_grid()) <= set(measured.ks):
            print("no k that is finished in every seed lowers the loss yet")
            return
        raise RunError(
            "fewer than half of the fixed k lower the loss in every seed: try another --lr or more --rounds, or name"
            " --targets"
        )
    shape_table, sentences, shapes = tables.assumption2(measured)
    parts = {
        "Cost over that of the best fixed k": tables.ratios(measured),
        "Regret of Definition 4": tables.definition4(measured),
        "Where the cost went": tables.cost_shares(measured),
        "Assumption 2: t(k, l)": shape_table,
    }
    page = ""
    for title, (names, lines) in parts.items():
        if lines:
            print(f"{title}\n\n{text.aligned([names, *lines])}\n")
            page += f"## {title}\n\n{text.markdown(names, lines)}\n"
    print("\n".join(sentences))
    page += "".join(f"- {sentence}\n" for sentence in sentences)
    (store.results / f"{name}.md").write_text(page, encoding="utf-8")
    print_figures("sweep.drawing", measured, shapes, name, store.results / "figures")
