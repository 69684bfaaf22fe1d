"""``gradsift run`` and ``gradsift resume``: train over simulated clients, or continue a run, and print the result."""

import argparse
from pathlib import Path
from typing import Any

import gradsift
from gradsift import Result
from gradsift.errors import RunError, UsageError
from gradsift.experiments.build import simulate_arguments
from gradsift.experiments.display import Display
from gradsift.experiments.settings import DEFAULTS, gather
from gradsift.experiments.tensorboard import tensorboard
from gradsift.records.folder import CONFIG, read_config, read_records
from gradsift.records.record import Record
from gradsift.records.stop import STOPS
from gradsift.report.text import some_bytes

INTERRUPTED = 130  # the exit code of a command that was ended by Ctrl-C


def run(given: argparse.Namespace) -> int:
    """Train, and print the result."""
    settings = gather(vars(given), given.set_, given.file)
    arguments = simulate_arguments(settings)
    name = f"{Path(settings['data']).stem}-{arguments['sparsifier'].name}-{arguments['controller'].name}"
    out = given.out or free_folder(Path("runs"), f"{name}-seed{settings['seed']}")
    return print_result(train(arguments, settings, out, given, name))


def resume(given: argparse.Namespace) -> int:
    """Continue a run."""
    config = read_config(given.folder)
    if config.get("driver") == "flower":
        raise UsageError(
            f"{given.folder} is a run on Flower: it continues when its server app is started again with the same out="
        )
    if "command" not in config:
        raise UsageError(
            f"{given.folder} was not made by `gradsift run`: resume it with gradsift.simulate(..., resume=True)"
        )
    settings = DEFAULTS | config["command"]
    settings |= {name: value for name in STOPS if (value := getattr(given, name)) is not None}
    return print_result(
        train(simulate_arguments(settings), settings, given.folder, given, given.folder.name, resume=True)
    )


def train(
    arguments: dict[str, Any],
    settings: dict[str, Any],
    out: Path,
    given: argparse.Namespace,
    name: str,
    *,
    resume: bool = False,
) -> Result:
    """Run ``gradsift.simulate`` and show its progress; the error of a failed run names its folder."""
    with Display(name, settings["rounds"], settings["cost_budget"], quiet=given.quiet) as display:
        if resume:
            display.resume(read_records(out))
        log = tensorboard(out / "tensorboard") if given.tensorboard else None

        def watch(record: Record) -> None:
            display.round(record)
            if log is not None:
                log(record)

        extra = {"command": settings}
        try:
            return gradsift.simulate(**arguments, out=out, resume=resume, on_round=watch, extra_config=extra)
        except RunError as problem:
            kept = f"\nits checkpoint is in {out}; try: gradsift resume {out}" if (out / CONFIG).is_file() else ""
            raise RunError(f"the run failed: {problem}{kept}") from problem


def free_folder(parent: Path, name: str) -> Path:
    """Return parent/name, or parent/name-2, -3, ... if that exists."""
    path, count = parent / name, 1
    while path.exists():
        count += 1
        path = parent / f"{name}-{count}"
    return path


def print_result(result: Result) -> int:
    """Print the result of a run; returns the exit code."""
    last, dim = result.records[-1], result.weights.numel()
    sent = sum(record["up_bytes"] + record["down_bytes"] for record in result.records)
    dense = 2 * 4 * dim * sum(record["clients"] for record in result.records)
    evaluated = [record for record in result.records if record["global_loss"] is not None]
    print(f"stopped: {result.stopped}, after {last['round']} rounds at cost {last['cost']:.1f}")
    if evaluated:
        accuracy = evaluated[-1]["accuracy"]
        scored = "" if accuracy is None else f", test accuracy {accuracy:.3f}"
        print(f"loss {evaluated[-1]['global_loss']:.4f}{scored} (round {evaluated[-1]['round']})")
    print(f"k: {last['k']:.1f} of {dim} in the last round")
    print(f"sent {some_bytes(sent)}; whole gradients would have taken {some_bytes(dense)}")
    print(f"the run is in {result.folder}; for a report: gradsift report {result.folder}")
    if result.stopped != "interrupted":
        return 0
    print(f"continue with: gradsift resume {result.folder}")
    return INTERRUPTED
