"""Which node is which client: invalid client numbers, and nodes that wait for a number that is taken."""

import copy
from collections.abc import Callable, Iterable

import pytest
from flwr.app import Message

from gradsift.flower.protocol import RECORD
from tests.flower.grid import LocalGrid, node_of
from tests.flower.ledger import app, play, strategy_of

CLIENTS = 3


def answering_as(name: str, node: int) -> Callable[[Message], Iterable[Message]]:
    def tamper(reply: Message) -> Iterable[Message]:
        if reply.metadata.src_node_id == node and not reply.has_error():
            reply.content.config_records[RECORD]["client"] = name
        return [reply]

    return tamper


@pytest.mark.parametrize("name", ["9" * 5000, "9" * 21, "00", "01", "-1", "+1", "1_0", " 1", "\u0661", "x", ""])
def test_an_invalid_client_number_is_refused_and_the_others_go_on(name: str) -> None:
    strategy, grid = strategy_of(), LocalGrid(app, CLIENTS)
    grid.tamper = answering_as(name, node_of(1))
    for number in (1, 2):
        assert play(strategy, grid, number)["clients"] == CLIENTS - 1
    assert set(strategy._roster.client_of.values()) == {0, 2}
    assert {refusal.node for refusal in strategy.refused} == {node_of(1)}
    assert {refusal.client for refusal in strategy.refused} == {None}
    for refusal in strategy.refused:
        assert f"it answers as client {name!r:.80} of session" in refusal.reason
        assert len(refusal.reason) < 300
    grid.tamper = lambda reply: [reply]
    assert play(strategy, grid, 3)["clients"] == CLIENTS  # it is asked again


def test_the_largest_number_of_a_node_is_taken() -> None:
    strategy, grid = strategy_of(), LocalGrid(app, CLIENTS)
    grid.tamper = answering_as(str(2**64 - 1), node_of(1))
    assert play(strategy, grid)["clients"] == CLIENTS
    assert strategy._roster.client_of[node_of(1)] == 2**64 - 1


def test_a_node_that_was_turned_away_is_asked_again_when_the_other_is_gone() -> None:
    strategy, grid = strategy_of(min_available_nodes=1, min_train_nodes=1), LocalGrid(app, CLIENTS)
    play(strategy, grid)
    grid.contexts[5000] = copy.deepcopy(grid.context(1))  # client 1 as a new node, while the old one is still listed
    grid.contexts[5000].node_id = 5000
    play(strategy, grid)
    assert strategy._roster.turned_away == {5000: 1}
    asked = len(grid.sent)
    play(strategy, grid)
    assert len(grid.sent) == asked + CLIENTS  # nobody asks it in vain
    del grid.contexts[node_of(1)]
    assert [play(strategy, grid)["clients"] for _ in range(3)][-1] == CLIENTS
    assert strategy._roster.client_of[5000] == 1
    assert strategy._roster.turned_away == {}
    # The old node is back: now it is the one too many.
    grid.contexts[node_of(1)] = grid.fresh(node_of(1), 1)
    assert play(strategy, grid)["clients"] == CLIENTS
    assert strategy._roster.turned_away == {node_of(1): 1}
