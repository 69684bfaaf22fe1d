"""Cost "measured-time": the seconds of the exchange that brings the uploads, and of nothing else."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord

from gradsift import Controller, GradsiftError, MeasuredTime, Money, Observation, Proposal, WeightedSum
from gradsift.flower import SparseStrategy
from gradsift.flower.protocol import RECORD
from tests.flower.grid import LocalGrid
from tests.flower.ledger import app, arrays, end, model, play, strategy_of

CLIENTS = 3
UPLOADS, HELLO, EVALUATION, ELSE = 7.0, 1000.0, 2000.0, 4000.0


class Clock:
    """Says what it is told to."""

    def __init__(self, now: float = 12345.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class SlowGrid(LocalGrid):
    """Every exchange takes its time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(app, CLIENTS)
        self.clock, self.uploads = clock, UPLOADS

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        acts = {message.content.config_records[RECORD]["act"] for message in messages}
        took = {"hello": HELLO, "train": self.uploads, "evaluate": EVALUATION}
        self.clock.now += max((took[str(act)] for act in acts), default=0.0)
        return super().send_and_receive(messages, timeout=timeout)


class Timed(Controller[list[list[float]]]):
    """A k for each round that depends on its number; remembers the cost of every round."""

    name = "timed"

    def init(self, dim: int, seed: int = 0) -> list[list[float]]:
        del dim, seed
        return []

    def propose(self, state: list[list[float]], number: int) -> Proposal:
        del state
        return Proposal(number, 2.0 + number % 3)

    def update(self, state: list[list[float]], seen: Observation) -> list[list[float]]:
        return [*state, [seen.proposal.number, seen.cost]]


def timed(clock: Clock, **options: Any) -> SparseStrategy:
    strategy = strategy_of(**{"cost": "measured-time", "fraction_evaluate": 1.0, **options})
    strategy._clock = clock
    return strategy


def costs(strategy: SparseStrategy) -> list[float]:
    return [record["round_cost"] for record in strategy.records]


def test_a_round_costs_the_seconds_until_its_uploads_are_here() -> None:
    """Not the hello, not the evaluation, not what the server does between exchanges."""
    clock = Clock()
    strategy, grid = timed(clock), SlowGrid(clock)
    for number, uploads in enumerate((7.0, 8.5, 0.25), start=1):
        grid.uploads = uploads
        play(strategy, grid, number)
        clock.now += ELSE
    assert costs(strategy) == [7.0, 8.5, 0.25]
    assert strategy.records[-1]["cost"] == strategy.rounds.server.spent == 15.75


def test_replies_that_come_one_by_one_are_waited_for() -> None:
    clock = Clock()
    strategy, grid = timed(clock), SlowGrid(clock)
    replies = grid.send_and_receive(strategy.configure_train(1, arrays(), ConfigRecord(), grid))

    def one_by_one() -> Iterable[Message]:
        for reply in replies:
            clock.now += 1.0
            yield reply

    strategy.aggregate_train(1, one_by_one())
    assert costs(strategy) == [UPLOADS + CLIENTS]


def test_the_controller_sees_the_seconds_a_round_late() -> None:
    clock = Clock()
    strategy, grid = timed(clock, controller=Timed()), SlowGrid(clock)
    for number in range(1, 5):
        grid.uploads = 10.0 * number
        play(strategy, grid, number)
    assert strategy.rounds.server.control == [[1, 10.0], [2, 20.0], [3, 30.0]]


def test_a_round_in_which_nobody_answers_still_takes_its_time() -> None:
    def run(cost: Any) -> list[float]:
        clock = Clock()
        strategy, grid = timed(clock, cost=cost, fraction_evaluate=0), SlowGrid(clock)
        play(strategy, grid, 1)
        grid.uploads, grid.faults = 3600.0, lambda *_: "lost"
        play(strategy, grid, 2)
        assert strategy.rounds.server.spent == sum(costs(strategy))
        return costs(strategy)

    assert run("measured-time") == [7.0, 3600.0]
    assert run(WeightedSum((0.5, MeasuredTime()), (2.0, Money(up=0.0, down=0.0, compute=1.0)))) == [9.5, 1800.0]
    assert run(Money(up=0.0, down=0.0, compute=1.0)) == [3.0, 0.0]


@pytest.mark.parametrize("asked", [False, True])
def test_the_time_between_two_servers_is_not_counted(asked: bool, tmp_path: Path) -> None:
    """With ``asked`` the first server ends while it waits for the uploads of round 3; its clock is not the second's."""
    how: dict[str, Any] = {"out": tmp_path / "run", "controller": Timed()}
    clock = Clock()
    strategy, grid = timed(clock, **how), SlowGrid(clock)
    play(strategy, grid, 1)
    play(strategy, grid, 2)
    if asked:
        grid.send_and_receive(strategy.configure_train(3, arrays(), ConfigRecord(), grid))
    end(strategy)
    grid.clock = clock = Clock(3.0)
    strategy = timed(clock, **how)
    play(strategy, grid, 3)
    play(strategy, grid, 4)
    end(strategy)
    assert costs(strategy) == [UPLOADS] * 4
    assert strategy.rounds.server.control == [[1, UPLOADS], [2, UPLOADS], [3, UPLOADS]]


def test_the_clock_is_monotonic_and_changes_nothing_else() -> None:
    """Without a clock of its own, a strategy measures real seconds; the weights are the same as with any other cost."""
    grids = [LocalGrid(app, CLIENTS) for _ in range(2)]
    measured, other = strategy_of(cost="measured-time"), strategy_of()
    for number in range(1, 4):
        play(measured, grids[0], number)
        play(other, grids[1], number)
    assert all(0 < cost < 60 for cost in costs(measured))
    assert torch.equal(measured.rounds.weights, other.rounds.weights)


def test_a_whole_run_by_start() -> None:
    clock = Clock()
    strategy, grid = timed(clock), SlowGrid(clock)
    strategy.start(grid, arrays(), num_rounds=3, evaluate_fn=lambda *_: MetricRecord({"loss": 1.0}))
    assert costs(strategy) == [UPLOADS] * 3


@pytest.mark.parametrize("controller", ["sign", "extended-sign", "value"])
@pytest.mark.parametrize("cost", ["measured-time", WeightedSum((1.0, MeasuredTime()), (2.0, Money(1.0, 1.0)))])
def test_a_controller_that_probes_is_refused(controller: str, cost: Any) -> None:
    said = rf"controller '{controller}' compares .* MeasuredTime\(\).* use controller 'planned', or cost 'link-time'"
    with pytest.raises(GradsiftError, match=said):
        strategy_of(cost=cost, controller=controller, k=None)


@pytest.mark.parametrize("cost", ["measured-time", WeightedSum((1.0, MeasuredTime()), (0.0, Money(1.0, 1.0)))])
def test_the_default_learns_what_rounds_cost_from_the_seconds(cost: Any) -> None:
    """There are no prices: k varies, so that what sending costs can be told, and falls where it costs more."""

    def run(seconds: float) -> list[int]:
        clock = Clock()
        strategy = SparseStrategy(model(), cost=cost, fraction_evaluate=0, lr=0.5)
        strategy._clock, grid = clock, SlowGrid(clock)
        for number in range(1, 31):
            grid.uploads = 1.0
            messages = strategy.configure_train(number, arrays(), ConfigRecord(), grid)
            grid.uploads += seconds * strategy.rounds.plan().rnd.k
            strategy.aggregate_train(number, grid.send_and_receive(messages))
        control = strategy.rounds.server.control
        assert control["prices"] is None
        assert [cost for _, cost in control["seen"]["seen"]] == costs(strategy)[:-1]  # a round late
        return [record["used_k"] for record in strategy.records]

    cheap, dear = run(0.01), run(10.0)
    assert cheap[:4] == dear[:4]  # before anything can be told
    assert len(set(cheap[:4])) > 1
    assert sum(dear[10:]) < sum(cheap[10:]) / 2


def test_a_second_exchange_is_refused() -> None:
    with pytest.raises(GradsiftError, match=r"MeasuredTime\(\) needs exchanges=1"):
        strategy_of(cost="measured-time", exchanges=2)
