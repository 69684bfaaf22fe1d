"""How the cost of a round grows with the clients N, the weights D and the elements k.

    python -m benchmarks.growth [--device cuda] [--seconds 60] [--out .bench/growth.json] [--plot .bench/growth.svg]

Three sweeps, each of one size with the two others fixed, of whole adaptive rounds through ``gradsift.simulate``. The
model is a perceptron with two hidden layers, whose width gives D; data are random and made on the spot. A point is the
median of its rounds after the first two; one that does not fit, in memory or in time, is left out with the reason. For
each sweep: a line with its R2 and how far the farthest point is from it, the slope in log-log, and the steepest step
between two neighbours, where a cliff would show.
"""

import argparse
import contextlib
import gc
import itertools
import math
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import gradsift
from benchmarks.common import KEPT, about, adaptive, write_json
from benchmarks.growth_report import AXES, LEAST, extrapolated, fit, plot, table
from gradsift.records.record import Record
from gradsift.simulation.memory import Needs, must_stream

FEATURES, CLASSES, BATCH = 64, 10, 8
ROUNDS, WARM_UP = 9, 2


class Size(NamedTuple):
    """One point."""

    clients: int
    dim: int
    k: int


PAPER_DIM = 444_000  # about its CNN for FEMNIST: on which the sweep of k is made
BASE = {"cpu": Size(10, 10_000, 100), "cuda": Size(50, PAPER_DIM, 1000)}
SWEEPS = {
    "clients": [10, 30, 100, 300, 1000, 3500],
    "dim": [10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000],
    "k": [140, 440, 1400, 4400, 14_000, 44_000, 140_000, PAPER_DIM],
}


class Enough(Exception):
    """The point has had its rounds, or its time."""


def perceptron(dim: int) -> nn.Module:
    """About ``dim`` weights: width^2 + (FEATURES + CLASSES + 2) width + CLASSES."""
    linear = FEATURES + CLASSES + 2
    width = max(1, round((math.sqrt(linear**2 + 4 * (dim - CLASSES)) - linear) / 2))
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()), nn.Linear(width, CLASSES)
    )


def random_data(clients: int) -> gradsift.FederatedData:
    source = np.random.default_rng(0)
    x = source.standard_normal((clients * BATCH, FEATURES), dtype=np.float32)
    y = source.integers(0, CLASSES, clients * BATCH)
    return gradsift.FederatedData.from_arrays(x, y, np.repeat(np.arange(clients), BATCH), name="random")


def points(base: Size, wide: Size, sweeps: dict[str, list[int]]) -> dict[str, list[Size]]:
    """Axis -> the points of its sweep; those of k around ``wide``, the others around ``base``."""
    return {
        axis: [(wide if axis == "k" else base)._replace(**{axis: size}) for size in sorted(set(sizes))]
        for axis, sizes in sweeps.items()
    }


def measure(size: Size, device: torch.device, seconds: float) -> dict[str, Any]:
    """Rounds of one point, at least ``LEAST`` and at most ``ROUNDS``, for about ``seconds``, after the warm-up."""
    model = perceptron(size.dim)
    dim = sum(parameter.numel() for parameter in model.parameters())
    ends: list[float] = []
    used_k: list[int] = []

    def on_round(record: Record) -> None:
        ends.append(time.perf_counter())
        used_k.append(record["used_k"])
        if len(ends) == WARM_UP + ROUNDS or (len(ends) >= WARM_UP + LEAST and ends[-1] - ends[0] > seconds):
            raise Enough

    if device.type == "cuda":
        gc.collect()  # the point before is still held by its exception
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(Enough):
        gradsift.simulate(
            model,
            nn.functional.cross_entropy,
            random_data(size.clients),
            controller=adaptive(min(size.k, dim), dim),
            rounds=10**9,
            batch_size=BATCH,
            device=device,
            eval_every=10**9,
            on_round=on_round,
        )
    times = [after - before for before, after in itertools.pairwise(ends[WARM_UP - 1 :])]
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    at = {"clients": size.clients, "dim": dim, "k": statistics.median_low(used_k)}
    return {**at, "seconds": statistics.median(times), "rounds": len(times), "peak_bytes": peak}


def sweep(axis: str, sizes: list[Size], device: torch.device, seconds: float) -> dict[str, Any]:
    """The points of one axis, with what was left out and why."""
    measured: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    for size in sizes:
        reason, expected = None, extrapolated(axis, measured, getattr(size, axis))
        try:
            streamed = must_stream(
                Needs(size.clients, size.dim, size.k, torch.float32, most=round(1.1 * size.k)), device
            )
            if (WARM_UP + LEAST) * expected > seconds:
                reason = f"about {expected:.1f} s a round, too long for {seconds:g} s a point"
            else:
                measured.append({**measure(size, device, seconds), "streamed": streamed})
        except (torch.OutOfMemoryError, gradsift.GradsiftError) as problem:
            reason = str(problem).splitlines()[0]
        at = ", ".join(f"{name} = {value:,}" for name, value in size._asdict().items())
        if reason is None:
            last = measured[-1]
            where = ", residuals in host memory" if streamed else ""
            print(f"{axis}: {at}: {1e3 * last['seconds']:.2f} ms ({last['rounds']} rounds{where})", flush=True)
        else:
            print(f"{axis}: {at}: skipped: {reason}", flush=True)
            skipped.append({**size._asdict(), "reason": reason})
    return {"points": measured, "skipped": skipped, "fit": fit(axis, measured)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=60, help="for one point, at most about")
    parser.add_argument("--base", type=int, nargs=3, metavar=("N", "D", "K"), help="what is fixed in the other sweeps")
    for axis, sizes in SWEEPS.items():
        parser.add_argument(f"--{axis}", type=int, nargs="+", default=sizes, help=f"the sweep of {AXES[axis]}")
    parser.add_argument("--out", type=Path, default=KEPT / "growth.json")
    parser.add_argument("--plot", type=Path, default=KEPT / "growth.svg")
    given = parser.parse_args()
    device = torch.device(given.device)
    base = Size(*given.base) if given.base else BASE[device.type]
    began = time.perf_counter()
    wide = base if given.base else base._replace(dim=PAPER_DIM)
    sweeps = points(base, wide, {axis: getattr(given, axis) for axis in SWEEPS})
    record = {
        **about("benchmarks.growth", device),
        "repeats": ROUNDS,
        "batch": BATCH,
        "sweeps": {axis: sweep(axis, sizes, device, given.seconds) for axis, sizes in sweeps.items()},
    }
    write_json(given.out, record)
    try:
        plot(record, given.plot)
    except ImportError as problem:  # a bare machine with a GPU
        print(f"no figure: {problem}; elsewhere, python -m benchmarks.growth_report {given.out} {given.plot}")
    print(f"{record['machine']}; torch {torch.__version__}; {time.perf_counter() - began:.0f} s in all")
    print(table(record))
    print(f"written to {given.out}, drawn in {given.plot}")


if __name__ == "__main__":
    main()
