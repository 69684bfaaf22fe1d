"""Real encoded sizes in the records and in the costs, where they are asked for."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradsift
from gradsift import LinkTime
from gradsift.simulation.engine import Engine
from gradsift.sparse import Sparse
from gradsift.wire import encode
from tests.simulation import hand
from tests.simulation.problems import blobs, mlp

CLIENTS = 6


def engine(sparsifier: str, control: gradsift.Controller[Any] | None = None, **options: Any) -> Engine:
    dense = gradsift.sparsifier(sparsifier).dense
    controller = control or (gradsift.controller("fixed", k=9) if dense else gradsift.controller("sign"))
    cost = LinkTime(up_bandwidth=100.0, down_bandwidth=300.0, latency=0.5, compute=1.0)
    chosen: dict[str, Any] = {"cost": cost, "lr": 0.3, "encoded_bytes": True, "dtype": torch.float32} | options
    return hand.engine(mlp(), nn.CrossEntropyLoss(), blobs(), sparsifier, controller, **chosen)


@pytest.mark.parametrize("sparsifier", gradsift.sparsifiers())
@pytest.mark.parametrize("clients_per_round", [None, 4])
def test_bytes_are_those_of_the_messages(
    sparsifier: str, clients_per_round: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = engine(sparsifier, clients_per_round=clients_per_round)
    sent: dict[str, Sparse] = {}
    kind = type(run.method.sparsifier)
    upload, merge = kind.upload, kind.merge

    def uploading(self: Any, residual: Any, rnd: Any) -> Sparse:
        chosen = upload(self, residual, rnd)
        sent["up"] = chosen._replace(values=chosen.values.clone())  # as it is now: settling changes the residual
        return chosen

    def merging(self: Any, uploads: Any, share: Any, rnd: Any) -> Sparse:
        merged = merge(self, uploads, share, rnd)
        sent["down" if rnd.k == sent_k[0] else "probe"] = merged
        return merged

    sent_k = [0]
    monkeypatch.setattr(kind, "upload", uploading)
    monkeypatch.setattr(kind, "merge", merging)
    for number in range(1, 8):
        proposal = run.method.controller.propose(run.state.server.control, number)
        assert isinstance(proposal.k, float | int)
        sent_k[0] = gradsift.round_k(proposal.k, 0, number)
        sent.clear()
        record = run.step()
        rows, bytes_down = [0], 0  # FedAvg sends nothing inside a period
        assert bool(sent) == (record["up_elements"] > 0)
        if sent:
            up = sent["up"]
            rows = [len(encode(Sparse(i, v, up.dim))) for i, v in zip(up.indices, up.values, strict=True)]
            bytes_down = len(encode(sent["down"]))
        assert record["up_bytes"] == sum(rows)
        assert record["down_bytes"] == bytes_down * CLIENTS
        slowest = max(rows)
        seconds = 1.0
        for size, bandwidth in ((slowest, 100.0), (bytes_down, 300.0)):
            seconds += 0.5 + size / bandwidth if size else 0.0
        assert record["round_cost"] == pytest.approx(seconds)


def test_a_probe_is_priced_by_what_would_have_been_sent() -> None:
    run = engine("fab-top-k")
    before = run.state.residual.clone()
    proposal = run.method.controller.propose(run.state.server.control, 1)
    assert isinstance(proposal.k, float)
    assert isinstance(proposal.probe_k, float)
    k = gradsift.round_k(proposal.k, 0, 1)
    probe_k = gradsift.round_probe_k(proposal.probe_k, k, 0, 1)
    assert not before.any()
    seen = []
    controller = run.method.controller
    update = controller.update

    def updating(state: Any, observation: gradsift.Observation) -> Any:
        seen.append(observation)
        return update(state, observation)

    object.__setattr__(controller, "update", updating)
    run.step()
    cheap = engine("fab-top-k", gradsift.controller("fixed", k=probe_k))
    assert seen[0].probe_cost == pytest.approx(cheap.step()["round_cost"])


def test_without_the_setting_a_number_is_four_bytes() -> None:
    run, plain = engine("fab-top-k"), engine("fab-top-k", encoded_bytes=False)
    record = plain.step()
    assert record["up_bytes"] == 8 * record["up_elements"] * CLIENTS
    assert record["up_bytes"] != run.step()["up_bytes"]
    assert np.isfinite(record["round_cost"])


def test_a_whole_vector_is_sized_before_it_is_settled() -> None:
    run = engine("send-all")
    assert run.step()["up_bytes"] > 4 * 57 * CLIENTS * 0.5  # of zeros it would be a few bytes
