"""Whole runs in which each client has a k of its own: the simulator against its slow twin, on every way through it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradsift
from gradsift import GradsiftError, LinkTime, LocalSteps, sparse
from gradsift.simulation import memory
from tests.method.controllers import OneEach, Says
from tests.simulation.hand import assert_same, with_twin
from tests.simulation.problems import blobs, mlp
from tests.sparsify.cases import SPARSE

pytestmark = pytest.mark.slow  # many runs

ROUNDS = 9
FIRST = (3.5, 1.0, 20.0, 57.0, 8.25, 2.0)  # of six clients and 57 weights
WAYS = {
    "plain": {},
    "some clients": {"clients_per_round": 4},
    "one client": {"clients_per_round": 1},
    "late": {"delay": 1, "clients_per_round": 4},
    "in chunks": {"clients_per_chunk": 2},
    "queued": {},
    "queued, long rows": {"clients_per_round": 4},
    "streamed": {"clients_per_chunk": 2},
    "streamed, some clients, merged on the host": {"clients_per_chunk": 2, "clients_per_round": 5},
}


@pytest.mark.parametrize("sparsifier", SPARSE)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("probing", [True, False], ids=["probing", "not probing"])
def test_every_way_through_the_simulator_is_the_twins(
    sparsifier: str, way: str, probing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "queued" in way:
        monkeypatch.setattr(sparse, "queued", lambda _: True)
    if "long rows" in way:
        monkeypatch.setattr(sparse, "_LONG_ROW", 1)
    if "streamed" in way:
        monkeypatch.setattr(memory, "must_stream", lambda *_: True)
    if "on the host" in way:
        monkeypatch.setattr(memory, "free_bytes", lambda _: 0)
    options: dict[str, Any] = {"lr": 0.3, **WAYS[way]}
    engine, twin = with_twin(
        mlp(), nn.CrossEntropyLoss(), blobs(), sparsifier, OneEach(FIRST, probing=probing), **options
    )
    used = []
    for _ in range(ROUNDS):
        record = engine.step()
        assert_same(engine, record, next(twin))
        used.append(record["client_k"])
        assert record["client_k"] is not None
        assert record["used_k"] == max(record["client_k"])
        assert len(record["client_k"]) == record["clients"]
    assert len({tuple(each) for each in used if each}) > 1


@pytest.mark.parametrize("sparsifier", SPARSE)
@pytest.mark.parametrize("values", ["exact", "int8", "float16"])
def test_with_local_steps_and_rounded_values_and_encoded_bytes(sparsifier: str, values: str) -> None:
    cost = LinkTime(up_bandwidth=[50.0 * (1 + i) for i in range(6)], down_bandwidth=900.0, latency=0.1, compute=0.5)
    engine, twin = with_twin(
        *(mlp(), nn.CrossEntropyLoss(), blobs(), sparsifier, OneEach(FIRST)),
        lr=0.1,
        local=LocalSteps(2),
        values=values,
        cost=cost,
        encoded_bytes=True,
        charge_probe=True,
    )
    for _ in range(ROUNDS):
        record = engine.step()
        step = next(twin)
        if values == "exact":
            assert_same(engine, record, step)
        else:
            # Sums of rounded values are in single precision, in another order.
            assert record["client_k"] == step.record["client_k"]
            torch.testing.assert_close(engine.state.server.weights, step.weights, rtol=0, atol=1e-4)


def test_the_same_number_for_each_client_is_the_same_run() -> None:
    """Of whole numbers: others are rounded by a draw for each client."""
    runs = [
        gradsift.simulate(
            mlp(), nn.CrossEntropyLoss(), blobs(), controller=Says(k, probe_k), rounds=6, dtype=torch.float64
        )
        for k, probe_k in ((12.0, 6.0), ((12.0,) * 6, (6.0,) * 6))
    ]
    one, each = runs
    assert torch.equal(one.weights, each.weights)
    for left, right in zip(one.records, each.records, strict=True):
        assert right["client_k"] == [12] * 6
        assert left == {**right, "client_k": None}


def test_a_run_resumes_with_its_clients_k(tmp_path: Path) -> None:
    def run(rounds: int, place: str, **options: Any) -> gradsift.Result:
        return gradsift.simulate(
            *(mlp(), nn.CrossEntropyLoss(), blobs()),
            controller=OneEach(FIRST),
            rounds=rounds,
            lr=0.3,
            delay=1,
            dtype=torch.float64,
            out=tmp_path / place,
            checkpoint_every=2,
            eval_every=1,
            **options,
        )

    whole = run(8, "whole")
    run(5, "parts")
    parts = run(8, "parts", resume=True)
    assert torch.equal(whole.weights, parts.weights)
    assert whole.records == parts.records
    assert json.loads(json.dumps(whole.records)) == whole.records


def test_too_few_k_are_refused_before_the_first_round() -> None:
    with pytest.raises(GradsiftError, match="proposed k for 2 clients, not for client 5"):
        gradsift.simulate(mlp(), nn.CrossEntropyLoss(), blobs(), controller=Says((3.0, 4.0)), rounds=1)
