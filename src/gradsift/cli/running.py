"""``gradsift run`` and ``gradsift resume``."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradsift
from gradsift import Result
from gradsift.errors import RunError, UsageError, install
from gradsift.experiments.build import simulate_arguments
from gradsift.experiments.display import Display, size
from gradsift.experiments.settings import gather
from gradsift.records.folder import CONFIG, read_config, read_records
from gradsift.records.record import Record
from gradsift.records.stop import STOPS

INTERRUPTED = 130  # the exit code of a command that was ended by Ctrl-C


def run(given: argparse.Namespace) -> int:
    """Train, and print how it ended."""
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
    settings = config["command"]
    for name in STOPS:
        if getattr(given, name) is not None:
            settings[name] = getattr(given, name)
    result = train(simulate_arguments(settings), settings, given.folder, given, given.folder.name, resume=True)
    return print_result(result)


def train(
    arguments: dict[str, Any],
    settings: dict[str, Any],
    out: Path,
    given: argparse.Namespace,
    name: str,
    *,
    resume: bool = False,
) -> Result:
    """Carry out one run and show its progress; the error of a failed run names its folder."""
    with Display(name, settings["rounds"], settings["cost_budget"], quiet=given.quiet) as display:
        if resume:
            display.already(read_records(out))
        watch: list[Callable[[Record], None]] = [display.round]
        if given.tensorboard:
            watch.append(_tensorboard(out / "tensorboard"))

        def show(record: Record) -> None:
            for watcher in watch:
                watcher(record)

        try:
            result = gradsift.simulate(
                **arguments,
                out=out,
                resume=resume,
                on_round=show,
                extra_config={"command": settings},
            )
        except RunError as problem:
            kept = f"\nwhat it had is in {out}: gradsift resume {out}" if (out / CONFIG).is_file() else ""
            raise RunError(f"the run failed: {problem}{kept}") from problem
    return result


def _tensorboard(folder: Path) -> Callable[[Record], None]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as problem:
        raise UsageError(f"--tensorboard needs: {install('tensorboard')}") from problem
    writer: Any = None

    def write(record: Record) -> None:
        nonlocal writer
        if writer is None:  # the run makes its folder before its first round
            writer = SummaryWriter(str(folder))
        for key in ("cost", "k", "train_loss", "global_loss", "accuracy", "up_bytes", "down_bytes"):
            if record[key] is not None:
                writer.add_scalar(key, record[key], record["round"])
        writer.flush()

    return write


def free_folder(parent: Path, name: str) -> Path:
    """parent/name, or parent/name-2, -3, ... where that is taken."""
    path, count = parent / name, 1
    while path.exists():
        count += 1
        path = parent / f"{name}-{count}"
    return path


def print_result(result: Result) -> int:
    """Print how a run ended; returns the exit code."""
    last = result.records[-1]
    sent = sum(record["up_bytes"] + record["down_bytes"] for record in result.records)
    dense = 2 * 4 * result.weights.numel() * sum(record["clients"] for record in result.records)
    evaluated = [record for record in result.records if record["global_loss"] is not None]
    print(f"stopped: {result.stopped}, after {last['round']} rounds at cost {last['cost']:.1f}")
    if evaluated:
        accuracy = evaluated[-1]["accuracy"]
        scored = "" if accuracy is None else f", test accuracy {accuracy:.3f}"
        print(f"loss {evaluated[-1]['global_loss']:.4f}{scored} (round {evaluated[-1]['round']})")
    print(f"k: {last['k']:.1f} of {result.weights.numel()} in the last round")
    print(f"sent {size(sent)}; whole gradients would have been {size(dense)}")
    print(f"kept in {result.folder}; look: gradsift report {result.folder}")
    if result.stopped != "interrupted":
        return 0
    print(f"go on: gradsift resume {result.folder}")
    return INTERRUPTED
