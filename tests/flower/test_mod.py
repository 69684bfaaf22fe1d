"""The mod around ordinary train functions: what they are given, what is made of what they return, what is kept."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import message_size_mod
from torch import Tensor, nn

from gradsift import LocalSteps
from gradsift.flower import GradientTask, SparseMod, SparseStrategy, gradient_app
from gradsift.flower.client_state import Store
from gradsift.flower.protocol import BUFFERS, RECORD
from gradsift.wire import Limits, decode
from tests.flower.grid import Fault, LocalGrid, node_of

Change = Callable[[dict[str, Tensor], Context], dict[str, Tensor]]
CLIENTS = 3


def ordinary(change: Change, *more: Any) -> Callable[[], ClientApp]:
    """A ClientApp that knows nothing of gradsift but its mod."""

    def make() -> ClientApp:
        app = ClientApp(mods=[*more, SparseMod()])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            given = dict(message.content.array_records["arrays"].to_torch_state_dict())
            returned = change(given, context)
            metrics = MetricRecord({"num-examples": 1, "seen": int(str(message.content.config_records["config"]["x"]))})
            return Message(RecordDict({"arrays": ArrayRecord(returned), "metrics": metrics}), reply_to=message)

        return app

    return make


def round_of(
    strategy: SparseStrategy, grid: LocalGrid, model: nn.Module, number: int = 1
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    messages = strategy.configure_train(number, ArrayRecord(model.state_dict()), ConfigRecord({"x": 5}), grid)
    return strategy.aggregate_train(number, grid.send_and_receive(messages))


def state(strategy: SparseStrategy, grid: LocalGrid, client: int = 0) -> Any:
    found = Store(grid.context(client), strategy._log.experiment, str(client), None).load()
    assert found is not None
    return found


def halved(given: dict[str, Tensor], context: Context) -> dict[str, Tensor]:
    del context
    return {name: value / 2 if value.is_floating_point() else value for name, value in given.items()}


def test_received_minus_returned_is_the_gradient() -> None:
    model = nn.Linear(3, 2).double()
    strategy, grid = SparseStrategy(model, k=2, fraction_evaluate=0), LocalGrid(ordinary(halved), CLIENTS)
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    _, metrics = round_of(strategy, grid, model)
    assert metrics is not None
    assert metrics["seen"] == 5  # the user's own configuration and metrics go through
    torch.testing.assert_close(state(strategy, grid).residual, start / 2, rtol=0, atol=1e-15)
    largest = start.abs().topk(2).indices
    want = start.clone()
    want[largest] /= 2
    torch.testing.assert_close(strategy.rounds.weights, want, rtol=0, atol=1e-15)
    round_of(strategy, grid, model, 2)
    torch.testing.assert_close(state(strategy, grid).weights, want, rtol=0, atol=1e-15)
    left = start / 2
    left[largest] = 0
    torch.testing.assert_close(state(strategy, grid).residual, left + want / 2, rtol=0, atol=1e-15)


def test_a_tied_parameter_counts_once_and_a_frozen_one_not_at_all() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3, bias=False)
            self.other = nn.Linear(3, 3, bias=False)
            self.other.weight = self.one.weight
            self.frozen = nn.Linear(3, 1).requires_grad_(False)

    model, given = Tied(), []

    def change(received: dict[str, Tensor], context: Context) -> dict[str, Tensor]:
        del context
        given.append(received)
        return {**received, "one.weight": received["one.weight"] - 1, "other.weight": received["other.weight"] - 1}

    strategy, grid = SparseStrategy(model, k=9, fraction_evaluate=0), LocalGrid(ordinary(change), CLIENTS)
    new, _ = round_of(strategy, grid, model)
    assert new is not None
    after = new.to_torch_state_dict()
    assert list(given[0]) == list(after)
    assert set(after) == set(model.state_dict())
    torch.testing.assert_close(after["one.weight"], model.one.weight.detach() - 1)
    assert torch.equal(after["other.weight"], after["one.weight"])
    assert torch.equal(after["frozen.weight"], model.frozen.weight)
    model.load_state_dict(after)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("constant", torch.arange(3.0))


def moving(given: dict[str, Tensor], context: Context) -> dict[str, Tensor]:
    client = int(context.node_config["partition-id"])
    return {
        **given,
        "norm.running_mean": given["norm.running_mean"] + client,
        "norm.num_batches_tracked": given["norm.num_batches_tracked"] + client,
    }


def test_buffers_that_move_are_refused_by_name() -> None:
    model = Normed()
    strategy, grid = SparseStrategy(model, fraction_evaluate=0), LocalGrid(ordinary(moving), CLIENTS)
    round_of(strategy, grid, model)
    assert [refusal.client for refusal in strategy.refused] == [1, 2]  # those of client 0 did not move
    assert "norm.num_batches_tracked, norm.running_mean changed in training" in strategy.refused[0].reason
    assert "buffers='average'" in strategy.refused[0].reason


def test_buffers_are_averaged_and_sent() -> None:
    model = Normed()
    strategy = SparseStrategy(model, buffers="average", fraction_evaluate=0)
    grid = LocalGrid(ordinary(moving), CLIENTS)
    for number in (1, 2):
        new, _ = round_of(strategy, grid, model, number)
        assert new is not None
        after = new.to_torch_state_dict()
        torch.testing.assert_close(after["norm.running_mean"], torch.full((3,), float(number)))
        assert int(after["norm.num_batches_tracked"]) == 2 * number
        assert torch.equal(after["constant"], torch.arange(3.0))
    assert strategy.refused == []
    round_of(strategy, grid, model, 3)
    torch.testing.assert_close(state(strategy, grid).non_trainable["norm.running_mean"], torch.full((3,), 2.0))


class Periods:
    """Rounds of FedAvg with an exchange in every third one; each training adds the client's number to the buffers."""

    def __init__(self, out: Path | None = None) -> None:
        self.model, self.out = Normed(), out
        self.given: dict[int, float] = {}  # client -> its running mean, in the last round
        self.grid = LocalGrid(ordinary(self.change), CLIENTS)
        self.start()

    def start(self) -> None:
        """A server that starts or goes on."""
        self.strategy = SparseStrategy(
            self.model, sparsifier="fedavg", k=3, buffers="average", out=self.out, fraction_evaluate=0
        )

    def change(self, given: dict[str, Tensor], context: Context) -> dict[str, Tensor]:
        self.given[int(context.node_config["partition-id"])] = float(given["norm.running_mean"][0])
        return moving(given, context)

    def ask(self, faults: dict[int, Fault] | None = None) -> list[Message]:
        """The first half of a round: the replies, which the server has not seen yet."""
        self.given.clear()
        self.grid.faults = lambda node, _: (faults or {}).get(node - node_of(0), "")
        arrays = ArrayRecord(self.model.state_dict())
        messages = list(self.strategy.configure_train(1, arrays, ConfigRecord({"x": 5}), self.grid))
        self.sent = {m.metadata.dst_node_id - node_of(0) for m in messages if BUFFERS in m.content}
        return self.grid.send_and_receive(messages)

    def play(self, **faults: Fault) -> tuple[dict[int, float], set[int]]:
        """A round: the running means that the clients trained from, and the clients that buffers were sent to."""
        self.strategy.aggregate_train(1, self.ask({int(client[1:]): fault for client, fault in faults.items()}))
        return dict(self.given), self.sent

    @property
    def mean(self) -> float:
        """The server's."""
        return float(self.strategy.rounds.non_trainable["norm.running_mean"][0])


def test_between_exchanges_each_client_keeps_its_buffers() -> None:
    run = Periods()
    assert run.play() == ({0: 0, 1: 0, 2: 0}, set())
    assert run.play(c2="reply lost") == ({0: 0, 1: 1, 2: 2}, set())
    assert run.mean == 0
    # Client 1 misses the exchange: what it has of its own is not taken into the next period.
    assert run.play(c1="lost") == ({0: 0, 2: 4}, set())
    assert run.mean == 3  # of 0 and 6
    # The server cannot know that client 2 has its buffers, and sends them again; the client's own are newer.
    assert run.play(c2="reply lost") == ({0: 3, 1: 3, 2: 3}, {0, 1, 2})
    assert run.play() == ({0: 3, 1: 4, 2: 5}, {2})
    # Nobody answers in the exchange.
    assert run.play(c0="lost", c1="lost", c2="reply lost") == ({2: 7}, set())
    assert run.mean == 3
    assert run.play() == ({0: 3, 1: 3, 2: 3}, {0, 1, 2})
    assert run.play() == ({0: 3, 1: 4, 2: 5}, set())
    assert run.play() == ({0: 3, 1: 5, 2: 7}, set())
    assert run.mean == 6  # of 3, 6 and 9


def test_orders_of_a_period_that_come_twice_are_answered_with_the_same_buffers() -> None:
    run = Periods()
    for number in (1, 2, 3):
        first = run.ask()
        messages = run.grid.sent[-CLIENTS:]
        run.given.clear()
        again = run.grid.send_and_receive(messages)
        assert run.given == {}
        assert [reply.content for reply in first] == [reply.content for reply in again]
        assert {BUFFERS in reply.content for reply in again[1:]} == {number == 3}
        run.strategy.aggregate_train(1, again)
    assert run.mean == 3


def test_buffers_in_a_round_without_an_exchange_are_refused() -> None:
    run = Periods()
    run.play()
    replies = run.ask()
    replies[1].content[BUFFERS] = ArrayRecord({"norm.running_mean": torch.ones(3)})
    run.strategy.aggregate_train(1, replies)
    (refusal,) = run.strategy.refused
    assert (refusal.client, refusal.reason) == (1, "it sent buffers in a round without an exchange")
    assert run.mean == 0


def test_buffers_of_a_period_when_the_server_is_killed_before_it_merges(tmp_path: Path) -> None:
    """As the gradients of that training stay in the residual, its buffers stay."""
    run = Periods(tmp_path / "run")
    run.play()
    run.play()
    run.ask()
    assert run.given == {0: 0, 1: 2, 2: 4}
    run.strategy._log.close()
    run.start()
    assert run.play()[0] == {0: 0, 1: 3, 2: 6}
    assert run.mean == 4  # of 0, 4 and 8
    assert run.play() == ({0: 4, 1: 4, 2: 4}, {0, 1, 2})
    run.strategy._log.close()


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.body(x))
        return out


def small_task(context: Context) -> GradientTask:
    draw = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    x, y = 5 + torch.randn(20, 4, generator=draw), torch.randint(3, (20,), generator=draw)
    return GradientTask(Small(), nn.CrossEntropyLoss(), x, y, batch_size=8)


@pytest.mark.parametrize("keys", [{}, {"arrayrecord_key": "weights", "configrecord_key": "how"}])
def test_buffers_of_the_papers_round_are_refused_or_averaged(keys: dict[str, str]) -> None:
    torch.manual_seed(0)
    model = Small()
    start = ArrayRecord(model.state_dict())
    grid = LocalGrid(lambda: gradient_app(small_task), CLIENTS)
    strategy = SparseStrategy(model, fraction_evaluate=0, **keys)  # type: ignore[arg-type]
    strategy.start(grid, start, num_rounds=1)
    assert len(strategy.refused) == CLIENTS
    for refusal in strategy.refused:
        assert "norm.num_batches_tracked, norm.running_mean, norm.running_var changed in training" in refusal.reason

    grid = LocalGrid(lambda: gradient_app(small_task), CLIENTS)
    strategy = SparseStrategy(model, buffers="average", fraction_evaluate=1.0, **keys)  # type: ignore[arg-type]
    after = strategy.start(grid, start, num_rounds=2).arrays.to_torch_state_dict()
    assert strategy.refused == []
    assert int(after["norm.num_batches_tracked"]) == 2
    assert all(after["norm.running_mean"] != start.to_torch_state_dict()["norm.running_mean"])


def test_a_gradient_without_the_buffers_is_refused_by_name() -> None:
    def make() -> ClientApp:
        app = ClientApp(mods=[SparseMod()])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            del context
            given = message.content.array_records["arrays"].to_torch_state_dict()
            gradient = {name: given[name] for name in ("body.weight", "body.bias", "norm.weight", "norm.bias")}
            metrics = MetricRecord({"num-examples": 1})
            return Message(RecordDict({"gradient": ArrayRecord(gradient), "metrics": metrics}), reply_to=message)

        return app

    model = Normed()
    strategy = SparseStrategy(model, buffers="average", fraction_evaluate=0)
    round_of(strategy, LocalGrid(make, CLIENTS), model)
    assert len(strategy.refused) == CLIENTS
    assert "did not return constant, norm.num_batches_tracked, norm.running_mean" in strategy.refused[0].reason
    assert "in 'arrays'" in strategy.refused[0].reason


def test_the_names_of_the_records_are_the_servers() -> None:
    given: list[set[str]] = []

    def make() -> ClientApp:
        app = ClientApp(mods=[SparseMod()])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            del context
            given.append(set(message.content))
            assert message.content.config_records["how"]["x"] == 5
            content = {"weights": message.content["weights"], "metrics": MetricRecord({"num-examples": 1})}
            return Message(RecordDict(content), reply_to=message)

        return app

    model = nn.Linear(3, 2)
    strategy = SparseStrategy(model, fraction_evaluate=0, arrayrecord_key="weights", configrecord_key="how")
    round_of(strategy, LocalGrid(make, CLIENTS), model)
    assert strategy.refused == []
    assert given == [{"weights", "how"}] * CLIENTS


def test_half_precision_is_kept_in_full_between_the_rounds() -> None:
    model = nn.Linear(4, 1).half()

    def change(given: dict[str, Tensor], context: Context) -> dict[str, Tensor]:
        del context
        assert given["weight"].dtype == torch.float16
        return {"weight": given["weight"] - torch.tensor(0.25).half(), "bias": given["bias"]}

    strategy, grid = SparseStrategy(model, k=1, lr=1e-4, fraction_evaluate=0), LocalGrid(ordinary(change), CLIENTS)
    before = model.weight.detach().float().reshape(-1)
    for number in range(1, 9):
        round_of(strategy, grid, model, number)
    assert strategy.refused == []
    moved = before - strategy.rounds.weights[:4]
    # One element a round, of four that grow by a quarter; float16 could not hold one of these steps.
    assert float(moved.sum()) == pytest.approx(1e-4 * (0.25 + 0.5 + 0.75 + 5 * 1), rel=0.05)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda given, _: {**given, "weight": given["weight"] * float("nan")}, "the gradient must be finite, got nan"),
        (lambda given, _: {"bias": given["bias"]}, "parameter 'weight' is missing"),
        (lambda given, _: {**given, "weight": given["weight"].T}, r"'weight' has shape \[3, 2\]"),
    ],
)
def test_what_cannot_be_a_gradient_is_refused_and_changes_nothing(change: Change, said: str) -> None:
    model = nn.Linear(3, 2)
    strategy, grid = SparseStrategy(model, k=2, fraction_evaluate=0), LocalGrid(ordinary(halved), CLIENTS)
    round_of(strategy, grid, model)
    before = copy.deepcopy(grid.context(0).state)
    grid.make = ordinary(lambda given, at: (halved if at.node_config["partition-id"] else change)(given, at))
    round_of(strategy, grid, model, 2)
    (refusal,) = strategy.refused
    assert refusal.client == 0
    assert re.search(said, refusal.reason), refusal.reason
    assert grid.context(0).state == before


def test_a_train_function_that_returns_nothing_of_use() -> None:
    def make() -> ClientApp:
        app = ClientApp(mods=[SparseMod()])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            del context
            return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

        return app

    model = nn.Linear(3, 2)
    strategy = SparseStrategy(model, fraction_evaluate=0)
    round_of(strategy, LocalGrid(make, CLIENTS), model)
    assert "returned neither 'arrays' nor 'gradient'" in strategy.refused[0].reason


def test_a_message_of_another_strategy_goes_through() -> None:
    grid = LocalGrid(ordinary(halved), 1)
    content = RecordDict({"arrays": ArrayRecord({"w": torch.ones(2)}), "config": ConfigRecord({"x": 1})})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=1000, message_type="train")])
    np.testing.assert_array_equal(reply.content.array_records["arrays"]["w"].numpy(), [0.5, 0.5])


def test_an_order_that_comes_twice_is_done_once() -> None:
    calls = []

    def change(given: dict[str, Tensor], context: Context) -> dict[str, Tensor]:
        calls.append(1)
        return halved(given, context)

    model = nn.Linear(3, 2)
    strategy, grid = SparseStrategy(model, k=2, fraction_evaluate=0), LocalGrid(ordinary(change), 2)
    messages = list(strategy.configure_train(1, ArrayRecord(model.state_dict()), ConfigRecord({"x": 5}), grid))
    first = grid.send_and_receive(messages)
    again = grid.send_and_receive(messages)
    assert len(calls) == 2
    assert [reply.content for reply in first] == [reply.content for reply in again]


@pytest.mark.parametrize("values", ["float16", "int8"])
def test_what_rounding_takes_stays_in_the_residual(values: str) -> None:
    model = nn.Linear(30, 2).double()
    strategy = SparseStrategy(model, k=62, values=values, fraction_evaluate=0)
    grid = LocalGrid(ordinary(halved), 2)
    round_of(strategy, grid, model)
    sent = decode(state(strategy, grid).upload, Limits.of(62))
    whole = state(strategy, grid).residual.clone()
    grid.make = ordinary(lambda given, _: given)
    round_of(strategy, grid, model, 2)
    left = state(strategy, grid).residual
    torch.testing.assert_close(left, whole - sent.values.double(), rtol=0, atol=1e-12)
    assert float(left.abs().max()) > 0


def test_flowers_own_size_mod_can_count_our_messages() -> None:
    model = nn.Linear(3, 2)
    strategy = SparseStrategy(model, k=2, fraction_evaluate=0)
    grid = LocalGrid(ordinary(halved, message_size_mod), 2)
    for number in (1, 2, 3):
        round_of(strategy, grid, model, number)
    assert strategy.refused == []


def test_a_sparse_round_is_small() -> None:
    model = nn.Linear(1000, 10)
    strategy, grid = SparseStrategy(model, k=100, fraction_evaluate=0), LocalGrid(ordinary(halved), 2)
    for number in (1, 2, 3):
        round_of(strategy, grid, model, number)
    first, _, last = strategy.records
    assert first["down_bytes"] > 2 * 40_000  # everything, once
    assert last["down_bytes"] < 2 * 1500
    assert last["up_bytes"] < 2 * 1000
    assert all(RECORD in message.content for message in grid.sent)


def stepping(given: list[tuple[int, Tensor]], fail_at: int = 0) -> Callable[[], ClientApp]:
    """A train function that returns the gradient of the sum of squares; what it was called with is written down."""

    def make() -> ClientApp:
        app = ClientApp(mods=[SparseMod()])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            weights = message.content.array_records["arrays"].to_torch_state_dict()
            step = int(str(message.content.config_records["config"]["local-step"]))
            if step == fail_at:
                raise ValueError("no more data")
            if context.node_config["partition-id"] == 0:
                given.append((step, torch.cat([weights["weight"].reshape(-1), weights["bias"]])))
            metrics = MetricRecord({"num-examples": 7, "loss": float(step), "step": step, "curve": [1.0, float(step)]})
            gradient = ArrayRecord({name: 2 * value for name, value in weights.items()})
            return Message(RecordDict({"gradient": gradient, "metrics": metrics}), reply_to=message)

        return app

    return make


def test_local_steps_call_a_train_function_that_returns_gradients() -> None:
    model = nn.Linear(3, 2).double()
    given: list[tuple[int, Tensor]] = []
    strategy = SparseStrategy(model, local=LocalSteps(3), lr=0.25, k=8, fraction_evaluate=0)
    grid = LocalGrid(stepping(given), 2)
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    _, first = round_of(strategy, grid, model)
    _, second = round_of(strategy, grid, model, 2)
    assert [step for step, _ in given] == [1, 2, 3, 4, 5, 6]
    # Each step halves the weights, and so do the rounds' sums: everything is sent.
    for power, (_, weights) in enumerate(given):
        torch.testing.assert_close(weights, start / 2**power, rtol=0, atol=1e-15)
    torch.testing.assert_close(strategy.rounds.weights, start / 2**6, rtol=0, atol=1e-15)
    assert first is not None
    assert second is not None
    assert (first["loss"], second["loss"]) == (2.0, 5.0)  # the mean over the steps
    assert (first["step"], second["step"]) == (3, 6)
    assert first["curve"] == [1.0, 3.0]
    assert [record["steps"] for record in strategy.records] == [3, 3]


def test_local_steps_that_fail_halfway_change_nothing() -> None:
    model = nn.Linear(3, 2).double()
    strategy = SparseStrategy(model, local=LocalSteps(3), lr=0.25, k=2, fraction_evaluate=0)
    grid = LocalGrid(stepping([]), 2)
    round_of(strategy, grid, model)
    before = copy.deepcopy(grid.context(0).state)
    grid.make = stepping([], fail_at=5)
    round_of(strategy, grid, model, 2)
    assert grid.context(0).state == before
    assert all("no more data" in refusal.reason for refusal in strategy.refused)


def test_local_steps_that_come_twice_are_done_once() -> None:
    model, given = nn.Linear(3, 2).double(), list[tuple[int, Tensor]]()
    strategy = SparseStrategy(model, local=LocalSteps(2), k=2, fraction_evaluate=0)
    grid = LocalGrid(stepping(given), 2)
    messages = list(strategy.configure_train(1, ArrayRecord(model.state_dict()), ConfigRecord({"x": 5}), grid))
    first, again = grid.send_and_receive(messages), grid.send_and_receive(messages)
    assert [step for step, _ in given] == [1, 2]
    assert [reply.content for reply in first] == [reply.content for reply in again]


def test_local_steps_of_a_train_function_that_returns_new_weights_are_refused() -> None:
    model = nn.Linear(3, 2)
    strategy = SparseStrategy(model, local=LocalSteps(3), fraction_evaluate=0)
    round_of(strategy, LocalGrid(ordinary(halved), CLIENTS), model)
    assert len(strategy.refused) == CLIENTS
    said = r"returned new weights, so it takes local steps of its own; LocalSteps\(steps=3, .*\) needs one that returns"
    assert re.search(said, strategy.refused[0].reason)
    single = SparseStrategy(model, local=LocalSteps(1), fraction_evaluate=0)
    round_of(single, LocalGrid(ordinary(halved), CLIENTS), model)
    assert single.refused == []
