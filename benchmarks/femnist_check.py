"""Every sparsifier on real data: FEMNIST's first 156 writers, the paper's CNN at toy width, on the CPU.

    GRADSIFT_DATA=... python benchmarks/femnist_check.py [--rounds 300]

Not a benchmark of speed: a check that the loss over all training data falls, for every sparsifier with a fixed k and
for FAB-top-k with the paper's controller. It prints a table and fails if any loss does not fall.
"""

import argparse
import sys
import time
from typing import Any

import torch
from torch import nn

import gradsift
from gradsift.data import femnist
from gradsift.models import paper_cnn

SHARE = 50  # k is D / 50: FedAvg then exchanges every 25 rounds


def runs(dim: int) -> dict[str, tuple[str, gradsift.Controller[Any]]]:
    """Every sparsifier with a fixed k, and the paper's method."""
    fixed = gradsift.controller("fixed", k=max(1, dim // SHARE))
    table = {f"{name}, fixed": (name, fixed) for name in gradsift.sparsifiers()}
    return {**table, "fab-top-k, extended-sign": ("fab-top-k", gradsift.controller("extended-sign"))}


def check(rounds: int, clients: int, width: float, batch_size: int, lr: float) -> dict[str, dict[str, float]]:
    """Train each; returns the numbers of the table."""
    data = femnist(clients=clients)
    model = paper_cnn(62, 1, 28, width=width)
    dim = sum(parameter.numel() for parameter in model.parameters())
    results = {}
    for name, (sparsifier, controller) in runs(dim).items():
        started = time.perf_counter()
        result = gradsift.simulate(
            model,
            nn.functional.cross_entropy,
            data,
            sparsifier=sparsifier,
            controller=controller,
            rounds=rounds,
            batch_size=batch_size,
            lr=lr,
            eval_every=rounds,
        )
        last = result.records[-1]
        results[name] = {
            "start": result.config["start"]["global_loss"],
            "end": last["global_loss"],
            "accuracy": last["accuracy"],
            "k": last["k"],
            "cost": last["cost"],
            "seconds": time.perf_counter() - started,
        }
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--clients", type=int, default=156)
    parser.add_argument("--width", type=float, default=1 / 8)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = check(given.rounds, given.clients, given.width, given.batch_size, given.lr)
    shape = f"{given.clients} clients, width {given.width:g}, batch {given.batch_size}"
    print(f"{shape}, lr {given.lr}, {given.rounds} rounds")
    print(f"{'':28}{'loss before':>12}{'after':>8}{'accuracy':>10}{'last k':>9}{'cost':>8}{'seconds':>9}")
    for name, row in results.items():
        print(
            f"{name:28}{row['start']:12.3f}{row['end']:8.3f}{row['accuracy']:10.3f}{row['k']:9.1f}"
            f"{row['cost']:8.0f}{row['seconds']:9.1f}"
        )
    risen = [name for name, row in results.items() if not row["end"] < row["start"]]
    if risen:
        print(f"the loss did not fall: {', '.join(risen)}")
    return len(risen)


if __name__ == "__main__":
    sys.exit(main())
