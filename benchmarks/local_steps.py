"""Local steps and few bits on FEMNIST and CIFAR-10, against one exact gradient a round and the field's recipes.

    python -m benchmarks.local_steps run femnist --out runs/local --jobs 12 --minutes 10     # on a GPU
    python -m benchmarks.local_steps report                     # docs/results/data -> the tables of local_steps.md

Every run has a fixed k and counts the bytes of the wire format, so it can be priced with any comm_time afterwards.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradsift.cost import NormalizedTime
from gradsift.experiments import trajectory
from gradsift.experiments.experiment import Experiment
from gradsift.experiments.paper.scale import PAPER
from gradsift.experiments.settings import DEFAULTS
from gradsift.experiments.trajectory import Trajectory
from gradsift.experiments.work import as_jobs, work

RESULTS = Path("docs/results/data")
TARGETS = {"femnist": 1.5, "cifar10": 1.65}
CLOCKS = (10.0, 100.0, 1000.0)
MOST_STEPS = 2400  # gradients of a client in a run that does not reach its target
EXACT = (32, 32)


class Case(NamedTuple):
    """One fixed setting: local steps, k, bits, and what else differs from the paper's round."""

    steps: int
    k: int | None = None  # None: everything is sent
    bits: tuple[int, int] = (2, 4)
    sparsifier: str = "fab-top-k"
    others: tuple[tuple[str, Any], ...] = ()  # settings; "local.OPTION" and "server.OPTION" are options of a part
    recipe: str = ""

    @property
    def name(self) -> str:
        """The part of a run's name that tells it from others."""
        k = "all" if self.k is None else f"k{self.k}"
        parts = [self.sparsifier, f"h{self.steps}", k, f"bits{self.bits[0]}-{self.bits[1]}"]
        parts += [f"{name.replace('.', '-')}-{str(value).rpartition(':')[2]}" for name, value in self.others]
        return "-".join(parts)

    def experiment(self, data: str, seed: int) -> Experiment:
        """The run of this case with a seed."""
        setup = PAPER.femnist if data == "femnist" else PAPER.cifar10
        settings: dict[str, Any] = {**DEFAULTS, **setup.settings, "set": {}, "seed": seed, "controller": "fixed"}
        settings |= {
            "sparsifier": self.sparsifier,
            "k": float(self.k or 1),
            "bits": list(self.bits),
            "comm_time": 100.0,
        }
        settings |= {"encoded_bytes": True, "target_loss": TARGETS[data], "rounds": MOST_STEPS // self.steps}
        settings |= {"eval_every": max(1, 20 // self.steps), "checkpoint_every": 1000}
        for name, value in self.others:
            part, dot, option = name.partition(".")
            if dot:
                settings["set"].setdefault(part, {})[option] = value
            else:
                settings[name] = value
        if settings["local"] is None:
            settings["local_steps"] = self.steps
        else:
            settings["set"].setdefault("local", {})["steps"] = self.steps
        if settings["values"] is not None:
            settings["bits"] = None
        label = self.recipe or f"h = {self.steps}, k = {self.k}, bits {self.bits[0]} and {self.bits[1]}"
        return Experiment(f"{data}-{self.name}-seed{seed}", label, settings)


INT8 = (("values", "int8"), ("down_values", "int8"))
OUTER = (("server", "momentum"), ("server.nesterov", True), ("server.rate", 0.7))
BASELINE = [Case(1, k, EXACT) for k in (2000, 6000, 700)]
GRID = [
    *(Case(16, 30_000), Case(64, 30_000), Case(64, 100_000), Case(16, 100_000), Case(4, 30_000), Case(128, 60_000)),
    *(Case(4, 10_000), Case(64, 10_000), Case(16, 10_000), Case(32, 30_000), Case(128, 30_000), Case(32, 60_000)),
    *(Case(4, 60_000), Case(1, 10_000), Case(128, 100_000), Case(256, 60_000)),
]
BITS = [
    *(Case(16, 30_000, bits) for bits in (EXACT, (1, 4), (2, 2), (3, 4), (4, 4), (2, 3), (8, 8), (1, 1))),
    *(Case(1, 6000, bits) for bits in ((2, 4), (1, 4), (2, 2), (4, 4))),
    Case(16, 30_000, (2, 4), others=(("values.stochastic", True), ("down_values.stochastic", True))),
]
RECIPES = [
    *(Case(h, None, EXACT, "fedavg", recipe="FedAvg") for h in (64, 16, 128, 32)),
    *(Case(h, None, EXACT, "fedavg", INT8, "FedAvg, 8 bits") for h in (32, 64, 128)),
    *(Case(1, k, (1, 1), "fub-top-k", recipe="STC") for k in (4440, 11_100)),
    *(
        Case(30, k, (2, 32), "unidirectional-top-k", (("local.residual_decay", 0.95),), "SparseLoCo")
        for k in (4440, 13_320)
    ),
    *(Case(h, None, EXACT, "fedavg", OUTER, "DiLoCo") for h in (64, 16)),
    Case(30, 13_320, (2, 4), "fab-top-k", (("server", "momentum"), ("server.nesterov", True), ("server.rate", 0.7))),
]
SCAFFOLD = ("local", "benchmarks.scaffold:Scaffold")
DRIFT = [
    *(Case(1, 10_000, EXACT), Case(1, 10_000), Case(2, 15_000), Case(4, 20_000), Case(16, 40_000)),
    *(Case(4, 20_000, others=(("local.rate", 0.5), ("server.rate", 2.0))),),
    *(Case(4, 20_000, others=(("local.rate", 0.25), ("server.rate", 4.0))),),
    *(Case(4, 20_000, others=(SCAFFOLD,)), Case(16, 40_000, others=(SCAFFOLD,))),
    *(Case(4, 20_000, others=(("server", "momentum"), ("server.momentum", 0.5), ("server.rate", 0.5))),),
    *(Case(2, 15_000, others=(("local.rate", 0.5), ("server.rate", 2.0))), Case(4, 100_000)),
]
REPEATED = [*GRID[:6], *BASELINE]  # with three seeds


def experiments(data: str) -> list[Experiment]:
    """All runs on a data set, the most needed first."""
    if data == "cifar10":
        return [case.experiment(data, 0) for case in DRIFT]
    first = [case.experiment(data, 0) for case in (*BASELINE, *GRID, *RECIPES)]
    repeated = [case.experiment(data, seed) for seed in (1, 2) for case in REPEATED]
    recipes = [case.experiment(data, seed) for seed in (1, 2) for case in RECIPES]
    return [*first, *repeated, *(case.experiment(data, 0) for case in BITS), *recipes]


def run(data: str, out: Path, jobs: int, minutes: float | None) -> None:
    """Make the runs that are not finished; their trajectories go to a file beside them."""
    todo = [job for job in as_jobs(experiments(data)) if job[0].remaining(trajectory.from_folder(out / job[0].name))]
    print(f"{len(todo)} runs to do")
    print(work(todo, out, processes=jobs, minutes=minutes, quiet=True))
    runs = (trajectory.from_folder(folder) for folder in sorted(out.iterdir()) if folder.name.startswith(data))
    trajectory.save(out / f"local-steps-{data}.npz", [one for one in runs if one is not None])


def time_to_target(run: Trajectory, comm_time: float, target: float) -> float:
    """The normalised time after the first evaluation at or below the target; infinite if there is none."""
    below = np.flatnonzero(run.loss <= target)
    return (
        float(np.append(0.0, run.repriced(NormalizedTime(comm_time)).cost)[run.evaluated[below[0]]])
        if len(below)
        else np.inf
    )


def _bits_up_and_down(run: Trajectory) -> float:
    """The mean bits of an element, up and down together, divided by two."""
    steps, comm_time = run.config["local"]["steps"], run.config["cost"]["comm_time"]
    sent = (run.round_cost - steps) / comm_time * 8 * run.dim  # bytes of a client, both ways
    return float(8 * sent.sum() / (run.up.sum() + run.down.sum()))


def report(data: str) -> str:
    """The table of all finished runs of a data set, as Markdown; the runs of one case are averaged over their seeds."""
    runs = trajectory.load(RESULTS / f"local-steps-{data}.npz")
    lines = ["| run | seeds | gradients | exchanges | bits an element | 10 | 100 | 1,000 |", "| --- " * 8 + "|"]
    cases = dict.fromkeys(name.rpartition("-seed")[0] for name in runs)
    for case in cases:
        found = [run for name, run in runs.items() if name.rpartition("-seed")[0] == case]
        times = np.array([[time_to_target(run, clock, TARGETS[data]) for clock in CLOCKS] for run in found])
        if not np.isfinite(times).all():
            continue
        rounds = float(np.mean([run.evaluated[np.flatnonzero(run.loss <= TARGETS[data])[0]] for run in found]))
        steps = found[0].config["local"]["steps"]
        cells = [case.removeprefix(f"{data}-"), str(len(found)), f"{rounds * steps:,.0f}", f"{rounds:,.0f}"]
        cells += [
            f"{np.mean([_bits_up_and_down(run) for run in found]):.1f}",
            *(f"{t:,.0f}" for t in times.mean(axis=0)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Make the runs, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("data", choices=TARGETS)
    running.add_argument("--out", type=Path, default=Path("runs/local"))
    running.add_argument("--jobs", type=int, default=1)
    running.add_argument("--minutes", type=float)
    commands.add_parser("report")
    given = parser.parse_args()
    if given.command == "run":
        run(given.data, given.out, given.jobs, given.minutes)
        return
    for data in TARGETS:
        print(f"{data}, to a loss of {TARGETS[data]}\n\n{report(data)}\n")


if __name__ == "__main__":
    main()
