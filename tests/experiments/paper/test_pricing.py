"""Every sequence of k under every clock, against numbers worked out one by one from the runs' records."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradsift.experiments.paper import pricing
from gradsift.experiments.paper.figures import COMM_TIMES, PRICES, energy, fig7
from gradsift.experiments.paper.methods import Family, families
from gradsift.experiments.store import Store
from gradsift.experiments.work import as_jobs, work
from gradsift.report.summary import Spread
from tests.experiments.tiny import TINY, records

DIM, CLIENTS = 4810, 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    place = tmp_path_factory.mktemp("runs")
    experiments = [e for seed in range(2) for figure in (fig7, energy) for e in figure(TINY, seed)]
    assert work(as_jobs(experiments), place, quiet=True) == "done"
    return Store(place, place / "results", [])


def found(store: Store, figure: Any) -> list[Family]:
    return families(store, [e for seed in range(2) for e in figure(TINY, seed)])


def lines(store: Store, comm_time: float, seed: int) -> list[dict[str, Any]]:
    name = f"digits-fab-top-k-extended-sign-comm{comm_time:g}-seed{seed}"
    return [json.loads(line) for line in records(Path(store.runs) / name)]


def slow_loss_at(rounds: list[dict[str, Any]], comm_time: float, cost: float, start: float) -> float:
    """Walk through the rounds, adding up what each costs, to the line between the evaluations around ``cost``."""
    spent, before = 0.0, (0.0, start)
    for one in rounds:
        spent += 1 + comm_time * (one["up_elements"] + one["down_elements"]) / DIM
        if one["global_loss"] is None:
            continue
        if spent >= cost * (1 - 1e-12):
            part = (cost - before[0]) / (spent - before[0])
            return float(before[1] + part * (one["global_loss"] - before[1]))
        before = (spent, one["global_loss"])
    raise AssertionError("the run is too short")


def test_every_sequence_under_every_communication_time(store: Store) -> None:
    names, table = pricing.matrix(found(store, fig7))
    assert len(table) == 16
    runs = {(x, seed): lines(store, x, seed) for x in COMM_TIMES for seed in range(2)}
    starts = [
        json.loads(path.read_text())["start"]["global_loss"]
        for path in sorted(store.runs.glob("*comm10-*/config.json"))
    ]
    for y_number, y in enumerate(COMM_TIMES):
        ends = [sum(1 + y * (r["up_elements"] + r["down_elements"]) / DIM for r in run) for run in runs.values()]
        block = table[4 * y_number : 4 * y_number + 4]
        wins = [0, 0, 0, 0]
        for seed in range(2):
            losses = [slow_loss_at(runs[x, seed], y, min(ends), starts[seed]) for x in COMM_TIMES]
            wins = [count + (loss == min(losses)) for count, loss in zip(wins, losses, strict=True)]  # ties win too
            for line, loss in zip(block, losses, strict=True):
                spread = line[names.index("Loss")]
                assert isinstance(spread, Spread)
                assert spread.values[seed] == pytest.approx(loss, rel=1e-9)
        for line, won in zip(block, wins, strict=True):
            assert line[0] == f"{y:g}"
            assert line[names.index("At cost")] == pytest.approx(min(ends))
            assert line[names.index("Seeds in which it is best")] == f"{won} of 2"


def test_what_saving_energy_saves(store: Store) -> None:
    made = found(store, energy)
    _, table = pricing.savings(made, "energy")
    target = max(float(t.loss.min()) for _, seeds in made for t in seeds)
    rates = PRICES["energy"]
    for number, (_, seeds) in enumerate(made):
        for place, t in enumerate(seeds):
            spent, before, reached = 0.0, (0.0, float(t.loss[0])), None
            for m in range(t.rounds):
                spent += CLIENTS * (rates["compute"] + 8 * (rates["up"] * t.up[m] + rates["down"] * t.down[m]))
                if m + 1 in t.evaluated and reached is None:
                    loss = float(t.loss[t.evaluated.tolist().index(m + 1)])
                    if loss <= target:
                        reached = before[0] + (spent - before[0]) * (before[1] - target) / (before[1] - loss)
                    before = (spent, loss)
            spread = table[number][1]
            assert isinstance(spread, Spread)
            assert spread.values[place] == pytest.approx(reached, rel=1e-9)
    ratio = table[1][2]
    assert isinstance(ratio, Spread)
    assert ratio.values == (1.0, 1.0)


def test_a_seed_that_is_missing_is_said(store: Store) -> None:
    made = found(store, fig7)
    made[1] = (made[1][0], made[1][1][:1])
    names, table = pricing.matrix(made)
    assert {line[names.index("Seeds in which it is best")] for line in table} == {"seeds are missing"}
