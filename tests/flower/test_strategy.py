"""The strategy with hand-made replies: what it asks for, what it refuses and why, and that the others go on."""

import copy
import itertools
import logging
import re
import shutil
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from gradsift import GradsiftError
from gradsift.control.fixed import Fixed
from gradsift.flower import Probe, SparseMod, SparseStrategy, gradient_app
from gradsift.flower.protocol import BUFFERS, PROTOCOL, RECORD
from gradsift.flower.rounds import Rounds
from gradsift.sampling import participants
from gradsift.sparse import Sparse
from gradsift.wire import encode
from tests.flower.each_its_own import EachItsOwn
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
from tests.method import drivers

CLIENTS = 3


def changed(reply: Message, **fields: Any) -> Message:
    """The reply with other fields in its report; None leaves one out."""
    record = ConfigRecord({**reply.content.config_records[RECORD]})
    for name, value in fields.items():
        record.pop(name) if value is None else record.__setitem__(name, value)
    reply.content[RECORD] = record
    return reply


def sparse(indices: list[int], values: list[float], dim: int = 11) -> bytes:
    return encode(Sparse(torch.tensor(indices, dtype=torch.int64), torch.tensor(values, dtype=torch.float64), dim))


def forged_nan() -> bytes:
    """A message whose values are finite when it is encoded, and whose bits then say NaN, with a right checksum."""
    data = bytearray(encode(Sparse(torch.arange(3), torch.ones(3, dtype=torch.float64), 11)))
    base = data.index(np.float64(1.0).tobytes())
    data[base : base + 8] = b"\x01\x00\x00\x00\x00\x00\xf0\x7f"
    return bytes(data[:-4]) + zlib.crc32(data[:-4]).to_bytes(4, "little")


def without_metrics(reply: Message) -> Message:
    del reply.content["metrics"]
    return reply


def examples(value: Any) -> Callable[[Message], Message]:
    def change(reply: Message) -> Message:
        reply.content["metrics"] = MetricRecord({"num-examples": value})
        return reply

    return change


def with_buffers(reply: Message) -> Message:
    reply.content[BUFFERS] = ArrayRecord({"running": Array(np.zeros(3))})
    return reply


BAD: dict[str, tuple[Callable[[Message], Message], str]] = {
    "of another round": (lambda reply: changed(reply, number=7), "stale: it answers round 7"),
    "of another run": (lambda reply: changed(reply, session="old"), "stale: .*'old'"),
    "of another client": (lambda reply: changed(reply, client="2"), "it answers as client '2'"),
    "of other weights": (lambda reply: changed(reply, checksum=1), "checksum 00000001, not the server's"),
    "of another version": (lambda reply: changed(reply, version=5), "it holds version 5"),
    "not bytes": (lambda reply: changed(reply, upload="x"), "upload must be bytes, got 'x'"),
    "not a message": (lambda reply: changed(reply, upload=b"nonsense"), "not a gradsift message"),
    "empty": (lambda reply: changed(reply, upload=None), "message"),
    "cut short": (lambda reply: changed(reply, upload=sparse([1, 2, 3], [1.0, 2, 3])[:-3]), ""),
    "of another model": (lambda reply: changed(reply, upload=sparse([1, 2, 3], [1.0, 2, 3], 12)), "dimension 12"),
    "too many": (lambda reply: changed(reply, upload=sparse([1, 2, 3, 4], [1.0, 2, 3, 4])), "4 elements"),
    "too few": (
        lambda reply: changed(reply, upload=sparse([1, 2], [1.0, 2])),
        "2 elements, the order asks for 3",
    ),
    "oversized": (lambda reply: changed(reply, upload=bytes(10_000)), "oversized: an upload of 10000 bytes"),
    "float32": (
        lambda reply: changed(reply, upload=encode(Sparse(torch.arange(3), torch.ones(3), 11))),
        "'float32' is not accepted",
    ),
    "not finite": (lambda reply: changed(reply, upload=forged_nan()), "infinite or not a number"),
    "a bad loss": (lambda reply: changed(reply, losses=[1.0, float("nan"), 1.0]), "its losses are not finite"),
    "losses that are no numbers": (lambda reply: changed(reply, losses=["a"]), "losses must be a list of numbers"),
    "a mass below zero": (lambda reply: changed(reply, mass=-1.0), r"the weight of its residual cannot be \(-1.0,"),
    "an infinite mass": (lambda reply: changed(reply, mass=float("inf")), r"residual cannot be \(inf,"),
    "a mass that is no number": (lambda reply: changed(reply, mass="1"), "mass must be float, got '1'"),
    "two products": (lambda reply: changed(reply, left=[1.0, 2.0]), r"residual cannot be \(.*, 1.0, 2.0\)"),
    "a product that is not finite": (lambda reply: changed(reply, left=[float("nan")]), "residual cannot be .*nan"),
    "another protocol": (
        lambda reply: changed(reply, protocol=PROTOCOL + 1),
        f"protocol {PROTOCOL + 1} is not {PROTOCOL}",
    ),
    "an unknown field": (lambda reply: changed(reply, surprise=1), "unknown field 'surprise'"),
    "a missing field": (lambda reply: changed(reply, can_probe=None), "a field is missing: .*can_probe"),
    "a bool for a number": (lambda reply: changed(reply, version=False), "version must be int"),
    "an empty value": (lambda reply: changed(reply, client=""), "it answers as client ''"),
    "no metrics": (without_metrics, "no 'num-examples'"),
    "no examples": (examples(0), "num-examples must be a positive finite number, got 0"),
    "infinite examples": (examples(float("inf")), "num-examples must be a positive finite number, got inf"),
    "a list of examples": (examples([1, 2]), r"num-examples must be a positive finite number, got \[1, 2\]"),
    "buffers": (with_buffers, "it sent buffers, but the strategy refuses them"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_reply_is_refused_and_the_others_go_on(
    what: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, reason = BAD[what]
    strategy, grid, books = strategy_of(), LocalGrid(app, CLIENTS), Books(monkeypatch)
    play(strategy, grid)
    grid.tamper = lambda reply: [change(reply)] if reply.metadata.src_node_id == node_of(1) else [reply]
    with caplog.at_level(logging.WARNING, "flwr"):
        record = play(strategy, grid)
    (refusal,) = strategy.refused
    assert (refusal.number, refusal.client, refusal.node) == (2, 1, node_of(1))
    assert re.search(reason, refusal.reason), refusal.reason
    assert f"refused client 1, node {node_of(1)}: {refusal.reason}" in caplog.text
    assert (record["clients"], record["refused"]) == (2, 1)
    assert books.last(0) == books.last(2) == 2
    assert books.last(1) == 1
    grid.tamper = lambda reply: [reply]
    play(strategy, grid)
    assert books.last(1) == 3  # it is back, with all that was not taken from it
    catch_up(strategy, grid)
    state = state_of(strategy, grid, 1)
    assert state is not None
    assert torch.equal(books.total(1) + state.residual, computed(grid, 1))


@pytest.mark.parametrize("exchanges", [1, 2])
def test_losses_whose_mean_is_not_finite_are_none(exchanges: int, caplog: pytest.LogCaptureFixture) -> None:
    strategy, grid = strategy_of(controller="extended-sign", exchanges=exchanges), LocalGrid(app, CLIENTS)
    unchanged = strategy_of(controller="extended-sign", exchanges=exchanges)
    silent = LocalGrid(app, CLIENTS)
    play(strategy, grid)
    play(unchanged, silent)

    def losses(value: list[float] | None) -> Callable[[Message], Iterable[Message]]:
        return lambda reply: [
            changed(reply, losses=value) if "losses" in reply.content.config_records[RECORD] else reply
        ]

    grid.tamper, silent.tamper = losses([1.7e308] * 3), losses(None)
    with caplog.at_level(logging.WARNING, "flwr"):
        play(strategy, grid)
    play(unchanged, silent)
    assert "the mean losses are [inf, inf, inf]: not used" in caplog.text
    assert strategy.refused == []
    assert strategy.rounds.server.control == unchanged.rounds.server.control  # as without any losses
    grid.tamper = lambda reply: [reply]
    assert play(strategy, grid)["clients"] == CLIENTS


@pytest.mark.parametrize("size", [0, 1, 2])
def test_an_upload_of_another_size_is_refused_without_a_vote(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients agree on a size that the order does not fix, or one is alone; nothing of theirs is used."""
    used: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Rounds, "observe", lambda _, *reported: used.append(reported))
    for clients in (1, CLIENTS):
        strategy = strategy_of(controller="extended-sign", min_train_nodes=1, min_available_nodes=1)
        grid = LocalGrid(app, clients)
        play(strategy, grid)
        before = strategy.rounds.weights.clone()
        short = sparse(list(range(size)), [1.0] * size)

        def tamper(reply: Message, short: bytes = short) -> Iterable[Message]:
            return [changed(reply, upload=short) if "upload" in reply.content.config_records[RECORD] else reply]

        grid.tamper = tamper
        record = play(strategy, grid)
        assert (record["clients"], record["refused"]) == (0, clients)
        asked = record["used_k"]
        assert {r.reason for r in strategy.refused} == {f"its upload has {size} elements, the order asks for {asked}"}
        assert torch.equal(strategy.rounds.weights, before)
        assert all("losses" in reply.content.config_records[RECORD] for reply in grid.replies[-clients:])
        assert used[-1] == ([], {}, {})  # though they sent some


@pytest.mark.parametrize(("sparsifier", "k", "sizes"), [("periodic-k", 4, [4, 4, 3, 4]), ("fedavg", 2, [0, 11, 0, 11])])
def test_the_size_that_an_order_fixes_is_the_sparsifiers(sparsifier: str, k: int, sizes: list[int]) -> None:
    strategy, grid = strategy_of(sparsifier=sparsifier, k=k), LocalGrid(app, CLIENTS)
    assert [play(strategy, grid)["up_elements"] for _ in sizes] == sizes
    assert strategy.refused == []
    strategy, grid = strategy_of(sparsifier=sparsifier, k=k), LocalGrid(app, CLIENTS)
    wrong = {"periodic-k": sparse([1, 2, 3], [1.0] * 3), "fedavg": sparse(list(range(11)), [1.0] * 11)}[sparsifier]
    grid.tamper = lambda reply: [changed(reply, upload=wrong) if "upload" in reply.content["gradsift"] else reply]
    assert play(strategy, grid)["clients"] == 0


def test_metrics_are_aggregated_by_the_users_own_functions() -> None:
    given: list[tuple[str, int, str]] = []

    def own(name: str) -> Callable[[list[RecordDict], str], MetricRecord]:
        def aggregate(contents: list[RecordDict], key: str) -> MetricRecord:
            given.append((name, len(contents), key))
            return MetricRecord({name: sum(int(str(content["metrics"][key])) for content in contents)})

        return aggregate

    strategy = strategy_of(
        fraction_evaluate=1.0, train_metrics_aggr_fn=own("trained"), evaluate_metrics_aggr_fn=own("evaluated")
    )
    result = strategy.start(LocalGrid(app, CLIENTS), arrays(), num_rounds=1)
    assert given == [("trained", CLIENTS, "num-examples"), ("evaluated", CLIENTS, "num-examples")]
    assert result.train_metrics_clientapp[1]["trained"] == 1 + 2 + 4
    assert result.train_metrics_clientapp[1]["gradsift-clients"] == CLIENTS
    assert dict(result.evaluate_metrics_clientapp[1]) == {"evaluated": CLIENTS}


def test_a_repeated_reply_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, grid, books = strategy_of(), LocalGrid(app, CLIENTS), Books(monkeypatch)
    grid.tamper = lambda reply: [reply, reply]
    record = play(strategy, grid)
    assert record["clients"] == CLIENTS
    assert [refusal.reason for refusal in strategy.refused] == ["repeated: it has answered already"] * CLIENTS
    assert [books.last(client) for client in range(CLIENTS)] == [1] * CLIENTS


def test_an_old_reply_is_stale() -> None:
    strategy, grid = strategy_of(), LocalGrid(app, CLIENTS)
    kept: list[Message] = []

    def tamper(reply: Message) -> Iterable[Message]:
        kept.append(reply)
        return [reply]

    grid.tamper = tamper
    play(strategy, grid)
    old = [reply for reply in kept if "upload" in reply.content.config_records[RECORD]]
    grid.tamper = lambda reply: [old[0], reply]
    record = play(strategy, grid)
    assert record["clients"] == CLIENTS
    assert all("stale: it answers round 1" in refusal.reason for refusal in strategy.refused)
    assert len(strategy.refused) == CLIENTS


def test_a_reply_of_a_stranger_is_refused() -> None:
    strategy, grid = strategy_of(), LocalGrid(app, CLIENTS)
    play(strategy, grid)
    del strategy._roster.client_of[node_of(2)]
    messages = list(strategy.configure_train(2, arrays(), ConfigRecord(), grid))
    replies = grid.send_and_receive(messages)
    del strategy._roster.client_of[node_of(2)]
    strategy.aggregate_train(2, replies)
    assert [(r.client, r.node, r.reason) for r in strategy.refused] == [
        (None, node_of(2), "it has not identified itself")
    ]


def test_a_controller_with_a_k_for_each_client_needs_one_for_each() -> None:
    strategy = strategy_of(controller=EachItsOwn(CLIENTS - 1, most=11.0))
    with pytest.raises(GradsiftError, match="proposed k for 2 clients, not for client 2"):
        play(strategy, LocalGrid(app, CLIENTS))


def test_every_client_is_held_to_its_own_k() -> None:
    """One that sends as many elements as another one may is refused."""
    strategy, grid = strategy_of(controller=EachItsOwn(CLIENTS, most=11.0)), LocalGrid(app, CLIENTS)
    uploads = []

    def tamper(reply: Message) -> Iterable[Message]:
        report = reply.content.config_records[RECORD]
        if "upload" in report:
            uploads.append(report["upload"])
            return [changed(reply, upload=uploads[0])]  # that of client 0
        return [reply]

    grid.tamper = tamper
    record = play(strategy, grid)
    assert (record["clients"], record["refused"], record["client_k"]) == (1, 2, [record["used_k"]])
    asked = [refusal.reason.rpartition(" ")[2] for refusal in strategy.refused]
    assert [int(size) > record["used_k"] for size in asked] == [True, True]
    assert len(set(asked)) == 2


def test_a_round_in_which_nobody_answers_changes_nothing() -> None:
    strategy, grid = strategy_of(controller="sign"), LocalGrid(app, CLIENTS)
    play(strategy, grid)
    before, control = strategy.rounds.weights.clone(), strategy.rounds.server.control
    grid.faults = lambda node, message: "lost"  # noqa: ARG005
    record = play(strategy, grid)
    assert (record["round"], record["clients"], record["refused"]) == (2, 0, CLIENTS)
    assert torch.equal(strategy.rounds.weights, before)
    assert strategy.rounds.server.control == control
    grid.faults = lambda node, message: ""  # noqa: ARG005
    assert play(strategy, grid)["clients"] == CLIENTS


def test_fraction_train_draws_as_the_simulator_does() -> None:
    strategy, grid = strategy_of(fraction_train=0.5, seed=9), LocalGrid(app, 6)
    for number in range(1, 6):
        play(strategy, grid, number)
        asked = [node - 1000 for node in grid.asked[-2]]
        assert asked == participants(6, 3, 9, number).tolist()


def test_two_nodes_of_one_number(caplog: pytest.LogCaptureFixture) -> None:
    strategy, grid = strategy_of(), LocalGrid(app, CLIENTS)
    grid.contexts[5] = Context(1, 5, {"partition-id": 1}, RecordDict(), {})
    with caplog.at_level(logging.WARNING, "flwr"):
        record = play(strategy, grid)
    assert record["clients"] == CLIENTS
    assert f"node 5 is turned away: client 1 is node {node_of(1)} already" in caplog.text
    # When the first is gone, the client may come back as another node; its state went with the first.
    del grid.contexts[node_of(1)], grid.contexts[5]
    grid.contexts[6] = Context(1, 6, {"partition-id": 1}, RecordDict(), {})
    record = play(strategy, grid)
    assert (record["clients"], record["refused"]) == (CLIENTS, 0)
    assert strategy._roster.client_of[6] == 1


def test_a_node_without_a_number_goes_by_its_id() -> None:
    strategy, grid = strategy_of(), LocalGrid(app, CLIENTS)
    grid.contexts[77] = Context(1, 77, {}, RecordDict(), {})

    def plain() -> ClientApp:
        made = ClientApp(mods=[SparseMod()])

        @made.train()
        def train(message: Message, context: Context) -> Message:
            del context
            content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
            return Message(RecordDict(content), reply_to=message)

        return made

    grid.make = plain
    assert play(strategy, grid)["clients"] == CLIENTS + 1
    assert 77 in strategy.rounds.clients


@pytest.mark.parametrize("probe", [True, False])
def test_by_default_k_is_planned_with_a_probe_or_without(probe: bool, caplog: pytest.LogCaptureFixture) -> None:
    strategy = SparseStrategy(model(), fraction_evaluate=0, lr=0.5)
    grid = LocalGrid(lambda: app(probe=probe), CLIENTS)
    with caplog.at_level(logging.INFO, "flwr"):
        for number in range(1, 4):
            play(strategy, grid, number)
    assert "is chosen by Planned(" in caplog.text
    assert not any("losses" in reply.content.config_records[RECORD] for reply in grid.replies)
    for before, record in itertools.pairwise(strategy.records):
        assert record["observed"] == before["round"]
        assert record["waiting"] is not None
        assert record["agreement"] is not None
        assert record["loss_after"] is None
        assert record["c"] != before["c"] or before["round"] == 1  # nothing is known before the second round


@pytest.mark.parametrize("given", [{"k": 3}, {"sparsifier": "send-all"}, {"sparsifier": "fedavg", "k": 5}])
def test_a_given_k_is_a_fixed_k(given: dict[str, Any]) -> None:
    strategy = SparseStrategy(model(), fraction_evaluate=0, **given)
    assert strategy.options.method.controller == Fixed(given.get("k", 1))
    named = SparseStrategy(model(), fraction_evaluate=0, controller="planned", k=3)
    assert named.options.method.controller.name == "planned"
    assert named.options.fallback.controller == Fixed(3)


def test_a_step_size_of_zero_is_no_step_to_agree_on() -> None:
    strategy = SparseStrategy(model(), fraction_evaluate=0, lr=lambda number: 0.5 * (number % 2))
    grid = LocalGrid(app, CLIENTS)
    for number in range(1, 6):
        play(strategy, grid, number)
    assert strategy.refused == []
    assert [record["agreement"] is None for record in strategy.records] == [True, False, True, False, True]
    assert [record["waiting"] is None for record in strategy.records] == [True, False, False, False, False]


@pytest.mark.parametrize("probe", [True, False])
def test_the_start_up_line_says_how_k_is_chosen(probe: bool, caplog: pytest.LogCaptureFixture) -> None:
    strategy = SparseStrategy(model(), controller="extended-sign", fraction_evaluate=0, lr=0.5)
    with caplog.at_level(logging.INFO, "flwr"):
        play(strategy, LocalGrid(lambda: app(probe=probe), CLIENTS))
    assert ("is chosen by ExtendedSign" in caplog.text) == probe
    assert ("is set by Fixed(k=1): no client has a probe" in caplog.text) == (not probe)
    assert ("client 0 has no probe" in caplog.text) == (not probe)


def test_evaluation_brings_its_clients_up_to_date() -> None:
    strategy, grid = strategy_of(fraction_evaluate=1.0, fraction_train=0.5, min_train_nodes=1), LocalGrid(app, 4)
    for number in range(1, 4):
        config = ConfigRecord()
        messages = strategy.configure_train(number, arrays(), config, grid)
        new, metrics = strategy.aggregate_train(number, grid.send_and_receive(messages))
        assert new is not None
        assert metrics is not None
        assert metrics["gradsift-round"] == number
        evaluated = strategy.aggregate_evaluate(
            number, grid.send_and_receive(strategy.configure_evaluate(number, new, config, grid))
        )
        assert evaluated is None or "num-examples" not in evaluated
        for client in range(4):
            state = state_of(strategy, grid, client)
            assert state is not None
            assert torch.equal(state.weights, strategy.rounds.weights)
            assert state.version == number


def test_odd_metrics_of_one_client_spoil_nothing(caplog: pytest.LogCaptureFixture) -> None:
    strategy, grid = strategy_of(fraction_evaluate=1.0), LocalGrid(app, 4)
    odd: list[Any] = [[1.0, 2.0, 3.0], [1.0, 2.0], 5.0]

    def tamper(reply: Message) -> Iterable[Message]:
        client = reply.metadata.src_node_id - node_of(0)
        if "metrics" in reply.content:
            value = odd[0] if client < 2 else odd[client - 1]
            weight: Any = 0 if reply.metadata.message_type == "evaluate" and client == 3 else client + 1
            reply.content["metrics"] = MetricRecord({"num-examples": weight, "curve": value})
        return [reply]

    grid.tamper = tamper
    with caplog.at_level(logging.WARNING, "flwr"):
        messages = strategy.configure_train(1, arrays(), ConfigRecord(), grid)
        new, trained = strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert new is not None
    assert trained is not None
    assert trained["curve"] == odd[0]
    assert trained["gradsift-clients"] == 4
    assert "2 of 4 clients report other metrics than most" in caplog.text
    messages = strategy.configure_evaluate(1, new, ConfigRecord(), grid)
    evaluated = strategy.aggregate_evaluate(1, grid.send_and_receive(messages))
    assert evaluated is not None
    assert dict(evaluated) == {"curve": odd[0]}


def test_a_whole_run_by_start(tmp_path: Path) -> None:
    """Rounds, a checkpoint, and a new run that goes on where the last one stopped."""
    grid, seen = LocalGrid(app, CLIENTS), []

    def evaluate(number: int, record: ArrayRecord) -> MetricRecord:
        seen.append(number)
        return MetricRecord({"norm": float(record.to_torch_state_dict()["weight"].norm())})

    whole = strategy_of(fraction_evaluate=0.5).start(LocalGrid(app, CLIENTS), arrays(), num_rounds=5)
    out = tmp_path / "run"
    first = strategy_of(out=out, fraction_evaluate=0.5)
    first.start(grid, arrays(), num_rounds=2, evaluate_fn=evaluate)
    second = strategy_of(out=out, fraction_evaluate=0.5)
    result = second.start(grid, arrays(), num_rounds=5, evaluate_fn=evaluate)
    assert seen == [0, 1, 2, 2, 3, 4, 5]
    assert second.records[:2] == first.records
    assert [record["round"] for record in second.records] == [1, 2, 3, 4, 5]
    for name, value in whole.arrays.to_torch_state_dict().items():
        assert torch.equal(result.arrays.to_torch_state_dict()[name], value)
    # The clients kept their state: nobody was sent everything again.
    assert all(int(str(m.content.config_records[RECORD].get("base", -1))) >= 0 for m in grid.sent[-CLIENTS:])
    again = strategy_of(out=out).start(grid, arrays(), num_rounds=5)  # nothing left to do
    assert torch.equal(again.arrays.to_torch_state_dict()["bias"], result.arrays.to_torch_state_dict()["bias"])


def test_a_client_with_an_older_state_discards_its_residual(caplog: pytest.LogCaptureFixture) -> None:
    strategy, grid = strategy_of(), LocalGrid(app, CLIENTS)
    play(strategy, grid)
    old = copy.deepcopy(grid.context(1))
    play(strategy, grid)
    play(strategy, grid)
    grid.contexts[node_of(1)] = old  # from before rounds 2 and 3, which took from it
    with caplog.at_level(logging.WARNING, "flwr"):
        records = [play(strategy, grid) for _ in range(2)]  # it is found behind, then sent everything
    assert [(record["refused"], record["resets"]) for record in records] == [(1, 0), (0, 1)]
    assert "client 1 discarded its residual" in caplog.text
    assert "it no longer has its upload of round 3" in caplog.text


def test_without_training_there_is_only_evaluation() -> None:
    strategy, grid = strategy_of(fraction_train=0, fraction_evaluate=1.0), LocalGrid(app, CLIENTS)
    strategy.start(grid, arrays(), num_rounds=2)
    assert strategy.records == []
    assert strategy.rounds.version == 0
    assert [len(nodes) for nodes in grid.asked] == [0, CLIENTS, CLIENTS, 0, CLIENTS]  # the second is the hello


def test_a_server_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older checkpoint: what the lost rounds took is lost, but nothing is taken twice, and no client diverges."""
    out, grid, books = tmp_path / "run", LocalGrid(app, CLIENTS), Books(monkeypatch)
    strategy = strategy_of(out=out)
    for number in range(1, 4):
        play(strategy, grid, number)
    shutil.copytree(out, tmp_path / "old")
    for number in range(4, 7):
        play(strategy, grid, number)
    # Rounds 4 and 5 are settled at the clients, and lost with the server; round 6 is not settled, and still theirs.
    lost = {client: books.delivered[client][4] + books.delivered[client][5] for client in range(CLIENTS)}
    for client in range(CLIENTS):
        del books.delivered[client][4], books.delivered[client][5], books.delivered[client][6]
    end(strategy)
    go_back(out, tmp_path / "old")
    strategy = strategy_of(out=out)
    for number in range(4, 9):
        play(strategy, grid, number)
    catch_up(strategy, grid)
    end(strategy)
    for client in range(CLIENTS):
        state = state_of(strategy, grid, client)
        assert state is not None
        assert torch.equal(state.weights, strategy.rounds.weights)
        assert torch.equal(books.total(client) + lost[client] + state.residual, computed(grid, client))


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": -1}, "seed must be"),
    "exchanges": ({"exchanges": 3}, "exchanges must be in"),
    "fraction": ({"fraction_train": 1.5}, "fraction_train must be in"),
    "values": ({"values": "int4"}, "unknown value type 'int4'"),
    "buffers": ({"buffers": "drop"}, "buffers must be 'refuse' or 'average', got 'drop'"),
    "k": ({"k": 12}, r"k must be in \[1, 11\], got 12"),
    "sparsifier": ({"sparsifier": "top-k"}, "unknown sparsifier 'top-k'"),
    "dense": ({"sparsifier": "send-all", "controller": "sign"}, "'send-all' is dense"),
    "lr": ({"lr": 0.0}, "lr must be positive"),
    "a word for lr": ({"lr": "fast"}, "lr must be a number or a function of the round, got 'fast'"),
    "lr that is not a number": ({"lr": float("nan")}, "lr must be a finite number, got nan"),
    "a truth for lr": ({"lr": True}, "lr must be a finite number, got True"),
    "cost": ({"cost": "cheap"}, "unknown cost 'cheap'; valid: energy"),
    "no cost": ({"cost": 10}, "cost must be a CostModel, got 10"),
    "a number for a sparsifier": ({"sparsifier": 5}, "sparsifier must be a Sparsifier, got 5"),
    "a number for a controller": ({"controller": 5}, "controller must be a Controller, got 5"),
    "a folder that is not a run": ({"out": "/"}, "/ exists already and is not a run: choose another folder"),
    "a number for out": ({"out": 3}, "out must be a path, got 3"),
    "local": ({"local": "steps"}, "unknown local computation 'steps'"),
    "charge_probe": ({"charge_probe": 1}, "charge_probe must be True or False, got 1"),
    "min_train_nodes": ({"min_train_nodes": -1}, "min_train_nodes must be at least 0, got -1"),
    "min_evaluate_nodes": ({"min_evaluate_nodes": "a"}, "min_evaluate_nodes must be an integer, got 'a'"),
    "min_available_nodes": ({"min_available_nodes": 1.5}, r"min_available_nodes must be an integer, got 1\.5"),
    "weighted_by_key": ({"weighted_by_key": 3}, "weighted_by_key must be a name .*, got 3"),
    "configrecord_key": ({"configrecord_key": None}, "configrecord_key must be a name .*, got None"),
    "our own key": ({"configrecord_key": "gradsift"}, "configrecord_key must be a name .*, got 'gradsift'"),
    "arrayrecord_key": ({"arrayrecord_key": "gradient"}, "arrayrecord_key must be a name .*, got 'gradient'"),
    "one key for two": (
        {"arrayrecord_key": "x", "configrecord_key": "x"},
        "arrayrecord_key and configrecord_key .*'x'",
    ),
    "train_metrics_aggr_fn": ({"train_metrics_aggr_fn": 1}, "train_metrics_aggr_fn must be a function, got 1"),
}


@pytest.mark.parametrize("what", BAD_OPTIONS)
def test_bad_options_are_refused(what: str) -> None:
    options, said = BAD_OPTIONS[what]
    with pytest.raises(GradsiftError, match=said):
        SparseStrategy(model(), **options)


BAD_CLIENTS: dict[str, tuple[Callable[[], object], str]] = {
    "probe": (lambda: SparseMod(3), "probe must be a Probe of two functions, got 3"),  # type: ignore[arg-type]
    "a function": (lambda: SparseMod(lambda: 1), "probe must be a Probe of two functions"),  # type: ignore[arg-type]
    "half a probe": (lambda: SparseMod(Probe(lambda *_: 1.0, None)), "probe must be"),  # type: ignore[arg-type]
    "state_folder": (lambda: SparseMod(state_folder=5), "state_folder must be a path, got 5"),  # type: ignore[arg-type]
    "no state_folder": (lambda: SparseMod(state_folder=""), "state_folder must be a path, got ''"),
    "task": (lambda: gradient_app(3), "task must be a function of a context, got 3"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", BAD_CLIENTS)
def test_bad_options_of_clients_are_refused(what: str) -> None:
    make, said = BAD_CLIENTS[what]
    with pytest.raises(GradsiftError, match=said):
        make()


def test_bad_models_and_arrays_are_refused() -> None:
    with pytest.raises(GradsiftError, match="model must be"):
        SparseStrategy([1.0])  # type: ignore[arg-type]
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(GradsiftError, match="no trainable parameters"):
        SparseStrategy(frozen)
    with pytest.raises(GradsiftError, match=r"'weight' is torch\.bfloat16"):
        SparseStrategy(nn.Linear(2, 2).bfloat16())
    strategy, grid = strategy_of(), LocalGrid(app, CLIENTS)
    other = ArrayRecord(nn.Linear(9, 1).state_dict())
    with pytest.raises(GradsiftError, match=r"'weight' has shape \[1, 9\], expected \[1, 10\]"):
        strategy.configure_train(1, other, ConfigRecord(), grid)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    strategy_of(out=out).start(LocalGrid(app, CLIENTS), arrays(), num_rounds=1)
    for options, said in (
        ({"sparsifier": "fub-top-k"}, r"was made with sparsifier FabTopK\(\), not FubTopK\(\)"),
        ({"k": 4}, r"was made with controller Fixed\(k=3\), not Fixed\(k=4\)"),
    ):
        with pytest.raises(GradsiftError, match=said):
            play(strategy_of(out=out, **options), LocalGrid(app, CLIENTS))
    other = SparseStrategy(nn.Linear(3, 1), out=out)
    with pytest.raises(GradsiftError, match="another model"):
        other.configure_train(1, ArrayRecord(nn.Linear(3, 1).state_dict()), ConfigRecord(), LocalGrid(app, CLIENTS))
    (out / "checkpoint-00000001.npz").write_bytes(b"not a checkpoint")
    with pytest.raises(GradsiftError, match=r"checkpoint-00000001\.npz cannot be read"):
        play(strategy_of(out=out), LocalGrid(app, CLIENTS))


def test_clients_that_evaluate_between_rounds_report_whether_they_agree_all_the_same() -> None:
    """An order to evaluate takes the step before the next order to train asks about it."""
    runs = [drivers.on_flower(controller="planned", exchanges=1, fraction_evaluate=part) for part in (0, 1)]
    told = [[record["agreement"] for record in run.records] for run in runs]
    assert told[0] == told[1]
    assert None not in told[0][1:]
