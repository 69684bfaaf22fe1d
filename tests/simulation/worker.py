"""Runs that other processes start, and end as they like; ``python -m tests.simulation.worker FOLDER`` is one."""

import contextlib
import itertools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import gradsift
from gradsift.simulation.interrupt import stop_on_signals
from tests.simulation.problems import blobs, mlp

ROUNDS, EVERY = 12, 2  # rounds of a run, and from one checkpoint to the next
SHORT: dict[str, Any] = {"rounds": 2, "checkpoint_every": 1}  # the least that writes, adds and removes checkpoints
HIDDEN = {"small": 6, "large": 4000}  # 57 and 36,003 weights: half a kilobyte and a megabyte of state

torch.set_num_threads(1)


def go(folder: str, size: str = "small", **options: Any) -> gradsift.Result:
    """Start the run in ``folder``, or resume it where there is one."""
    chosen = {"rounds": ROUNDS, "checkpoint_every": EVERY, "eval_every": 5, "batch_size": 8, "lr": 0.1} | options
    return gradsift.simulate(
        mlp(hidden=HIDDEN[size]), nn.CrossEntropyLoss(), blobs(), out=folder, resume=Path(folder).exists(), **chosen
    )


def told(report: str, folder: str, **options: Any) -> None:
    """Run; write down what went wrong, if anything, or how it ended."""
    try:
        said = go(folder, **options).stopped
    except (gradsift.GradsiftError, gradsift.RunError) as problem:
        said = f"{type(problem).__name__}: {problem}"
    Path(report).write_text(said)


# Kills at the file operations of a run, counted by Python's audit events, each of which comes before its operation.

OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.listdir", "os.scandir"}


def watch(folder: str, act: Callable[[int], None]) -> None:
    """Call ``act`` with the number of each file operation at or beside ``folder``."""
    parent, count = str(Path(folder).parent), 0

    def step() -> None:
        nonlocal count
        count += 1
        act(count)

    def hook(event: str, details: tuple[Any, ...]) -> None:
        if event in OPERATIONS and str(details[0]).startswith(parent):
            step()

    def synced(handle: int) -> None:
        step()
        fsync(handle)

    fsync, os.fsync = os.fsync, synced  # type: ignore[assignment]
    sys.addaudithook(hook)


def counted(report: str, folder: str) -> None:
    """Run, and write down how many file operations that took."""
    seen: list[int] = []
    watch(folder, seen.append)
    go(folder, **SHORT)
    total = len(seen)  # before the report adds its own
    Path(report).write_text(str(total))


def killed_at(number: int, folder: str) -> None:
    """Run until just before one of the file operations."""
    watch(folder, lambda count: os.kill(os.getpid(), signal.SIGKILL) if count == number else None)
    go(folder, **SHORT)


# Full disks.


def limited(report: str, folder: str, at: int, size: int, **options: Any) -> None:
    """Run; from the end of round ``at`` on (0: from the start) no file may become larger than ``size``."""

    def limit(record: dict[str, Any]) -> None:
        if record["round"] == at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    if at == 0:
        limit({"round": 0})
    told(report, folder, on_round=limit, **options)


def ballasted(report: str, folder: str, at: int, ballast: str) -> None:
    """Run; from the end of round ``at`` on (0: from the start) the file system is full."""

    def fill(record: dict[str, Any]) -> None:
        if record["round"] != at:
            return
        with open(ballast, "wb", buffering=0) as file:
            for block in (4096, 1):
                try:
                    while True:
                        file.write(b"x" * block)
                except OSError:
                    pass

    if at == 0:
        fill({"round": 0})
    told(report, folder, on_round=fill)


def as_nobody(report: str, folder: str) -> None:
    """Run as a user who may do nothing special."""
    with open(report, "w") as file:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        try:
            file.write(go(folder).stopped)
        except (gradsift.GradsiftError, gradsift.RunError) as problem:
            file.write(f"{type(problem).__name__}: {problem}")


def waiting(report: str, folder: str, release: str) -> None:
    """Run; stay in round 3 until a file appears."""

    def wait(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            Path(f"{release}.wanted").touch()
            while not Path(release).exists():
                time.sleep(0.005)

    told(report, folder, on_round=wait)


def held(folder: str, hold: str) -> None:
    """Run; write to ``hold`` when round 5 has begun, which never ends, and when the first Ctrl-C has come."""

    def stay(record: dict[str, Any]) -> None:
        if record["round"] != 5:
            return
        Path(hold).write_text("in")
        while True:
            time.sleep(0.005)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                Path(hold).write_text("asked")

    try:
        go(folder, on_round=stay)
    except KeyboardInterrupt:
        sys.exit(77)


def asked_while_asked() -> None:
    """Ctrl-C, and another one at each line that answers the first."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for place in range(12):
        lines = itertools.count()

        def trace(_: FrameType, event: str, __: Any, lines: Iterator[int] = lines, place: int = place) -> Any:
            if event == "line" and next(lines) == place:
                signal.raise_signal(signal.SIGINT)
            return trace

        with contextlib.suppress(KeyboardInterrupt), stop_on_signals():
            sys.settrace(trace)
            signal.raise_signal(signal.SIGINT)
        sys.settrace(None)


def main(folder: str, rounds: str) -> None:
    """A script as a user writes it."""
    result = go(folder, rounds=int(rounds))
    print(json.dumps({"stopped": result.stopped, "rounds": len(result.records)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
