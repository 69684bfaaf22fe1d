"""Updates instead of weights: each client makes the server's steps of them, once, whatever it has missed."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from gradsift import GradsiftError, LocalSteps, value_types
from gradsift.flower import SparseMod, SparseStrategy
from gradsift.flower import rounds as server_rounds
from gradsift.flower.client_state import ClientState, Store
from gradsift.flower.protocol import FULL, RECORD
from gradsift.flower.rounds import Rounds
from gradsift.records import files, folder
from gradsift.server_step import Momentum, Named, ServerOptimizer
from gradsift.sparse import Sparse
from gradsift.values import value_type
from gradsift.wire import Limits, decode, encode
from tests.flower.grid import LocalGrid, node_of
from tests.flower.ledger import Books, app, arrays, catch_up, computed, end, play, state_of, strategy_of
from tests.method import drivers

CLIENTS = 3
HOW: dict[str, dict[str, Any]] = {
    "momentum": {"server": "momentum"},
    "nesterov": {"server": Momentum(0.9, nesterov=True, rate=0.7)},
    "bits": {"bits": (32, 4)},
    "both": {"down_values": "int8", "server": "momentum"},
}


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eleven weights one update is as large as all of them: here up to four are kept."""
    monkeypatch.setattr(Rounds, "_fit", lambda _, updates: len(updates) <= 4)


@pytest.fixture(params=HOW)
def how(request: pytest.FixtureRequest) -> dict[str, Any]:
    return HOW[request.param]


def absent(*clients: int) -> Callable[[int, Message], Any]:
    return lambda node, _: "lost" if node in map(node_of, clients) else ""


def failing(fault: str, kind: str) -> Callable[[int, Message], Any]:
    """Messages of this kind to client 1."""
    return lambda node, message: fault if node == node_of(1) and message.metadata.message_type == kind else ""


def order_to(grid: LocalGrid, client: int) -> tuple[int, int, bool]:
    """Of the last message to a client: its base, the number of updates in it, and whether it has the full weights."""
    message = next(message for message in reversed(grid.sent) if message.metadata.dst_node_id == node_of(client))
    record: Any = message.content.config_records[RECORD]
    return record["base"], len(record.get("updates", [])), FULL in message.content


def held(strategy: SparseStrategy, grid: LocalGrid, client: int) -> ClientState:
    state = state_of(strategy, grid, client)
    assert state is not None
    return state


def assert_in_step(strategy: SparseStrategy, grid: LocalGrid, books: Books) -> None:
    """All clients have the server's bits, and nothing was lost or taken twice."""
    catch_up(strategy, grid)
    for client in range(CLIENTS):
        state = held(strategy, grid, client)
        assert torch.equal(state.weights, strategy.rounds.weights)
        torch.testing.assert_close(state.memory, strategy.rounds.memory, rtol=0, atol=0)
        assert torch.equal(books.total(client) + state.residual, computed(grid, client))


def test_a_client_that_missed_rounds_is_sent_their_updates(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, grid, books = strategy_of(**how), LocalGrid(app, CLIENTS), Books(monkeypatch)
    play(strategy, grid)
    assert order_to(grid, 1) == (-1, 0, True)
    play(strategy, grid)
    assert order_to(grid, 1) == (0, 1, False)
    grid.faults = absent(1)
    for _ in range(3):
        play(strategy, grid)
    grid.faults = absent()
    play(strategy, grid)
    assert order_to(grid, 1) == (1, 4, False)
    grid.faults = absent(1)
    for _ in range(4):
        play(strategy, grid)
    grid.faults = absent()
    play(strategy, grid)
    assert order_to(grid, 1) == (-1, 0, True)  # five updates are more than the server keeps
    assert len(strategy.rounds.updates) == 4
    assert_in_step(strategy, grid, books)


def test_a_round_in_which_nobody_answers_makes_no_step(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, grid, books = strategy_of(**how), LocalGrid(app, CLIENTS), Books(monkeypatch)
    play(strategy, grid)
    play(strategy, grid)
    before, memory = strategy.rounds.weights, strategy.rounds.memory
    grid.faults = absent(0, 1, 2)
    play(strategy, grid)
    assert torch.equal(strategy.rounds.weights, before)
    torch.testing.assert_close(strategy.rounds.memory, memory, rtol=0, atol=0)
    grid.faults = absent()
    assert play(strategy, grid)["refused"] == 0
    assert order_to(grid, 2) == (1, 2, False)
    assert_in_step(strategy, grid, books)


@pytest.mark.parametrize("fault", ["reply lost", "twice", "killed"])
def test_updates_that_are_sent_again_are_taken_once(
    fault: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of orders to evaluate, which are not answered from memory."""
    strategy, books = strategy_of(**how, fraction_evaluate=1.0), Books(monkeypatch)
    grid = LocalGrid(app, CLIENTS)
    play(strategy, grid)
    for number in range(2, 6):
        grid.faults = failing(fault, "train" if number % 2 else "evaluate")
        play(strategy, grid, number)
    grid.faults = absent()
    play(strategy, grid)
    assert all(refusal.reason.startswith("it failed: fault") for refusal in strategy.refused)
    assert_in_step(strategy, grid, books)


def test_a_client_with_an_older_state_is_sent_what_it_has_forgotten(how: dict[str, Any]) -> None:
    strategy, grid = strategy_of(**how), LocalGrid(app, CLIENTS)
    play(strategy, grid)
    old = copy.deepcopy(grid.context(1))
    play(strategy, grid)
    play(strategy, grid)
    grid.contexts[node_of(1)] = old
    records = [play(strategy, grid) for _ in range(2)]
    assert [(record["refused"], record["resets"]) for record in records] == [(1, 0), (0, 1)]
    assert order_to(grid, 1) == (0, 4, False)
    catch_up(strategy, grid)
    assert torch.equal(held(strategy, grid, 1).weights, strategy.rounds.weights)


@pytest.mark.parametrize("what", ["weights", "memory"])
def test_a_client_whose_bits_differ_is_sent_everything(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, grid, books = strategy_of(server="momentum"), LocalGrid(app, CLIENTS), Books(monkeypatch)
    play(strategy, grid)
    play(strategy, grid)
    store = Store(grid.context(1), strategy._log.experiment, "1", None)
    state = store.load()
    assert state is not None
    other: Any = state.weights + 1e-9 if what == "weights" else {"velocity": state.memory["velocity"] + 1e-9}
    store.save(replace(state, **{what: other}))
    records = [play(strategy, grid) for _ in range(2)]
    assert [record["refused"] for record in records] == [1, 0]
    assert strategy.refused[0].reason == "it is behind, and will be sent what it missed"
    assert order_to(grid, 1) == (-1, 0, True)
    assert_in_step(strategy, grid, books)


@pytest.mark.parametrize("exchanges", [1, 2])
def test_a_server_that_goes_on_has_the_updates_of_its_clients(
    exchanges: int, how: dict[str, Any], tmp_path: Path
) -> None:
    grid, whole = LocalGrid(app, CLIENTS), LocalGrid(app, CLIENTS)
    how = {**how, "controller": "sign", "exchanges": exchanges}
    unbroken, strategy = strategy_of(**how), strategy_of(**how, out=tmp_path / "run")
    for number in range(1, 8):
        grid.faults = whole.faults = absent(2) if number in (3, 4) else absent()
        play(unbroken, whole, number)
        if number > 1:
            end(strategy)
            strategy = strategy_of(**how, out=tmp_path / "run")
        play(strategy, grid, number)
        assert torch.equal(strategy.rounds.weights, unbroken.rounds.weights)
        assert strategy.rounds.server.control == unbroken.rounds.server.control
        torch.testing.assert_close(strategy.rounds.server.memory, unbroken.rounds.server.memory, rtol=0, atol=0)
        assert strategy.rounds.updates == unbroken.rounds.updates
    full = [message.metadata.dst_node_id for message in grid.sent if FULL in message.content]
    assert sorted(full) == [node_of(client) for client in range(CLIENTS)]  # nobody needed the full weights again
    end(strategy)


def test_a_run_from_before_there_was_a_choice_goes_on(tmp_path: Path) -> None:
    out, grid = tmp_path / "run", LocalGrid(app, CLIENTS)
    strategy_of(out=out).start(grid, arrays(), num_rounds=1)
    path = out / "checkpoint-00000001.npz"
    values, facts = files.load(path, folder.FORMAT)
    for name in ("down_values", "server"):
        del facts["unchanging"][name]
    del facts["updates"]
    files.save(path, folder.FORMAT, values, facts)
    strategy = strategy_of(out=out)
    strategy.start(grid, arrays(), num_rounds=2)
    assert [record["clients"] for record in strategy.records] == [CLIENTS] * 2
    with pytest.raises(GradsiftError, match=r"made with server SGD\(rate=1.0\), not Momentum"):
        strategy_of(out=out, server="momentum").start(grid, arrays(), num_rounds=3)


@pytest.mark.parametrize("controller", ["planned", "extended-sign"])
@pytest.mark.parametrize("slots", [{"server": "momentum"}, {"bits": (32, 4)}], ids=["momentum", "bits"])
def test_clients_that_evaluate_between_rounds_report_the_same(controller: str, slots: dict[str, Any]) -> None:
    """They have taken the update already when they are asked about it."""
    slots = {"controller": controller, "exchanges": 1, "lr": 0.1, **slots}
    runs = [drivers.on_flower(**slots, fraction_evaluate=part) for part in (0, 1)]
    seen = ("agreement", "loss_before", "loss_after", "loss_probe")
    told = [[[dict(record)[name] for name in seen] for record in run.records] for run in runs]
    assert told[0] == told[1]
    assert all(any(value is not None for value in row) for row in told[0][1:])


def test_absentees_of_several_rounds_know_the_losses_before_the_last() -> None:
    strategy, grid = strategy_of(server="momentum", controller="sign"), LocalGrid(app, CLIENTS)
    play(strategy, grid)
    grid.faults = absent(2)
    for _ in range(3):
        play(strategy, grid)
    grid.faults = absent()
    play(strategy, grid)
    assert order_to(grid, 2) == (0, 4, False)
    reports = {reply.metadata.src_node_id: reply.content.config_records[RECORD] for reply in grid.replies[-CLIENTS:]}
    assert [len(report["losses"]) for report in reports.values()] == [3] * CLIENTS  # type: ignore[arg-type]
    orders = [message.content.config_records[RECORD] for message in grid.sent[-CLIENTS:]]
    assert not any("before" in order for order in orders)


@pytest.mark.parametrize("values", value_types())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounded_values_are_not_rounded_again_when_they_are_encoded(values: str, dtype: torch.dtype) -> None:
    kind = value_type(values)
    for seed in range(200):
        draw = torch.randn(20, generator=torch.Generator().manual_seed(seed), dtype=dtype)
        sent = kind.rounded(Sparse(torch.arange(20), draw, 50))
        data = encode(sent, values=kind.wire_type)
        assert torch.equal(decode(data, Limits.of(50)).values, sent.values)


def test_the_server_keeps_updates_while_they_are_smaller_than_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model = nn.Linear(200, 2)
    strategy = SparseStrategy(model, k=20, bits=4, fraction_evaluate=0)
    grid = LocalGrid(adopted(halved), CLIENTS)
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=60)
    updates, full = strategy.rounds.updates, 4 * 402
    assert sum(map(len, updates)) <= full < sum(map(len, updates)) + max(map(len, updates))
    monkeypatch.setattr(server_rounds, "MOST_UPDATES", 5)
    strategy = SparseStrategy(model, k=20, bits=4, fraction_evaluate=0)
    strategy.start(LocalGrid(adopted(halved), CLIENTS), ArrayRecord(model.state_dict()), num_rounds=8)
    assert len(strategy.rounds.updates) == 5
    assert strategy.refused == []


def adopted(change: Callable[[Tensor], Tensor]) -> Callable[[], ClientApp]:
    """An app that takes its own local steps and returns new weights."""

    def make() -> ClientApp:
        made = ClientApp(mods=[SparseMod()])

        @made.train()
        def train(message: Message, context: Context) -> Message:
            del context
            given = message.content.array_records["arrays"].to_torch_state_dict()
            content = {"arrays": ArrayRecord({name: change(value) for name, value in given.items()})}
            return Message(RecordDict({**content, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

        return made

    return make


def halved(value: Tensor) -> Tensor:
    return value / 2


def test_few_bits_make_small_messages_in_both_directions() -> None:
    torch.manual_seed(0)
    model = nn.Linear(1000, 10)
    sizes = []
    for bits in (32, (2, 4), 1):
        strategy = SparseStrategy(model, k=300, bits=bits, fraction_evaluate=0)
        strategy.start(LocalGrid(adopted(halved), CLIENTS), ArrayRecord(model.state_dict()), num_rounds=4)
        assert strategy.refused == []
        sizes.append((strategy.records[-1]["up_bytes"], strategy.records[-1]["down_bytes"]))
    (up, down), (few_up, few_down), (least_up, least_down) = sizes
    assert few_up < 0.55 * up
    assert few_down < 0.7 * down
    assert least_up < few_up
    assert least_down < few_down


def test_the_residual_of_an_adopted_app_decays() -> None:
    model = nn.Linear(3, 2).double()
    start = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    local = LocalSteps(1, residual_decay=0.5)
    strategy = SparseStrategy(model, k=2, local=local, server=Momentum(0.5), bits=(32, 4), fraction_evaluate=0)
    grid = LocalGrid(adopted(halved), CLIENTS)
    for number in (1, 2):
        config = ConfigRecord()
        messages = strategy.configure_train(number, ArrayRecord(model.state_dict()), config, grid)
        strategy.aggregate_train(number, grid.send_and_receive(messages))
    assert strategy.refused == []
    state = held(strategy, grid, 0)
    left = (start / 2).index_fill(0, start.abs().topk(2).indices, 0)  # after the first round
    torch.testing.assert_close(state.residual, left / 2 + state.weights / 2, rtol=0, atol=1e-12)


def test_local_steps_of_an_adopted_app_are_refused() -> None:
    model = nn.Linear(3, 2)
    strategy = SparseStrategy(model, local_steps=3, bits=(2, 4), fraction_evaluate=0)
    strategy.start(LocalGrid(adopted(halved), CLIENTS), ArrayRecord(model.state_dict()), num_rounds=1)
    assert len(strategy.refused) == CLIENTS
    assert "returned new weights, so it takes local steps of its own" in strategy.refused[0].reason


@pytest.mark.parametrize("exchanges", [1, 2])
def test_short_forms_mean_the_same_as_in_the_simulator(exchanges: int) -> None:
    short: dict[str, Any] = {"local_steps": 3, "bits": (2, 4), "lr": 0.1}
    flower = drivers.on_flower(**short, exchanges=exchanges)
    simulated = drivers.on_simulator(**short, delay=2 - exchanges)
    torch.testing.assert_close(flower.weights, simulated.weights, rtol=0, atol=1e-9)
    assert [record["used_k"] for record in flower.records] == [record["used_k"] for record in simulated.records]


@dataclass(frozen=True)
class Unregistered(ServerOptimizer):
    def step(self, memory: Named, update: Sparse) -> tuple[Named, Sparse]:
        return memory, update


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "bits": ({"bits": (9, 4)}, r"bits must be 1 to 8, or 32 for exact values, up and down, got \(9, 4\)"),
    "bits and values": ({"bits": 2, "values": "int8"}, "give either bits, 2, or values and down_values"),
    "local and steps": ({"local": LocalSteps(2), "local_steps": 2}, "give either local_steps, 2, or local"),
    "steps": ({"local_steps": 0}, "steps must be at least 1, got 0"),
    "server": ({"server": "adam"}, "unknown server optimizer 'adam'"),
    "no server": ({"server": 0.9}, "server must be a ServerOptimizer, got 0.9"),
    "a server of one's own": ({"server": Unregistered()}, r"Unregistered\(\) is not registered: the clients find the"),
    "down_values": ({"down_values": "int4"}, "unknown value type 'int4'"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_options_are_refused(what: str) -> None:
    options, said = BAD[what]
    with pytest.raises(GradsiftError, match=said):
        strategy_of(**options)


def test_an_order_with_updates_that_are_not_bytes_is_refused() -> None:
    strategy, grid = strategy_of(server="momentum"), LocalGrid(app, CLIENTS)
    play(strategy, grid)
    message, *_ = strategy.configure_train(2, arrays(), ConfigRecord(), grid)
    message.content[RECORD] = ConfigRecord({**message.content.config_records[RECORD], "updates": ["x"]})
    (reply,) = grid.send_and_receive([message])
    assert "updates must be a list of bytes, got ['x']" in str(reply.error.reason)
