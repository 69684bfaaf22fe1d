"""A client's state survives: in Flower's context while it fits, in files beyond, through kills and damage."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.common.serde import context_from_proto, context_to_proto

from gradsift import GradsiftError
from gradsift.errors import RunError
from gradsift.flower import client_state
from gradsift.flower.client_state import CONTEXT_LIMIT, ClientState, Store
from gradsift.flower.layout import Layout
from tests.doc_pages import ROOT
from tests.flower.grid import LocalGrid
from tests.flower.ledger import DIM, Books, app, catch_up, computed, end, play, state_of, strategy_of

LARGE = 30_000_000
EXPERIMENT = "0123456789abcdef"


def context() -> Context:
    return Context(1, 2, {"partition-id": 3}, RecordDict(), {})


def state(dim: int, fill: float = 1.0, version: int = 4) -> ClientState:
    layout = Layout({"weight": (dim,)}, {"weight": "float32"}, {})
    weights = torch.full((dim,), fill)
    return ClientState(
        layout,
        weights,
        -weights,
        {"buffer": torch.arange(3)},
        version,
        last_settled=5,
        uploaded=6,
        upload=b"\x00bytes\xff",
        session="s",
        sessions="r s",
        report="{}",
        local_buffers={"buffer": torch.arange(3) + 1},
        memory={"velocity": torch.arange(3.0)},
    )


def assert_same(one: ClientState | None, other: ClientState) -> None:
    assert one is not None
    for name in ("layout", "version", "last_settled", "uploaded", "upload", "session", "sessions", "report"):
        assert getattr(one, name) == getattr(other, name), name
    assert torch.equal(one.weights, other.weights)
    assert torch.equal(one.residual, other.residual)
    for group in ("non_trainable", "local_buffers", "memory"):
        mine, theirs = getattr(one, group), getattr(other, group)
        assert mine.keys() == theirs.keys(), group
        assert all(torch.equal(mine[name], theirs[name]) for name in mine), group


def test_a_small_state_is_in_the_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    where = context()
    Store(where, EXPERIMENT, "3", None).save(state(10))
    assert list(tmp_path.iterdir()) == []
    back = context_from_proto(context_to_proto(where))
    assert_same(Store(back, EXPERIMENT, "3", None).load(), state(10))
    assert Store(back, "f" * 16, "3", None).load() is None
    assert Store(context(), EXPERIMENT, "3", None).load() is None


def test_a_given_folder_is_used_for_any_size(tmp_path: Path) -> None:
    where = context()
    Store(where, EXPERIMENT, "3", tmp_path).save(replace(state(10), upload=b""))
    assert not where.state
    assert (tmp_path / EXPERIMENT / "client-3.npz").is_file()
    assert_same(Store(context(), EXPERIMENT, "3", tmp_path).load(), replace(state(10), upload=b""))


@pytest.mark.slow
def test_thirty_million_weights_are_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    where = context()
    Store(where, EXPERIMENT, "3", None).save(state(10))
    large = state(LARGE, 2.5)
    Store(where, EXPERIMENT, "3", None).save(large)
    assert (tmp_path / "gradsift" / EXPERIMENT / "client-3.npz").is_file()
    assert sum(record.count_bytes() for record in where.state.values()) < CONTEXT_LIMIT
    assert_same(Store(where, EXPERIMENT, "3", None).load(), large)


WRITER = """
import sys
from pathlib import Path
from tests.flower.test_client_state import EXPERIMENT, LARGE, Store, context, state
for version in range(1, 1000):
    Store(context(), EXPERIMENT, "3", Path(sys.argv[1])).save(state(LARGE, float(version), version))
    print(version, flush=True)
"""


@pytest.mark.slow
def test_a_kill_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    """kill -9 at different moments while 30 million weights are written, again and again."""
    known = 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for delay in (0.05, 0.2):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
        ) as writer:
            assert writer.stdout is not None
            known = int(writer.stdout.readline())
            time.sleep(delay)  # now it writes the next one
            os.kill(writer.pid, signal.SIGKILL)
        found = Store(context(), EXPERIMENT, "3", tmp_path).load()
        assert found is not None
        assert found.version >= known
        assert_same(found, state(LARGE, float(found.version), found.version))


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    store = Store(context(), EXPERIMENT, "3", tmp_path)
    store.save(state(1000))
    whole = store.path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:]):
        store.path.write_bytes(damaged)
        with pytest.raises(GradsiftError, match=r"client-3\.npz cannot be read"):
            store.load()


def test_with_files_the_residual_outlives_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new run has new contexts; with a checkpoint and a folder nothing is lost."""
    books = Books(monkeypatch)
    how = {"out": tmp_path / "run"}
    grid = LocalGrid(lambda: app(tmp_path / "clients"), 3)
    strategy = strategy_of(**how)
    for number in (1, 2, 3):
        play(strategy, grid, number)
    before = {client: computed(grid, client) for client in range(3)}
    for client in range(3):
        grid.restart(client)
    end(strategy)
    strategy = strategy_of(**how)
    for number in (4, 5):
        play(strategy, grid, number)
    catch_up(strategy, grid)
    end(strategy)
    assert strategy.refused == []
    for client in range(3):
        kept = state_of(strategy, grid, client, tmp_path / "clients")
        assert kept is not None
        assert torch.equal(books.total(client) + kept.residual, before[client] + computed(grid, client))


LIMITS = {
    "a limit that the upload crosses": [2 * DIM * 8 + 20] * 8,
    "a limit that moves": [10**6, 1, 1, 10**6, 10**6, 1, 10**6, 1],
}


@pytest.mark.parametrize("how", LIMITS)
def test_a_state_that_moves_between_context_and_file_loses_nothing(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    books, grid = Books(monkeypatch), LocalGrid(app, 3)
    strategy = strategy_of(fraction_evaluate=1.0)
    places = set()
    for number, limit in enumerate(LIMITS[how], 1):
        monkeypatch.setattr(client_state, "CONTEXT_LIMIT", limit)
        record = play(strategy, grid, number)
        assert (record["clients"], record["resets"]) == (3, 0)
        places.add(client_state.FACTS in grid.context(0).state)
    assert strategy.refused == []
    assert places == ({True, False} if how == "a limit that moves" else {True})
    catch_up(strategy, grid)
    for client in range(3):
        kept = state_of(strategy, grid, client)
        assert kept is not None
        assert torch.equal(books.total(client) + kept.residual, computed(grid, client))


def test_where_the_state_is_does_not_depend_on_the_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr(client_state, "CONTEXT_LIMIT", 1000)
    where = context()
    for size in (1, 5000, 1):
        Store(where, EXPERIMENT, "3", None).save(replace(state(100), upload=bytes(range(1, 256)) * size))
        assert client_state.FACTS in where.state
    Store(where, EXPERIMENT, "3", None).save(state(200))
    assert client_state.FACTS not in where.state


@pytest.mark.parametrize(
    "experiment", ["../../escaped", "/tmp/escaped", "0123456789ABCDEF", "0" * 17, "", "0" * 15 + "\n"]
)
def test_a_server_cannot_name_a_folder_elsewhere(experiment: str, tmp_path: Path) -> None:
    strategy, grid = strategy_of(), LocalGrid(lambda: app(tmp_path / "a" / "b"), 2)
    strategy._log.experiment = experiment
    with pytest.raises(RunError, match="no client has identified itself"):
        play(strategy, grid)
    assert all("must be 16 hexadecimal digits" in refusal.reason or not experiment for refusal in strategy.refused)
    assert len(strategy.refused) == 2
    assert list(tmp_path.rglob("*")) == []
    with pytest.raises(GradsiftError, match="must be 16 hexadecimal digits"):
        Store(context(), experiment, "3", tmp_path)
