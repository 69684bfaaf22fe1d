"""The run folder of a deployment: the simulator's columns and files, and a run that any kill leaves whole."""

import copy
import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from torch import nn

import gradsift
from gradsift import Controller, CostModel, GradsiftError, Observation, Proposal
from gradsift.cost import Traffic
from gradsift.errors import TakenError
from gradsift.flower import GradientTask, SparseStrategy, gradient_app
from gradsift.flower.protocol import RECORD
from gradsift.records import files
from gradsift.records.folder import RunFolder, checkpoints, read_config, read_records
from gradsift.records.record import COLUMNS, Record
from tests.flower.grid import LocalGrid, node_of
from tests.flower.ledger import Books, app, arrays, catch_up, computed, end, model, play, state_of, strategy_of
from tests.simulation.problems import blobs, mlp

CLIENTS = 3
ROUNDS = 4


class Killed(BaseException):
    """The server's process ends here."""


def evaluate(number: int, record: ArrayRecord) -> MetricRecord:
    """An evaluation by the server."""
    del number
    return MetricRecord({"loss": float(record.to_torch_state_dict()["weight"].square().sum()), "accuracy": 0.5})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_records_in_memory_in_the_folder_and_of_the_simulator_have_the_same_columns(tmp_path: Path) -> None:
    strategy, grid = strategy_of(controller="sign", out=tmp_path / "run"), LocalGrid(app, CLIENTS)
    grid.faults = lambda _, __: "lost" if len(strategy.records) == 2 else ""
    strategy.start(grid, arrays(), num_rounds=ROUNDS, evaluate_fn=evaluate)
    simulated = gradsift.simulate(mlp(), nn.CrossEntropyLoss(), blobs(), rounds=2).records
    assert [record["clients"] for record in strategy.records] == [3, 3, 0, 3]
    for record in [*strategy.records, *simulated]:
        assert tuple(record) == COLUMNS
    for record in strategy.records:
        types = [type(record[name]) for name in ("round", "k", "used_k", "up_bytes")]
        assert types == [int, float, int, float]
    assert read_records(tmp_path / "run") == strategy.records


def test_the_configuration_says_what_was_run(tmp_path: Path) -> None:
    out = tmp_path / "some" / "where" / "run"
    strategy_of(out=out, seed=4, values="int8").start(LocalGrid(app, CLIENTS), arrays(), 2, evaluate_fn=evaluate)
    config = read_config(out)
    assert config["driver"] == "flower"
    assert config["sparsifier"] == {"name": "fab-top-k"}
    assert config["controller"] == {"name": "fixed", "k": 3}
    assert config["values"] == {"name": "int8"}
    assert config["local"] == {"name": "one-gradient"}
    assert config["model"] == {"class": "torch.nn.modules.linear.Linear", "dim": 11}
    assert config["data"] == {"clients": CLIENTS}
    assert (config["settings"]["seed"], config["settings"]["encoded_bytes"]) == (4, True)
    assert config["stop"]["rounds"] == 2
    assert config["start"] == {"global_loss": 0.0, "accuracy": 0.5}
    assert {"gradsift", "flwr", "torch"} <= config["versions"].keys()
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "records.jsonl",
        ".lock",
        "checkpoint-00000001.npz",
        "checkpoint-00000002.npz",
    }


# Evaluation: by the server first, else by the clients.


def recorded(strategy: SparseStrategy, grid: LocalGrid, **start: Any) -> list[tuple[Any, Any, Any]]:
    strategy.start(grid, arrays(), num_rounds=2, **start)
    return [(record["train_loss"], record["global_loss"], record["accuracy"]) for record in strategy.records]


def with_metrics(train: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Callable[[Message], list[Message]]:
    """Replies whose metrics are these, the same from every client."""

    def tamper(reply: Message) -> list[Message]:
        if "metrics" in reply.content:
            given = evaluation if reply.metadata.message_type == "evaluate" else train
            reply.content["metrics"] = MetricRecord({"num-examples": 1, **given})
        return [reply]

    return tamper


@pytest.mark.parametrize("name", ["train-loss", "train_loss", "loss"])
def test_the_loss_of_training_is_the_mean_of_the_clients(name: str) -> None:
    grid, losses = LocalGrid(app, CLIENTS), [1.0, 2.0, 6.0]

    def tamper(reply: Message) -> list[Message]:
        if "metrics" in reply.content:
            client = reply.metadata.src_node_id - node_of(0)
            reply.content["metrics"] = MetricRecord({"num-examples": client + 1, name: losses[client]})
        return [reply]

    grid.tamper = tamper
    assert [row[0] for row in recorded(strategy_of(), grid)] == [pytest.approx((1 + 4 + 18) / 6)] * 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"loss": 2.5, "accuracy": 0.75}, (2.5, 0.75)),
        ({"eval_loss": 2.5, "eval_acc": 0.75}, (2.5, 0.75)),
        ({"eval-loss": 2, "eval-accuracy": 1}, (2.0, 1.0)),
        ({"test_loss": 2.5}, (2.5, None)),
        ({"f1": 0.5}, (None, None)),
        ({"loss": math.nan, "test-loss": 3.5, "accuracy": math.inf}, (3.5, None)),
        ({"loss": [1.0, 2.0], "acc": 0.5}, (None, 0.5)),
    ],
)
def test_an_evaluation_by_the_clients_is_recorded(
    given: dict[str, Any], expected: tuple[Any, Any], tmp_path: Path
) -> None:
    """A metric that is not a finite number is recorded as None, and does not end the run."""
    grid = LocalGrid(app, CLIENTS)
    grid.tamper = with_metrics({"loss": math.nan}, given)
    strategy = strategy_of(fraction_evaluate=1.0, out=tmp_path / "run")
    wanted = [None if value is None else pytest.approx(value) for value in (None, *expected)]
    assert recorded(strategy, grid) == [tuple(wanted)] * 2
    assert read_records(tmp_path / "run") == strategy.records


def test_an_evaluation_by_the_server_comes_first(tmp_path: Path) -> None:
    grid = LocalGrid(app, CLIENTS)
    grid.tamper = with_metrics({}, {"loss": 9.0, "accuracy": 0.25})
    strategy = strategy_of(fraction_evaluate=1.0, out=tmp_path / "run")
    assert recorded(strategy, grid, evaluate_fn=lambda number, _: MetricRecord({"loss": float(number)})) == [
        (None, 1.0, 0.25),
        (None, 2.0, 0.25),
    ]
    assert read_config(tmp_path / "run")["start"] == {"global_loss": 0.0, "accuracy": None}
    silent = strategy_of(fraction_evaluate=1.0)
    assert recorded(silent, grid, evaluate_fn=lambda *_: None) == [(None, 9.0, 0.25)] * 2


# Kills.

FORMS = [{"exchanges": 1}, {"exchanges": 2}]
# Bytes differ after a kill: clients report again what they hold, and are sent again which elements were kept.
BYTES = {"up_bytes", "down_bytes"}


def without_bytes(records: list[Record]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name not in BYTES} for record in records]


def learning(out: Path | None = None, **options: Any) -> SparseStrategy:
    return strategy_of(**{"controller": "sign", "fraction_evaluate": 1.0, "out": out, **options})


def go(strategy: SparseStrategy, grid: LocalGrid) -> SparseStrategy:
    strategy.start(grid, arrays(), num_rounds=ROUNDS, evaluate_fn=evaluate)
    return strategy


def kill_at(patch: pytest.MonkeyPatch, place: str, number: int, *, before: bool) -> None:
    """The server ends before or after the given call of this method of the strategy."""
    call, count = getattr(SparseStrategy, place), [0]

    def ending(strategy: SparseStrategy, *given: Any) -> Any:
        count[0] += 1
        if before and count[0] == number:
            raise Killed
        result = call(strategy, *given)
        if count[0] == number:
            raise Killed
        return result

    patch.setattr(SparseStrategy, place, ending)


MOMENTS = {
    "between the rounds": ("configure_train", 3, True),
    "after the merge": ("aggregate_train", 2, False),
    "before the second exchange": ("configure_evaluate", 2, True),
    "between the exchanges": ("configure_evaluate", 2, False),
    "before the losses are taken in": ("aggregate_evaluate", 2, True),
    "after the evaluation by the clients": ("aggregate_evaluate", 2, False),
    "after the last merge": ("aggregate_train", ROUNDS, False),
    "after the last evaluation": ("aggregate_evaluate", ROUNDS, False),
    "before anything": ("configure_train", 1, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", FORMS, ids=["one exchange", "two exchanges"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_is_continued_as_if_nothing_had_been(
    how: dict[str, Any], moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go(learning(**how), LocalGrid(app, CLIENTS))
    place, number, before = MOMENTS[moment]
    grid, out = LocalGrid(app, CLIENTS), tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at(patch, place, number, before=before)
        with pytest.raises(Killed):
            go(learning(out, **how), grid)
    continued = go(learning(out, **how), grid)
    assert without_bytes(continued.records) == without_bytes(whole.records)
    assert read_records(out) == continued.records
    ours, theirs = continued.rounds, whole.rounds
    assert torch.equal(ours.weights, theirs.weights)
    assert (ours.server.control, ours.server.spent) == (theirs.server.control, theirs.server.spent)


def test_a_run_killed_by_its_own_evaluation_function_has_it_once_more(tmp_path: Path) -> None:
    grid, out, asked = LocalGrid(app, CLIENTS), tmp_path / "run", []

    def failing(number: int, record: ArrayRecord) -> MetricRecord:
        asked.append(number)
        if len(asked) == 3:
            raise Killed
        return evaluate(number, record)

    how: dict[str, Any] = {"fraction_evaluate": 0}
    with pytest.raises(Killed):
        learning(out, **how).start(grid, arrays(), num_rounds=ROUNDS, evaluate_fn=failing)
    strategy = learning(out, **how)
    strategy.start(grid, arrays(), num_rounds=ROUNDS, evaluate_fn=failing)
    assert asked == [0, 1, 2, 2, 3, 4]
    assert strategy.records == go(learning(**how), LocalGrid(app, CLIENTS)).records


@pytest.mark.parametrize("how", FORMS, ids=["one exchange", "two exchanges"])
def test_what_the_clients_evaluated_survives_a_kill_between_the_rounds(
    how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no evaluation by the server, which could be made again."""
    whole, grid, out = learning(**how), LocalGrid(app, CLIENTS), tmp_path / "run"
    whole.start(LocalGrid(app, CLIENTS), arrays(), num_rounds=ROUNDS)
    with monkeypatch.context() as patch:
        kill_at(patch, "configure_train", 3, before=True)
        with pytest.raises(Killed):
            learning(out, **how).start(grid, arrays(), num_rounds=ROUNDS)
    continued = learning(out, **how)
    continued.start(grid, arrays(), num_rounds=ROUNDS)
    assert all(record["global_loss"] is not None for record in continued.records)
    assert without_bytes(continued.records) == without_bytes(whole.records)
    assert continued.records[:2] == whole.records[:2]  # with their bytes


class Cut:
    """The n-th write stops in its middle and ends the process, which leaves the temporary files of a kill behind."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int) -> None:
        self.left, self.cut = number, ""
        write, append = files.write, RunFolder.append

        def cut_file(path: Path, content: Callable[[Any], object] | bytes) -> None:
            if self._now(path.name):
                path.with_name(f".{path.name}.1.tmp").write_bytes(b"PK half a file")
                raise Killed
            write(path, content)

        def cut_line(folder: RunFolder, record: Mapping[str, Any]) -> None:
            if self._now("records.jsonl"):
                with open(folder.path / "records.jsonl", "ab") as file:
                    file.write(files.as_json(record)[:40])
                raise Killed
            append(folder, record)

        patch.setattr(files, "write", cut_file)
        patch.setattr(RunFolder, "append", cut_line)

    def _now(self, what: str) -> bool:
        self.left -= 1
        self.cut = what if self.left == 0 else self.cut
        return self.left == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", FORMS, ids=["one exchange", "two exchanges"])
def test_whatever_is_cut_while_it_is_written_nothing_is_missing_or_there_twice(
    how: dict[str, Any], tmp_path: Path
) -> None:
    """Every write of a run in turn. The clients go on from where they are, or back to where the server is."""
    whole = go(learning(**how), LocalGrid(app, CLIENTS))
    cut_files = set()
    for number in range(1, 100):
        out = tmp_path / str(number)
        grid, at_save = LocalGrid(app, CLIENTS), dict[str, Any]()
        with pytest.MonkeyPatch.context() as patch:
            books, save = Books(patch), RunFolder.save

            def saved(folder: RunFolder, *given: Any, grid: LocalGrid = grid, at: dict[str, Any] = at_save) -> None:
                save(folder, *given)  # noqa: B023
                at["contexts"] = copy.deepcopy(grid.contexts)

            patch.setattr(RunFolder, "save", saved)
            cut = Cut(patch, number)
            try:
                go(learning(out, **how), grid)
            except Killed:
                pass
            else:
                break
        cut_files.add(cut.cut)
        # All of it went down together: the same weights and records as if nothing had been.
        both, there = LocalGrid(app, CLIENTS), tmp_path / f"{number} with clients"
        if out.exists():
            shutil.copytree(out, there)
        both.contexts = copy.deepcopy(at_save.get("contexts", both.contexts))
        continued = go(learning(there, **how), both)
        assert without_bytes(continued.records) == without_bytes(whole.records), number
        assert read_records(there) == continued.records
        assert torch.equal(continued.rounds.weights, whole.rounds.weights), number
        # Only the server did: a round that the clients had trained for is trained again, and no gradient is lost.
        with pytest.MonkeyPatch.context() as patch:
            merged_since = books.delivered
            books = Books(patch)
            continued = learning(out, **how)
            restored = 0 if not out.exists() else int(checkpoints(out)[-1].stem.removeprefix("checkpoint-"))
            books.delivered = {
                client: {number: value for number, value in rounds.items() if number <= restored}
                for client, rounds in merged_since.items()
            }
            go(continued, grid)
            assert [record["round"] for record in read_records(out)] == list(range(1, ROUNDS + 1))
            assert read_records(out) == continued.records
            catch_up(continued, grid)
            end(continued)
            for client in range(CLIENTS):
                state = state_of(continued, grid, client)
                assert state is not None
                assert torch.equal(books.total(client) + state.residual, computed(grid, client)), (number, client)
        assert {path.name for path in out.iterdir() if path.name.endswith(".tmp")} == set()
    assert cut_files == {
        "config.json",
        "records.jsonl",
        *(f"checkpoint-{number:08d}.npz" for number in range(ROUNDS + 1)),
    }


def test_a_strategy_may_be_started_again(tmp_path: Path) -> None:
    """On the same object: it goes on from its folder, as a new one would."""
    whole = go(learning(), LocalGrid(app, CLIENTS))
    grid, strategy = LocalGrid(app, CLIENTS), learning(tmp_path / "run")
    for rounds in (1, 3, ROUNDS, ROUNDS):
        strategy.start(grid, arrays(), num_rounds=rounds, evaluate_fn=evaluate)
        assert read_config(tmp_path / "run")["stop"]["rounds"] == rounds
    assert without_bytes(strategy.records) == without_bytes(whole.records)
    assert torch.equal(strategy.rounds.weights, whole.rounds.weights)
    assert strategy.refused == []
    assert len({message.content.config_records[RECORD]["session"] for message in grid.sent}) == 4


def test_a_client_that_came_in_a_round_that_was_lost_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strategy goes back to a checkpoint that does not know of it."""
    grid, strategy = LocalGrid(app, CLIENTS + 1), learning(tmp_path / "run", fraction_evaluate=0)
    late = grid.contexts.pop(node_of(CLIENTS))

    def come(reply: Message) -> list[Message]:
        grid.contexts[node_of(CLIENTS)] = late
        return [reply]

    with monkeypatch.context() as patch:
        kill_at(patch, "aggregate_train", 2, before=True)
        grid.tamper = come
        with pytest.raises(Killed):
            go(strategy, grid)
    assert CLIENTS in strategy.rounds.clients
    go(strategy, grid)
    assert [record["clients"] for record in strategy.records] == [3, 4, 4, 4]
    assert strategy.refused == []


# Folders that cannot be taken.


def test_a_second_server_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first, early = learning(out), learning(out)  # both before there is a folder
    grid = LocalGrid(app, CLIENTS)
    play(first, grid)
    for second in (early, learning(out)):
        other = LocalGrid(app, CLIENTS)
        before = contents(out)
        with pytest.raises(TakenError, match=f"{out} is in use by another process"):
            go(second, other)
        assert other.sent == []  # no client has heard of it
        assert contents(out) == before
    play(first, grid, 2)
    end(first)
    assert [record["round"] for record in go(learning(out), grid).records] == [1, 2, 3, 4]


def test_a_folder_that_is_no_run_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(GradsiftError, match="exists already and is not a run: choose another folder"):
        learning(tmp_path)
    with pytest.raises(GradsiftError, match="out must be a folder"):
        learning(tmp_path / "notes.txt" / "run")


def test_the_folder_of_a_simulated_run_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """Also its records after the last checkpoint, which restoring would remove."""
    out = tmp_path / "run"
    with pytest.raises(Killed):
        gradsift.simulate(
            mlp(),
            nn.CrossEntropyLoss(),
            blobs(),
            rounds=9,
            out=out,
            checkpoint_every=5,
            on_round=lambda record: _kill(record["round"] == 7),
        )
    before = contents(out)
    assert len(read_records(out)) == 7
    with pytest.raises(GradsiftError, match="is a simulated run: Flower cannot continue it, choose another folder"):
        go(SparseStrategy(mlp(), out=out), LocalGrid(app, CLIENTS))
    assert contents(out) == before
    result = gradsift.simulate(mlp(), nn.CrossEntropyLoss(), blobs(), rounds=9, out=out, resume=True)
    assert len(result.records) == 9


def _kill(now: bool) -> None:
    if now:
        raise Killed


def test_the_folder_of_a_deployment_is_refused_by_the_simulator(tmp_path: Path) -> None:
    out = tmp_path / "run"
    go(learning(out), LocalGrid(app, CLIENTS))
    before = contents(out)
    with pytest.raises(GradsiftError, match="is a run on Flower: the simulator cannot resume it"):
        gradsift.simulate(mlp(), nn.CrossEntropyLoss(), blobs(), rounds=9, out=out, resume=True)
    with pytest.raises(TakenError, match="exists already"):
        gradsift.simulate(mlp(), nn.CrossEntropyLoss(), blobs(), rounds=9, out=out)
    assert contents(out) == before
    go(learning(out), LocalGrid(app, CLIENTS))


# Clients that come later.


class Own(Controller[None]):
    """k for each of four places, always the same."""

    learns = False

    def init(self, dim: int, seed: int = 0) -> None:
        del dim, seed

    def propose(self, state: None, number: int) -> Proposal:
        del state
        return Proposal(number, (2.0, 4.0, 6.0, 8.0))

    def update(self, state: None, seen: Observation) -> None:
        del state, seen


class Places(CostModel):
    """The digits of a cost are the places of those that took part, the first on the right."""

    def round_cost(self, traffic: Traffic) -> float:
        return float(sum(10**place for place in np.flatnonzero(traffic.took_part)))


def test_places_are_those_of_the_numbers_whoever_comes_first(tmp_path: Path) -> None:
    """Of k, of rates and of contributions: client 3 comes in round 2, client 0 in round 3, then the server restarts."""
    out, grid = tmp_path / "run", LocalGrid(app, 4)
    late = {client: grid.contexts.pop(node_of(client)) for client in (3, 0)}
    asked: list[dict[int, int]] = []

    def go_on(strategy: SparseStrategy) -> None:
        before = len(grid.sent)
        play(strategy, grid)
        orders = [(m.metadata.dst_node_id - node_of(0), m.content.config_records[RECORD]) for m in grid.sent[before:]]
        asked.append({client: int(str(order["k"])) for client, order in orders if order["act"] == "train"})

    def server() -> SparseStrategy:
        return strategy_of(out=out, sparsifier="unidirectional-top-k", controller=Own(), cost=Places())

    strategy = server()
    for joins in (None, 3, 0):
        if joins is not None:
            grid.contexts[node_of(joins)] = late[joins]
        go_on(strategy)
    end(strategy)
    strategy = server()
    absent = grid.contexts.pop(node_of(1))
    go_on(strategy)
    grid.contexts[node_of(1)] = absent
    go_on(strategy)
    end(strategy)
    assert strategy.refused == []
    assert list(strategy.rounds.clients) == [0, 1, 2, 3]
    everyone = {0: 2, 1: 4, 2: 6, 3: 8}
    assert asked == [{1: 2, 2: 4}, {1: 2, 2: 4, 3: 6}, everyone, {0: 2, 2: 6, 3: 8}, everyone]
    records = strategy.records  # every element that is sent is kept
    assert [record["contribution"] for record in records] == [
        [2, 4],
        [2, 4, 6],
        [2, 4, 6, 8],
        [2, 0, 6, 8],
        [2, 4, 6, 8],
    ]
    assert [record["client_k"] for record in records] == [list(by_client.values()) for by_client in asked]
    assert [record["round_cost"] for record in records] == [11, 111, 1111, 1101, 1111]


def test_numbers_beyond_those_of_floats_are_told_apart() -> None:
    """One client of two whose numbers are the same float does not take part, and is not taken for the other."""
    strategy, grid = strategy_of(min_train_nodes=1, min_available_nodes=1), LocalGrid(app, 1)
    for client in (2**63 + 2, 2**63 + 3):
        grid.contexts[client] = Context(1, client, {"partition-id": client}, copy.deepcopy(grid.context(0).state), {})
    grid.make = gradient_of_ones
    play(strategy, grid)
    lost = 2**63 + 3
    grid.faults = lambda node, _: "lost" if node == lost else ""
    record = play(strategy, grid)
    assert record["clients"] == 2
    assert [count > 0 for count in record["contribution"]] == [True, True, False]


def gradient_of_ones() -> Any:
    def task(context: Context) -> GradientTask:
        del context
        x = torch.ones(4, 10, dtype=torch.float64)
        return GradientTask(model(), nn.MSELoss(), x, torch.ones(4, 1, dtype=torch.float64))

    return gradient_app(task, probe=False)


def test_nothing_but_the_folder_is_written(tmp_path: Path) -> None:
    go(learning(tmp_path / "run"), LocalGrid(app, CLIENTS))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["run"]


def test_a_config_is_not_changed_by_a_train_config(tmp_path: Path) -> None:
    """What the user gives to the clients is theirs."""
    strategy, grid = learning(tmp_path / "run"), LocalGrid(app, CLIENTS)
    strategy.start(grid, arrays(), num_rounds=1, train_config=ConfigRecord({"x": 3}))
    assert all("x" not in record for record in strategy.records)
