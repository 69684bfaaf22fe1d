"""Real encoded sizes in the records and in the costs, where they are asked for."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradsift
from gradsift import LinkTime, Settings
from gradsift.simulation.engine import Engine
from gradsift.simulation.schedule import Constant
from gradsift.sparse import Sparse
from gradsift.wire import encode
from tests.simulation.problems import blobs, mlp

CLIENTS = 6


def engine(sparsifier: str, **settings: Any) -> Engine:
    dense = gradsift.sparsifier(sparsifier).dense
    controller = gradsift.controller("fixed", k=9) if dense else gradsift.controller("sign")
    cost = LinkTime(up_bandwidth=100.0, down_bandwidth=300.0, latency=0.5, compute=1.0)
    return Engine(
        mlp(), nn.CrossEntropyLoss(), blobs(), gradsift.sparsifier(sparsifier), controller, cost, Constant(0.3),
        Settings(batch_size=8, encoded_bytes=True, **settings), device=torch.device("cpu"), dtype=torch.float32,
    )  # fmt: skip


@pytest.mark.parametrize("sparsifier", gradsift.sparsifiers())
@pytest.mark.parametrize("clients_per_round", [None, 4])
def test_bytes_are_those_of_the_messages(
    sparsifier: str, clients_per_round: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = engine(sparsifier, clients_per_round=clients_per_round)
    sent: dict[str, Sparse] = {}
    kind = type(run.sparsifier)
    choose, combine = kind.choose, kind.combine

    def choosing(self: Any, residual: Any, rnd: Any) -> Sparse:
        chosen = choose(self, residual, rnd)
        sent["up"] = chosen._replace(values=chosen.values.clone())  # as it is now: settling changes the residual
        return chosen

    def combining(self: Any, uploads: Any, share: Any, rnd: Any) -> Sparse:
        merged = combine(self, uploads, share, rnd)
        sent["down" if rnd.k == sent_k[0] else "probe"] = merged
        return merged

    sent_k = [0]
    monkeypatch.setattr(kind, "choose", choosing)
    monkeypatch.setattr(kind, "combine", combining)
    for number in range(1, 8):
        proposal = run.controller.propose(run.state.control, number)
        sent_k[0] = gradsift.round_k(proposal.k, 0, number)
        record = run.step()
        up, down = sent["up"], sent["down"]
        rows = [len(encode(Sparse(i, v, up.dim))) for i, v in zip(up.indices, up.values, strict=True)]
        bytes_up = sum(rows) if up.size else 0
        bytes_down = len(encode(down)) if down.size else 0
        assert record["up_bytes"] == bytes_up
        assert record["down_bytes"] == bytes_down * CLIENTS
        slowest = max(rows) if up.size else 0
        seconds = 1.0
        for size, bandwidth in ((slowest, 100.0), (bytes_down, 300.0)):
            seconds += 0.5 + size / bandwidth if size else 0.0
        assert record["round_cost"] == pytest.approx(seconds)


def test_a_probe_is_priced_by_what_would_have_been_sent() -> None:
    run = engine("fab-top-k")
    before = run.state.residual.clone()
    proposal = run.controller.propose(run.state.control, 1)
    k = gradsift.round_k(proposal.k, 0, 1)
    assert proposal.probe_k is not None
    probe_k = gradsift.round_probe_k(proposal.probe_k, k, 0, 1)
    assert not before.any()
    seen = []
    learn = run.controller.learn

    def learning(state: Any, observation: gradsift.Observation) -> Any:
        seen.append(observation)
        return learn(state, observation)

    object.__setattr__(run.controller, "learn", learning)
    run.step()
    cheap = Engine(
        mlp(), nn.CrossEntropyLoss(), blobs(), run.sparsifier, gradsift.controller("fixed", k=probe_k), run.cost,
        Constant(0.3), run.settings, device=torch.device("cpu"), dtype=torch.float32,
    )  # fmt: skip
    assert seen[0].probe_cost == pytest.approx(cheap.step()["round_cost"])


def test_without_the_setting_a_number_is_four_bytes() -> None:
    run = engine("fab-top-k")
    plain = Engine(
        mlp(), nn.CrossEntropyLoss(), blobs(), run.sparsifier, run.controller, run.cost, Constant(0.3),
        Settings(batch_size=8), device=torch.device("cpu"), dtype=torch.float32,
    )  # fmt: skip
    record = plain.step()
    assert record["up_bytes"] == 8 * record["up_elements"] * CLIENTS
    assert record["up_bytes"] != run.step()["up_bytes"]
    assert np.isfinite(record["round_cost"])


def test_a_whole_vector_is_sized_before_it_is_settled() -> None:
    run = engine("send-all")
    assert run.step()["up_bytes"] > 4 * 57 * CLIENTS * 0.5  # of zeros it would be a few bytes
