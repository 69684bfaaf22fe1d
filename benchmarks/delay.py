"""What it costs that with one exchange a round k is decided a round later: the digits, with and without the delay.

    python benchmarks/delay.py [--seeds 10] [--target 0.3]

For each communication time: the normalised time to a target loss, its ratio to that without the delay seed by seed, and
the k that was used.
"""

import argparse
import statistics

from torch import nn

import gradsift
from gradsift.data import load
from gradsift.models import small_mlp

COMM_TIMES = (1.0, 10.0, 100.0)


def run(delay: int, comm_time: float, seed: int, target: float) -> gradsift.Result:
    return gradsift.simulate(
        small_mlp(10, 64, seed=seed),
        nn.CrossEntropyLoss(),
        load("digits", clients=20, seed=seed),
        cost=gradsift.NormalizedTime(comm_time=comm_time),
        lr=0.3,
        rounds=5000,
        target_loss=target,
        seed=seed,
        delay=delay,
        eval_every=1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--target", type=float, default=0.3)
    given = parser.parse_args()
    print(
        "| comm_time | delay | time to the target, mean (range) | against no delay, mean (range) | rounds | median k |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for comm_time in COMM_TIMES:
        at_once: list[float] = []
        for delay in (0, 1):
            results = [run(delay, comm_time, seed, given.target) for seed in range(given.seeds)]
            assert all(result.stopped == "target loss" for result in results)
            times = [result.records[-1]["cost"] for result in results]
            at_once = at_once or times
            ratios = [late / early for late, early in zip(times, at_once, strict=True)]
            rounds = statistics.mean(len(result.records) for result in results)
            k = statistics.mean(statistics.median(r["used_k"] for r in result.records) for result in results)
            print(
                f"| {comm_time:g} | {delay} | {statistics.mean(times):.0f} ({min(times):.0f} to {max(times):.0f}) "
                f"| {statistics.mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {rounds:.0f} | {k:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
