"""The law by which k is planned: the numbers and figures of docs/theory.md.

    python -m benchmarks.law                                   # print the tables of the page, which has them too
    python -m benchmarks.law --write                           # write them into the page and draw its figures
    python -m benchmarks.law --run digits-mlp --device cpu     # make the runs of a task again, into .bench/law.json

The first reads docs/results/data/law.json, which has of every run the rounds to four losses and, at some rounds, what
a controller can see. ``--run`` writes a file of the same form; FEMNIST and CIFAR-10 are read from GRADSIFT_DATA.
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

import gradsift
from benchmarks.common import KEPT, ROOT, write_json
from benchmarks.law_tasks import TASKS
from gradsift.control import planned
from gradsift.control.fixed import Fixed
from gradsift.control.law import EXPONENT
from gradsift.control.planned import RULE

Floats = NDArray[np.float64]
Part = dict[str, Any]  # of the file

DATA = ROOT / "docs/results/data/law.json"
FRACTIONS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0004)  # of D, the k of ``--run``
PARTS = (0.2, 0.35, 0.6, 1.0)  # of the rounds at the largest k: the targets are its losses then
AT = (1, 2, 3, 5, 8, 13, 20, 32, 50, 80, 125, 200, 320)  # rounds; signals are averaged from AT/1.25 to 1.25 AT
SEEN = (32, 80, 200)  # those in which the rule is tried
COMM_TIMES = (0.1, 1.0, 10.0, 100.0)  # at 1,000 the best k is below the smallest with a run in most tasks
SMOOTH = 21  # rounds over which a loss is averaged


# --- runs


@dataclass(frozen=True)
class Weighed(Fixed):
    """A fixed k whose rounds report what waits."""

    weighs: ClassVar[bool] = True


def smooth(losses: Sequence[float] | Floats) -> Floats:
    """The mean of ``SMOOTH`` rounds; the first is that around round SMOOTH // 2 + 1."""
    return np.convolve(losses, np.ones(SMOOTH) / SMOOTH, "valid")


def targets(losses: Sequence[float] | Floats) -> list[float]:
    """The mean loss of the last rounds of each of ``PARTS`` of a run."""
    ends = (max(SMOOTH, math.ceil(part * len(losses))) for part in PARTS)
    return [round(float(smooth(losses[:end])[-1]), 4) for end in ends]


def reached(losses: Sequence[float] | Floats, target: float) -> int | None:
    """The first round around which the mean loss is at most ``target``."""
    found = np.flatnonzero(smooth(losses) <= target + 5e-5)  # targets are rounded
    return int(found[0]) + SMOOTH // 2 + 1 if len(found) else None


def sampled(values: Sequence[float | None]) -> list[float | None]:
    """The median around each round of ``AT`` that the run has."""
    made: list[float | None] = []
    for number in AT:
        near = [v for v in values[math.ceil(number / 1.25) - 1 : int(1.25 * number)] if v is not None and v == v]
        made.append(float(f"{np.median(near):.4g}") if near and number <= len(values) else None)
    return made


def run(name: str, device: str, seed: int = 0, rounds: int | None = None) -> Part:
    """Make the runs of a task: fixed k, and the planned controller at comm_time 10 and 100."""
    task = TASKS[name]
    model, data = task.made(seed)
    dim = sum(parameter.numel() for parameter in model.parameters())

    def records(controller: gradsift.Controller[Any], count: float, comm_time: float = 10.0) -> list[Any]:
        return gradsift.simulate(
            task.made(seed)[0],
            nn.functional.cross_entropy,
            data,
            controller=controller,
            cost=gradsift.NormalizedTime(comm_time),
            lr=task.lr,
            rounds=int(count),
            device=device,
            seed=seed,
            eval_every=int(count),
            **{"batch_size": 32, **task.settings},
        ).records

    whole, wanted, runs, plans = rounds or task.rounds, list[float](), list[Part](), list[Part]()
    for k in sorted({max(1, round(part * dim)) for part in FRACTIONS}, reverse=True):
        made = records(Weighed(k), whole * min(3, 1 + 0.004 * dim / k) if runs else whole)
        losses = [record["train_loss"] for record in made]
        wanted = wanted or targets(losses)
        share = task.settings.get("clients_per_round", data.num_clients) / data.num_clients
        # Waiting in rounds, as the controller counts it.
        seen = {"waiting": sampled([record["waiting"] / share for record in made])}
        seen["agreement"] = sampled([record["agreement"] for record in made])
        runs.insert(0, {"k": k, "rounds": [reached(losses, target) for target in wanted], **seen})
        print(f"{name}: k = {k}, {len(made)} rounds, loss {losses[-1]:.3f}", flush=True)
    for comm_time in (10.0, 100.0):
        made = records(gradsift.controller("planned"), 3 * whole, comm_time)
        at = [reached([record["train_loss"] for record in made], target) for target in wanted]
        costs = [None if n is None else round(sum(record["round_cost"] for record in made[:n]), 1) for n in at]
        seen = {signal: sampled([record[signal] for record in made]) for signal in ("k", "c", "agreement")}
        plans.append({"comm_time": comm_time, "seed": seed, "rounds": at, "cost": costs, **seen})
    head = {"dim": dim, "clients": data.num_clients, "seed": seed, "targets": wanted}
    return {**head, "runs": runs, "planned": plans}


# --- the law and the rule


def rounds_by_k(task: Part, target: int | None = None) -> tuple[Floats, Floats]:
    """k and the rounds to a target; by default the lowest that five k reach, or all but one."""
    runs, enough = task["runs"], min(5, len(task["runs"]) - 1)
    for number in range(len(task["targets"]) - 1, -1, -1) if target is None else [target]:
        met = [(one["k"], one["rounds"][number]) for one in runs if one["rounds"][number] is not None]
        if len(met) >= enough or number == 0 or target is not None:
            break
    k, rounds = np.array(met, dtype=float).T
    return k, rounds


def fitted(k: Floats, rounds: Floats, exponent: float) -> tuple[float, float, float]:
    """R0, c and the rms of the logarithm."""
    grid = np.geomspace(1, 1e5, 1500)
    apart = np.log(rounds) - exponent * np.log1p(grid[:, None] / k)
    best = int(apart.std(axis=1).argmin())
    return float(np.exp(apart[best].mean())), float(grid[best]), float(apart[best].std())


class Rule(NamedTuple):
    """The constants of ``gradsift.control.planned``, or others."""

    waiting: float = RULE.waiting
    disagreement: float = RULE.disagreement
    exponent: float = EXPONENT
    growth: float = RULE.growth
    most: float = RULE.most

    def ratio(self, dim: int, number: int, k: Floats, waiting: Floats, agreement: Floats) -> Floats:
        """c/k by what is seen in a round."""
        del k
        scaled = self.waiting * 80 ** (self.growth - RULE.growth)  # other powers agree in round 80
        rule = planned.Rule(scaled, self.disagreement, self.growth, self.most)
        return rule.ratio(dim, number, waiting, agreement)


class Known(NamedTuple):
    """A c that nothing is measured for."""

    c: Callable[[int], float]
    exponent: float = EXPONENT

    def ratio(self, dim: int, number: int, k: Floats, waiting: Floats, agreement: Floats) -> Floats:
        """c/k."""
        del number, waiting, agreement
        return self.c(dim) / k


class Plans:
    """What a rule's k costs on one task, over the best k, by the runs with fixed k."""

    def __init__(self, task: Part, sweep: Part | None = None) -> None:
        k, rounds = rounds_by_k(sweep or task)
        if sweep is None:  # one seed: rounds that grow with k are taken for chance
            rounds = np.maximum.accumulate(rounds[::-1])[::-1]
        self.dim: int = task["dim"]
        self.k = np.geomspace(0.7 * k[0], min(2 * k[-1], self.dim), 250)
        self.rounds = np.exp(_line(np.log(k), np.log(rounds))(np.log(self.k), above=False))
        own = np.log([one["k"] for one in task["runs"]])
        self.seen = {}
        for number in SEEN:
            at = AT.index(number)
            waits = _line(own, np.log([one["waiting"][at] for one in task["runs"]]))(np.log(self.k))
            agrees = np.interp(np.log(self.k), own, [one["agreement"][at] for one in task["runs"]])
            self.seen[number] = (self.k, np.exp(waits), agrees)

    def cost(self, rule: Rule | Known) -> Floats:
        """[SEEN, COMM_TIMES] the cost at the smallest k at which less would not pay, over the lowest cost."""
        made = np.empty((len(SEEN), len(COMM_TIMES)))
        for row, number in enumerate(SEEN):
            ratio = rule.ratio(self.dim, number, *self.seen[number])
            slope = rule.exponent * ratio / (1 + ratio)  # of rounds, in ln k
            for column, comm_time in enumerate(COMM_TIMES):
                price = 1 + 2 * comm_time * self.k / self.dim
                pays = np.append(slope <= 1 - 1 / price, True)
                cost = price * self.rounds
                made[row, column] = cost[min(int(pays.argmax()), len(cost) - 1)] / cost.min()
        return made


def _line(x: Any, y: Any) -> Callable[..., Floats]:
    """Through the points, and straight on outside them."""

    def at(z: Floats, above: bool = True) -> Floats:
        first, last = (y[1] - y[0]) / (x[1] - x[0]), (y[-1] - y[-2]) / (x[-1] - x[-2])
        inner = np.interp(z, x, y) + first * np.minimum(0, z - x[0])
        return np.asarray(inner + above * last * np.maximum(0, z - x[-1]))

    return at


def plans(file: Part, role: str = "chosen on") -> dict[str, Plans]:
    """Of the tasks that constants were chosen on, or of the two that they were checked on."""
    names = [name for name, task in TASKS.items() if task.role == role]
    return {name: Plans(file["tasks"][name], file["sweeps"].get(name)) for name in names}


class Tried:
    """What each rule of a grid of constants costs on the tasks that constants were chosen on."""

    def __init__(self, file: Part) -> None:
        grid = itertools.product(np.geomspace(2, 20, 13).tolist(), (0, 1.5, 3, 6), (0.6, 0.7, 0.8, 1))
        self.rules, tasks = [Rule(a, d, p) for a, d, p in grid], plans(file)
        self.names = list(tasks)
        self.costs = np.array([[task.cost(rule) for task in tasks.values()] for rule in self.rules])
        self.errors = (np.log(self.costs) ** 2).mean(axis=(2, 3))  # [rules, tasks]

    def best(self, chosen_on: Callable[[str], bool]) -> int:
        """The number of the rule that is best on these tasks."""
        columns = [number for number, name in enumerate(self.names) if chosen_on(name)]
        return int(self.errors[:, columns].sum(axis=1).argmin())

    def left_out(self) -> dict[str, Floats]:
        """Each task by the constants that are best on all the others."""
        best = (self.best(lambda other, name=name: other != name) for name in self.names)  # type: ignore[misc]
        return {
            name: self.costs[rule, column] for column, (name, rule) in enumerate(zip(self.names, best, strict=True))
        }


def main() -> None:
    from benchmarks import law_report

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/theory.md and its figures")
    parser.add_argument("--run", nargs="+", choices=TASKS, metavar="TASK", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, help="at the largest k, if not those of the task")
    parser.add_argument("--out", type=Path, default=KEPT / "law.json", help="where --run adds its tasks")
    given = parser.parse_args()
    if given.run:
        made: Part = {"at": AT, "parts": PARTS, "tasks": {}, "sweeps": {}}
        if given.out.exists():
            made = json.loads(given.out.read_text())
        for name in given.run:
            made["tasks"][name] = run(name, given.device, given.seed, given.rounds)
            write_json(given.out, made)
        print(law_report.fits(made))
        print(law_report.judged(made))
        return
    file = json.loads(DATA.read_text())
    for name, make in law_report.TABLES.items():
        print(f"{name}\n\n{make(file)}\n")
    if given.write:
        law_report.write(file)


if __name__ == "__main__":
    main()
