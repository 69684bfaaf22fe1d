"""``gradsift plan``: print, draw and save a plan, and the command that trains with its cost model."""

import argparse
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gradsift
from gradsift import Plan
from gradsift.errors import UsageError
from gradsift.experiments import build
from gradsift.experiments.settings import gather
from gradsift.records import files

SAME = ("latency", "compute", "clients", "rounds", "local_steps", "fedavg_steps", "k_min", "k_max")


def plan(given: argparse.Namespace) -> int:
    """Print the plan; write the figure and the numbers if they are wanted."""
    arguments = {name: getattr(given, name) for name in SAME}
    arguments |= {} if given.bits is None else {"bits": given.bits}
    made = gradsift.plan(
        _model(given), up_mbit=given.up, down_mbit=given.down, encoded_bytes=not given.plain_bytes, **arguments
    )
    if given.plot is not None and given.json is not None and given.plot.resolve() == given.json.resolve():
        raise UsageError(f"--plot and --json name the same file, {given.plot}")
    as_json = files.as_json(asdict(made), indent=2) + b"\n"
    writers: dict[Path | None, Callable[[Path], None]] = {
        given.plot: made.draw,
        given.json: lambda path: files.write(path, as_json),
    }
    wanted = {path: write for path, write in writers.items() if path is not None}
    for path, write in wanted.items():
        try:
            write(path)
        except OSError as problem:
            raise UsageError(f"cannot write {path}: {problem.strerror}") from problem
    print(made)
    print(f"\nto train with this cost:\n  {_command(made, given)}")
    for path in wanted:
        print(f"written: {path}")
    return 0


def _model(given: argparse.Namespace) -> Any:
    """The number of weights, or the model that the flags name."""
    if given.weights is None:
        named = {name: value for name in ("model", "data") if (value := getattr(given, name)) is not None}
        settings = gather(named, given.set_, None)
        return build.load_model(settings, build.load_data(settings))
    for name in ("model", "data", "set_"):
        if getattr(given, name):
            raise UsageError(f"--{name.rstrip('_')} has no meaning with --weights {given.weights}: give one of them")
    return given.weights


def _command(made: Plan, given: argparse.Namespace) -> str:
    """The command that trains with the cost model of the plan, and starts with its k."""
    model = ["--model", "MODULE:FUNCTION", "--data", "DATA"] if given.weights else []
    for name in ("model", "data"):
        if getattr(given, name) is not None:
            model += [f"--{name}", getattr(given, name)]
    options = [f"cost.{name}={value!r}" for name, value in asdict(made.cost).items()]
    words = [*model, "--cost", "link-time", *(word for option in [*given.set_, *options] for word in ("--set", option))]
    words += ["--sparsifier", "send-all"] if made.dense else ["--controller", "planned"]
    for flag, bound in (("--k-min", given.k_min), ("--k-max", given.k_max)):
        words += [flag, str(bound)] if bound is not None and not made.dense else []
    words += ["--local-steps", str(made.local_steps)] if made.local_steps > 1 else []
    words += ["--bits", f"{made.bits[0]},{made.bits[1]}"] if given.bits is not None and not made.dense else []
    words += ["--buffers", "average"] if made.buffers else []
    words += ["--encoded-bytes"] if made.encoded_bytes and not made.dense else []
    return shlex.join(["gradsift", "run", *words])
