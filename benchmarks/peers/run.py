"""Our round against the simulators in the field, interleaved: ``make bench-peers``.

    python -m benchmarks.peers.run [--minutes 5] [--only gradsift pfl] [--out .bench/peers.json]

Twenty clients of 32 samples take one gradient step a round, on two threads. Everybody has the same network, data and
start; each runs in an environment and a process of its own, started before the first turn. They take turns of a few
rounds, A B C A B C, while the others wait, so that a slow minute of the machine is slow for all. A ratio is taken to
the plain loop's turn of the same repeat. After the warm-up the weights of all dense rounds are compared: a contestant
that did other work is named. One that cannot be installed or does not start is named too, and left out.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import KEPT, command, cores_busy, machine, markdown, today, write_json
from benchmarks.peers.contest import BASE, ENTRIES, Contestant
from benchmarks.peers.environments import UnavailableError
from benchmarks.peers.workload import BATCH, DIM, flat, start

WARM_UP = 2
QUIET = 0.2  # cores that others, and those who wait, may use
SAME = 0.01  # how far, as a part of the whole move, weights may differ by rounding


def enter(names: list[str], clients: int, threads: int, scratch: Path) -> tuple[list[Contestant], dict[str, str]]:
    """Start them all; returns those that run, warm, and why the others do not."""
    running, unavailable = [], {}
    for name in names:
        print(f"starting {name}", flush=True)
        contestant = None
        try:
            contestant = Contestant(name, clients, threads, scratch)
            contestant.start()
            contestant.rounds(WARM_UP)
            running.append(contestant)
        except UnavailableError as problem:
            print(problem, flush=True)
            unavailable[name] = str(problem)
            if contestant is not None:
                contestant.stop()
    return running, unavailable


def disagreement(running: list[Contestant]) -> dict[str, float]:
    """How far each one's weights are from those it must agree with, as a part of the way that those have moved."""
    weights = {contestant.name: contestant.weights() for contestant in running}
    apart = {}
    for name, mine in weights.items():
        like = ENTRIES[name].like
        if like in weights:
            moved = np.linalg.norm(weights[like] - flat(start()))
            apart[name] = float(np.linalg.norm(mine - weights[like]) / moved)
    return apart


def take_turns(
    running: list[Contestant], unavailable: dict[str, str], rounds: int, minutes: float
) -> list[float | None]:
    """Repeats of one turn each, as long as the time allows and nobody presses Ctrl-C; three at the least.

    Only whole repeats count. One that breaks down is left out from then on. Returns how many cores worked before each
    repeat, while everybody waited.
    """
    busy: list[float | None] = []
    began = time.perf_counter()
    with contextlib.suppress(KeyboardInterrupt):
        while len(busy) < 3 or (time.perf_counter() - began) * (1 + 1 / len(busy)) < 60 * minutes:
            waiting, turn = cores_busy(0.3), {}
            for contestant in list(running):
                try:
                    turn[contestant] = contestant.rounds(rounds)
                except UnavailableError as problem:
                    unavailable[contestant.name] = str(problem)
                    running.remove(contestant)
            busy.append(waiting)
            for contestant, seconds in turn.items():
                contestant.seconds.append(seconds)
            latest = ", ".join(f"{contestant.name} {seconds:.2f}" for contestant, seconds in turn.items())
            print(
                f"repeat {len(busy)}, {time.perf_counter() - began:.0f} of {60 * minutes:.0f} s: {latest}", flush=True
            )
    return busy


def ratios(record: dict[str, Any]) -> dict[str, list[float]]:
    """Contestant -> its time over the plain loop's, repeat by repeat."""
    base = record["contestants"][BASE]["seconds"]
    return {
        name: [mine / plain for mine, plain in zip(entry["seconds"], base, strict=True)]
        for name, entry in record["contestants"].items()
    }


def table(record: dict[str, Any]) -> str:
    """Medians and spreads, as docs/results/speed.md shows them."""
    rows = []
    for name, each in ratios(record).items():
        entry = record["contestants"][name]
        low, _, high = statistics.quantiles(each, n=4)
        versions = " ".join(f"{package} {number}" for package, number in entry["versions"].items())
        seconds = f"{statistics.median(entry['seconds']):.3f}"
        ratio = f"{statistics.median(each):.2f}"
        rows.append([name, seconds, ratio, f"{low:.2f} to {high:.2f}", f"{min(each):.2f} to {max(each):.2f}", versions])
    return markdown(["", "s a round", "x plain loop", "middle half", "range", "versions"], rows)


def ahead(record: dict[str, Any]) -> list[str]:
    """Against how many of the others' turns in the same repeat each of our adaptive rounds was quicker."""
    seconds = {name: entry["seconds"] for name, entry in record["contestants"].items()}
    others = {name: each for name, each in seconds.items() if "adaptive" not in name}
    lines = []
    for name, mine in seconds.items():
        if "adaptive" in name:
            wins = {other: sum(a < b for a, b in zip(mine, each, strict=True)) for other, each in others.items()}
            counts = ", ".join(f"{other} {count}" for other, count in wins.items())
            lines.append(f"Repeats of {len(mine)} in which {name}, is ahead of: {counts}.")
    return lines


def others_work(record: dict[str, Any]) -> list[str]:
    """Who did not end where it must, so that its time says nothing."""
    return [name for name, entry in record["contestants"].items() if entry["apart"] and entry["apart"] > SAME]


def summary(record: dict[str, Any]) -> str:
    """The table, and everything that a reader must know to trust it or not."""
    work, busy = record["workload"], [number for number in record["cores busy while all wait"] if number is not None]
    lines = [
        f"{record['date']}, {record['machine']}, {work['threads']} threads; {work['clients']} clients x"
        f" {work['samples']} samples, D = {work['dim']:,}; {len(record['cores busy while all wait'])} repeats of"
        f" {record['rounds a turn']} rounds",
        "",
        table(record),
        "",
        *(f"{line}\n" for line in ahead(record)),
    ]
    if busy:
        lines.append(f"Cores busy while all wait: {statistics.median(busy):.2f} (median), {max(busy):.2f} at most.")
    if busy and statistics.median(busy) > QUIET:
        lines.append("The machine was not quiet: look at the ratios only, and at their spread.")
    lines += [f"Left out: {name}: {reason}" for name, reason in record["unavailable"].items()]
    for name in others_work(record):
        part, like = record["contestants"][name]["apart"], ENTRIES[name].like
        lines.append(f"{name} did other work: its weights are {part:.1%} away from those of {like}.")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3, help="rounds a turn")
    parser.add_argument("--minutes", type=float, default=5, help="for all turns, after the set-up")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="those whose names start so, and the plain loop")
    parser.add_argument("--out", type=Path, default=KEPT / "peers.json")
    given = parser.parse_args()
    names = [name for name in ENTRIES if name == BASE or name.startswith(tuple(given.only or [""]))]
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
        running, unavailable = enter(names, given.clients, given.threads, Path(scratch))
        entered = list(running)
        try:
            apart = disagreement(running)
            busy = take_turns(running, unavailable, given.rounds, given.minutes)
        finally:
            for contestant in entered:
                contestant.stop()
    if BASE in unavailable or len(busy) < 2:
        print(f"nothing to compare: {unavailable.get(BASE, 'stopped before the second repeat')}")
        return 1
    record = {
        "date": today(),
        "machine": machine(),
        "command": command("benchmarks.peers.run"),
        "repeats": len(busy),
        "workload": {"clients": given.clients, "samples": BATCH, "dim": DIM, "threads": given.threads},
        "rounds a turn": given.rounds,
        "cores busy while all wait": busy,
        "contestants": {
            one.name: {"versions": one.versions, "seconds": one.seconds, "apart": apart.get(one.name)}
            for one in running
        },
        "unavailable": unavailable,
    }
    write_json(given.out, record)
    print(summary(record))
    print(f"written to {given.out}")
    return len(others_work(record))


if __name__ == "__main__":
    sys.exit(main())
