"""A run that continues another: the same controller, the same counts, nothing seen twice and nothing forgotten."""

import copy
import json
import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from gradsift import GradsiftError, LinkTime, LocalSteps
from gradsift.control import Observation
from gradsift.flower import SparseStrategy
from gradsift.flower.rounds import Rounds
from tests.flower.grid import LocalGrid, node_of
from tests.flower.ledger import (
    Books,
    app,
    arrays,
    catch_up,
    computed,
    end,
    go_back,
    model,
    play,
    state_of,
    strategy_of,
)

CLIENTS = 3


def train(strategy: SparseStrategy, grid: LocalGrid, number: int) -> None:
    """The first half of a round: the server ends before the second."""
    messages = strategy.configure_train(number, arrays(), ConfigRecord(), grid)
    strategy.aggregate_train(number, grid.send_and_receive(messages))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float | None]]:
    """The rounds that a controller was told of, and the loss after each."""
    told: list[tuple[int, float | None]] = []
    observe = Rounds.observe

    def written(rounds: Rounds, losses: Sequence[tuple[float, ...]], *others: Any) -> Observation | None:
        observation = observe(rounds, losses, *others)
        if observation is not None:
            told.append((observation.proposal.number, observation.loss_after))
        return observation

    monkeypatch.setattr(Rounds, "observe", written)
    return told


@pytest.mark.parametrize("probed", [False, True])
def test_a_server_that_ends_between_two_exchanges_asks_again(
    probed: bool, tmp_path: Path, seen: list[tuple[int, float | None]], caplog: pytest.LogCaptureFixture
) -> None:
    """With ``probed`` the clients have answered the second exchange already, and nobody was there to hear it."""
    how: dict[str, Any] = {"controller": "sign", "exchanges": 2}
    whole, grid = strategy_of(**how), LocalGrid(app, CLIENTS)
    for number in range(1, 6):
        play(whole, grid, number)
    expected, control = list(seen), whole.rounds.server.control
    assert [number for number, _ in expected] == [1, 2, 3, 4, 5]
    assert all(loss is not None for _, loss in expected)

    seen.clear()
    how["out"] = tmp_path / "run"
    strategy, grid = strategy_of(**how), LocalGrid(app, CLIENTS)
    play(strategy, grid, 1)
    play(strategy, grid, 2)
    train(strategy, grid, 3)
    if probed:
        grid.send_and_receive(strategy.configure_evaluate(3, arrays(), ConfigRecord(), grid))
    end(strategy)
    strategy = strategy_of(**how)
    with caplog.at_level(logging.INFO, "flwr"):
        play(strategy, grid, 4)
    assert "asking 3 clients again for the losses of round 3" in caplog.text
    play(strategy, grid, 5)
    end(strategy)
    assert seen == expected
    assert strategy.rounds.server.control == control
    assert torch.equal(strategy.rounds.weights, whole.rounds.weights)
    # What it takes to ask again is counted in the record of the round.
    assert strategy.records[2]["down_bytes"] == pytest.approx(whole.records[2]["down_bytes"], rel=0.05)
    assert strategy.records[2]["up_bytes"] == pytest.approx(whole.records[2]["up_bytes"], rel=0.05)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 7}, "made with seed 0, not 7"),
    "exchanges": ({"exchanges": 2}, "made with exchanges 1, not 2"),
    "values": ({"values": "float16"}, r"made with values Exact\(\), not Float16\(\)"),
    "local": ({"local": LocalSteps(2)}, r"made with local OneGradient\(\), not LocalSteps\(steps=2, "),
    "down_values": ({"down_values": "float16"}, r"made with down_values Exact\(\), not Float16\(\)"),
    "server": ({"server": "momentum"}, r"made with server SGD\(rate=1.0\), not Momentum\("),
    "sparsifier": ({"sparsifier": "periodic-k"}, r"made with sparsifier FabTopK\(\), not PeriodicK\(\)"),
    "controller": ({"controller": "exp3"}, r"made with controller ExtendedSign\(.*\), not Exp3\("),
    "k": ({"k": 4}, r"made with controller Fixed\(k=3\), not Fixed\(k=4\)"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_may_not_change_is_refused_with_both_values(what: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    how: dict[str, Any] = {"out": out, "controller": "extended-sign"}
    grid = LocalGrid(lambda: app(probe=False), CLIENTS)
    strategy_of(**how).start(grid, arrays(), num_rounds=1)
    with open(out / "records.jsonl", "ab") as file:
        file.write(b'{"round": 2, "cut')  # which whoever continues removes, and nobody else
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    other, said = OTHERS[what]
    with pytest.raises(GradsiftError, match=said):
        strategy_of(**{**how, **other}).start(grid, arrays(), num_rounds=9)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    strategy = strategy_of(**how)
    strategy.start(grid, arrays(), num_rounds=2)
    assert [record["round"] for record in strategy.records] == [1, 2]


def test_other_types_of_weights_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    strategy_of(out=out).start(LocalGrid(app, CLIENTS), arrays(), num_rounds=1)
    single = SparseStrategy(model().float(), controller="fixed", k=3, out=out)
    with pytest.raises(GradsiftError, match="made with dtype of weight float64, not float32"):
        play(single, LocalGrid(app, CLIENTS))


def test_another_rate_or_cost_is_taken_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out, grid = tmp_path / "run", LocalGrid(app, CLIENTS)

    def go_on(rounds: int, **options: Any) -> None:
        strategy_of(out=out, **options).start(grid, arrays(), num_rounds=rounds)

    def halved(number: int) -> float:
        return 0.5 / number

    go_on(1, lr=halved)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "flwr"):
        go_on(2, lr=halved)
        assert "is now" not in caplog.text
        go_on(3, lr=0.25, cost=LinkTime(up_bandwidth=1.0, down_bandwidth=1.0), encoded_bytes=False)
    assert re.search(r"lr is now Constant\(lr=0\.25\); it was .*halved up to round 2", caplog.text)
    assert "cost is now LinkTime" in caplog.text
    assert "encoded_bytes is now False; it was True up to round 2" in caplog.text
    config = json.loads((out / "config.json").read_text())
    assert (config["lr"]["lr"], config["cost"]["class"]) == (0.25, "LinkTime")
    assert (config["settings"]["encoded_bytes"], config["stop"]["rounds"]) == (False, 3)


def test_the_rounds_of_a_result_go_on(tmp_path: Path) -> None:
    grid = LocalGrid(app, CLIENTS)

    def evaluate(number: int, record: ArrayRecord) -> MetricRecord:
        del record
        return MetricRecord({"number": number})

    how: dict[str, Any] = {"out": tmp_path / "run", "fraction_evaluate": 1.0}

    def tamper(reply: Any) -> list[Any]:
        if "metrics" in reply.content:
            reply.content["metrics"]["x"] = 1.0
        return [reply]

    grid.tamper = tamper
    strategy_of(**how).start(grid, arrays(), num_rounds=2)
    result = strategy_of(**how).start(grid, arrays(), num_rounds=4, evaluate_fn=evaluate)
    assert {n: record["gradsift-round"] for n, record in result.train_metrics_clientapp.items()} == {3: 3, 4: 4}
    assert list(result.evaluate_metrics_clientapp) == [3, 4]
    assert {n: record["number"] for n, record in result.evaluate_metrics_serverapp.items()} == {2: 2, 3: 3, 4: 4}


def test_an_upload_of_a_run_that_the_client_has_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client falls back to a state of another run that has higher rounds than those since taken from it."""
    out, grid, books = tmp_path / "run", LocalGrid(app, CLIENTS), Books(monkeypatch)
    strategy = strategy_of(out=out)
    for number in range(1, 3):
        play(strategy, grid, number)
    shutil.copytree(out, tmp_path / "old")
    for number in range(3, 9):
        play(strategy, grid, number)
    forgotten = copy.deepcopy(grid.context(1))  # uploaded in round 8 of the first run
    end(strategy)
    go_back(out, tmp_path / "old")
    strategy = strategy_of(out=out)  # rounds 3 to 5, again, by another run
    for number in range(3, 6):
        play(strategy, grid, number)
    grid.contexts[node_of(1)] = forgotten
    before = computed(grid, 1)
    books.delivered.clear()
    records = [play(strategy, grid, number) for number in range(6, 9)]
    assert sum(record["resets"] for record in records) == 1
    catch_up(strategy, grid)
    end(strategy)
    kept = state_of(strategy, grid, 1)
    assert kept is not None
    # What it had at the time may have been taken since, and was given up; all since is taken or still there.
    assert torch.equal(books.total(1) + kept.residual, computed(grid, 1) - before)


def test_a_server_that_goes_back_over_two_runs(tmp_path: Path) -> None:
    """The clients know both runs: their residuals are right, and kept."""
    out, grid = tmp_path / "run", LocalGrid(app, CLIENTS)
    strategy = strategy_of(out=out)
    for number in range(1, 4):
        play(strategy, grid, number)
    shutil.copytree(out, tmp_path / "old")
    for first in (4, 7):
        for number in range(first, first + 3):
            play(strategy, grid, number)
        end(strategy)
        strategy = strategy_of(out=out)
    go_back(out, tmp_path / "old")
    strategy = strategy_of(out=out)
    assert [play(strategy, grid, number)["resets"] for number in range(4, 7)] == [0, 0, 0]
    end(strategy)
