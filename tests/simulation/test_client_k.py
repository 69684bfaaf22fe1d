"""A k for each client, through the simulator: what the records say, what it costs, and with all the rest.

Whole runs against the slow twin, in every way through memory, are in tests/method/test_client_k_runs.py.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradsift
from gradsift import LinkTime, LocalSteps
from gradsift.control import round_k, round_probe_k
from gradsift.sampling import participants
from tests.method.controllers import OneEach, Says
from tests.simulation import hand
from tests.simulation.hand import assert_same, with_twin
from tests.simulation.problems import blobs, mlp, sized
from tests.simulation.ways import WAYS, going

pytestmark = pytest.mark.slow  # many runs

LOSS = nn.CrossEntropyLoss()
DIM = 57
FIRST = (3.5, 1.0, 20.0, 57.0, 8.25, 2.0)
SPARSE = [name for name in gradsift.sparsifiers() if not gradsift.sparsifier(name).dense]


@pytest.mark.parametrize("clients_per_round", [None, 4, 1])
@pytest.mark.parametrize("sparsifier", SPARSE)
@pytest.mark.parametrize("way", ["plain", "streamed"])
def test_records_hold_each_clients_k(way: str, sparsifier: str, clients_per_round: int | None) -> None:
    probe_k = tuple(max(1.0, k / 2) for k in FIRST)
    with going(way):
        engine = hand.engine(
            *(mlp(), LOSS, blobs(), sparsifier, Says(FIRST, probe_k)),
            clients_per_round=clients_per_round,
            clients_per_chunk=2,
            seed=3,
        )
        for number in range(1, 9):
            offset = engine.state.server.offset
            record = engine.step()
            present = participants(6, clients_per_round, 3, number)
            used = [round_k(FIRST[client], 3, number, int(client)) for client in present]
            probes = [
                round_probe_k(probe_k[client], k, 3, number, int(client)) if k > 1 else 1
                for client, k in zip(present, used, strict=True)
            ]
            assert record["client_k"] == used
            assert record["used_k"] == max(used)
            assert record["probe_k"] == max(probes)
            assert record["k"] == pytest.approx(np.mean(FIRST))
            left = DIM - offset % DIM if sparsifier == "periodic-k" else DIM  # a pass ends with what it has left
            sent = [min(k, left) for k in used]
            assert record["up_elements"] == max(sent)
            assert record["up_bytes"] == 8 * sum(sent)
            most = len(present) * max(sent) if sparsifier == "unidirectional-top-k" else max(sent)
            assert record["down_elements"] <= most
            for client, count in zip(present, sent, strict=True):
                assert record["contribution"][client] <= count
            assert sum(record["contribution"]) >= record["down_elements"]


def test_the_clock_waits_for_the_client_that_takes_longest() -> None:
    """Which need not be the one that sends most, nor the one with the slowest link."""
    bandwidth = [1000.0, 10.0, 500.0, 900.0, 20.0, 1000.0]
    used = (40, 1, 57, 50, 6, 3)
    cost = LinkTime(up_bandwidth=bandwidth, down_bandwidth=1e12, latency=0.5, compute=[1.0, 2.0, 1.0, 1.0, 1.0, 9.0])
    engine = hand.engine(mlp(), LOSS, blobs(), "fab-top-k", Says(tuple(map(float, used))), cost=cost)
    slowest = max(each + 0.5 + 8 * k / rate for each, k, rate in zip((1, 2, 1, 1, 1, 9), used, bandwidth, strict=True))
    assert engine.step()["round_cost"] == pytest.approx(slowest + 0.5, rel=1e-6)


def test_a_probe_is_priced_by_what_each_client_would_have_sent() -> None:
    controller = Says((40.0, 2.0, 57.0, 50.0, 6.0, 3.0), (20.0, 1.0, 30.0, 25.0, 3.0, 2.0))
    cost = gradsift.Energy(up=1.0, down=0.0)
    engine = hand.engine(mlp(), LOSS, blobs(), "fab-top-k", controller, cost=cost)
    engine.step()
    (told,) = controller.told
    assert told.cost == 8 * (40 + 2 + 57 + 50 + 6 + 3)
    assert told.probe_cost == 8 * (20 + 1 + 30 + 25 + 3 + 2)
    assert (told.used_k, told.used_probe_k) == (57, 30)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sparsifier", SPARSE)
def test_with_local_steps_of_small_clients(sparsifier: str, way: str) -> None:
    with going(way):
        engine, twin = with_twin(
            *(mlp(), LOSS, sized(20, 3, 12, 8, 1, 15), sparsifier, OneEach(FIRST)),
            local=LocalSteps(2),
            clients_per_round=5,
            clients_per_chunk=2,
            probe_samples=3,
            lr=0.3,
        )
        for _ in range(6):
            assert_same(engine, engine.step(), next(twin))


@pytest.mark.parametrize("dense", ["send-all", "fedavg"])
def test_whole_vectors_take_none(dense: str) -> None:
    with pytest.raises(gradsift.GradsiftError, match=f"'{dense}' is dense and accepts only a fixed k"):
        hand.engine(mlp(), LOSS, blobs(), dense, OneEach(FIRST))


def test_a_seed_repeats_bit_for_bit() -> None:
    def run(seed: int) -> tuple[list[Any], torch.Tensor]:
        engine = hand.engine(
            *(mlp(), LOSS, blobs(), "fab-top-k", OneEach(FIRST)), clients_per_round=4, seed=seed, dtype=torch.float32
        )
        return [engine.step() for _ in range(6)], engine.state.server.weights

    (one, left), (two, right), (three, _) = run(1), run(1), run(2)
    assert one == two
    assert torch.equal(left, right)
    assert one != three
