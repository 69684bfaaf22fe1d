"""Nothing is delivered twice and nothing is lost that its owner still has, whatever happens to messages and states."""

import copy
import functools
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message
from hypothesis import given
from hypothesis import strategies as st

from gradsift import FewBits, LocalSteps
from gradsift.flower import SparseStrategy
from gradsift.flower.rounds import Rounds
from tests.examples import examples
from tests.flower.each_its_own import EachItsOwn
from tests.flower.grid import Fault, LocalGrid, no_fault, node_of
from tests.flower.ledger import Books, app, arrays, catch_up, computed, end, play, state_of, strategy_of

pytestmark = pytest.mark.slow  # many runs

CLIENTS = 4
WHO = st.integers(0, CLIENTS - 1)
FAULTS: list[Fault] = ["lost", "reply lost", "twice", "killed"]
EVENTS = st.one_of(
    st.tuples(st.sampled_from(FAULTS), WHO),
    st.tuples(st.sampled_from(["restart", "remember", "roll back"]), WHO),
    st.tuples(st.sampled_from(["server restart", "server ends halfway"]), WHO),
)


def assert_balanced(
    strategy: SparseStrategy, grid: LocalGrid, books: Books, written_off: dict[int, torch.Tensor]
) -> None:
    """Every client holds the server's weights; what it computed is delivered, or still in its residual."""
    catch_up(strategy, grid)
    rounding = 1e-12 if strategy.options.method.values == FewBits() else 0.0  # its levels are means
    for client in range(CLIENTS):
        state = state_of(strategy, grid, client)
        assert state is not None
        assert torch.equal(state.weights, strategy.rounds.weights), client
        delivered = books.total(client) - written_off.get(client, torch.zeros(()))
        torch.testing.assert_close(delivered + state.residual, computed(grid, client), rtol=0, atol=rounding)
        torch.testing.assert_close(state.memory, strategy.rounds.memory, rtol=0, atol=0)


def fault_of(faults: dict[int, Any], node: int, message: Message) -> Fault:
    del message
    fault: Fault = faults.get(node, "")
    return fault


@given(
    rounds=st.lists(st.lists(EVENTS, max_size=3), min_size=2, max_size=10),
    sparsifier=st.sampled_from(["fab-top-k", "fub-top-k", "periodic-k", "unidirectional-top-k"]),
    controller=st.sampled_from(["fixed", "sign", "planned", EachItsOwn(CLIENTS, most=11.0)]),
    local=st.sampled_from([None, LocalSteps(2)]),
    values=st.sampled_from(["exact", "float16", "int8", "few-bits"]),
    down_values=st.sampled_from(["exact", "exact", "int8", "few-bits"]),
    server=st.sampled_from(["sgd", "sgd", "momentum"]),
    kept_updates=st.sampled_from([1, 2, 100]),
    fraction=st.sampled_from([0.5, 0.75, 1.0]),
    exchanges=st.sampled_from([1, 2]),
)
@examples(40)
def test_the_books_are_balanced(
    tmp_path_factory: pytest.TempPathFactory,
    rounds: list[list[tuple[str, int]]],
    sparsifier: str,
    controller: str | EachItsOwn,
    local: LocalSteps | None,
    values: str,
    down_values: str,
    server: str,
    kept_updates: int,
    fraction: float,
    exchanges: int,
) -> None:
    out = tmp_path_factory.mktemp("server") / "run"
    how: dict[str, Any] = {"sparsifier": sparsifier, "controller": controller, "out": out}
    how |= {"local": local, "values": values, "fraction_train": fraction, "exchanges": exchanges}
    how |= {"down_values": down_values, "server": server}
    written_off: dict[int, torch.Tensor] = {}
    remembered: dict[int, Context] = {}
    with pytest.MonkeyPatch.context() as patch:
        strategy, grid, books = strategy_of(**how), LocalGrid(app, CLIENTS), Books(patch)
        patch.setattr(Rounds, "_fit", lambda _, updates: len(updates) <= kept_updates)
        for happens in rounds:
            faults: dict[int, Any] = {}
            for what, client in happens:
                if what in FAULTS:
                    faults[node_of(client)] = what
                elif what == "restart":  # without its state: what it had not delivered is gone
                    grid.restart(client)
                    remembered.pop(client, None)
                    written_off[client] = books.total(client)
                elif what == "remember":
                    remembered[client] = copy.deepcopy(grid.context(client))
                elif what == "roll back" and client in remembered:
                    grid.contexts[node_of(client)] = remembered.pop(client)
                    state = state_of(strategy, grid, client)
                    if books.last(client) > (0 if state is None else state.uploaded):
                        # It does not know which upload was merged since, so it discards its residual.
                        written_off[client] = books.total(client) - computed(grid, client)
                elif what == "server restart":
                    end(strategy)
                    strategy = strategy_of(**how)
            grid.faults = functools.partial(fault_of, faults)
            if any(what == "server ends halfway" for what, _ in happens):  # after the uploads, before the losses
                messages = strategy.configure_train(0, arrays(), ConfigRecord(), grid)
                strategy.aggregate_train(0, grid.send_and_receive(messages))
                end(strategy)
                strategy = strategy_of(**how)
            play(strategy, grid)
        grid.faults = no_fault
        play(strategy, grid)
        assert_balanced(strategy, grid, books, written_off)
        end(strategy)
    assert all(refusal.reason.startswith(("it failed: fault", "it is behind")) for refusal in strategy.refused)
