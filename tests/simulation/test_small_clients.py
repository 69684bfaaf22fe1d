"""Clients with fewer samples than a minibatch: they take all they have, and count like everyone else."""

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gradsift
from gradsift import FederatedData, GradsiftError, LocalSteps, sampling
from gradsift.sampling import NO_SAMPLE, participants
from gradsift.simulation.clients import Clients
from tests.simulation import hand, models
from tests.simulation.hand import BATCH, assert_same, with_twin
from tests.simulation.problems import mlp, sized
from tests.simulation.test_run import assert_same_end
from tests.simulation.ways import WAYS, going

pytestmark = pytest.mark.slow  # many runs

LOSS = nn.CrossEntropyLoss()
SIZES = {
    "some": (20, 3, 12, 8, 1, 15),
    "all different": (7, 6, 5, 4, 3, 2),
    "a sample each": (1, 1, 1, 1, 1, 1),
    "equally few": (5, 5, 5, 5, 5, 5),
    "all but one": (2, 30, 1, 2, 7, 2),
}
SPARSIFIERS = gradsift.sparsifiers()


def controller(sparsifier: str) -> gradsift.Controller[Any]:
    """One that learns, where there is one for the sparsifier."""
    dense = gradsift.sparsifier(sparsifier).dense
    return gradsift.controller("fixed", k=9) if dense else gradsift.controller("extended-sign", window=3)


def check_run(sparsifier: str, sizes: tuple[int, ...], rounds: int = 9, **options: Any) -> None:
    """A run of an engine is that of its slow twin."""
    parts = (mlp(), LOSS, sized(*sizes), sparsifier, controller(sparsifier))
    engine, twin = with_twin(*parts, **{"lr": 0.3, "probe_samples": 3, **options})
    for _ in range(rounds):
        assert_same(engine, engine.step(), next(twin))


# Against the slow twin.


@pytest.mark.parametrize("clients_per_round", [None, 4], ids=["all", "some"])
@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
@pytest.mark.parametrize("sizes", SIZES)
def test_runs_are_those_of_the_twin(sizes: str, sparsifier: str, clients_per_round: int | None) -> None:
    check_run(sparsifier, SIZES[sizes], clients_per_round=clients_per_round)


@pytest.mark.parametrize("clients_per_round", [None, 4], ids=["all", "some"])
@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_through_memory_is_the_same(way: str, sparsifier: str, clients_per_round: int | None) -> None:
    with going(way):
        check_run(sparsifier, SIZES["some"], clients_per_round=clients_per_round, clients_per_chunk=2)


@pytest.mark.parametrize("chunk", [1, 2, 3, 6])
@pytest.mark.parametrize("sizes", ["some", "all different"])
def test_any_chunk_is_the_same(sizes: str, chunk: int) -> None:
    check_run("fab-top-k", SIZES[sizes], clients_per_chunk=chunk)


@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
@pytest.mark.parametrize("way", ["plain", "streamed"])
def test_local_steps_are_the_same(way: str, sparsifier: str) -> None:
    with going(way):
        check_run(sparsifier, SIZES["some"], rounds=5, local=LocalSteps(3), clients_per_chunk=2)


@pytest.mark.parametrize("samples", [1, 2, BATCH])
@pytest.mark.parametrize("delay", [0, 1])
def test_losses_are_taken_on_as_many_samples_as_there_are(samples: int, delay: int) -> None:
    check_run("fab-top-k", SIZES["some"], probe_samples=samples, delay=delay, clients_per_round=5)


# Against what everyone would expect of them.


@pytest.mark.parametrize("sizes", SIZES)
def test_a_gradient_is_that_of_all_samples_of_a_small_client(sizes: str) -> None:
    data = sized(*SIZES[sizes])
    engine = hand.engine(mlp(), LOSS, data, "fedavg")
    engine.step()  # inside a period: a residual is a gradient
    double, module = data.to("cpu", torch.float64), copy.deepcopy(mlp()).double()
    small = np.flatnonzero(data.size <= BATCH)
    assert len(small)
    for client in small.tolist():
        rows = data.rows(client)
        want = hand.gradient(module, LOSS, double.x[rows], double.y[rows])
        torch.testing.assert_close(engine.state.residual[client], want, rtol=0, atol=1e-12)


def test_shares_are_those_of_the_data() -> None:
    """One send-all round where everybody's minibatch is all it has: a step along the gradient over all data."""
    data = sized(*SIZES["all different"])
    engine = hand.engine(mlp(), LOSS, data, "send-all")
    double, module = data.to("cpu", torch.float64), copy.deepcopy(mlp()).double()
    want = hand.flat(module) - hand.LR * hand.gradient(module, LOSS, double.x, double.y)
    record = engine.step()
    torch.testing.assert_close(engine.state.server.weights, want, rtol=0, atol=1e-12)
    with torch.no_grad():
        module = copy.deepcopy(mlp()).double()
        assert record["train_loss"] == pytest.approx(float(LOSS(module(double.x), double.y)), abs=1e-12)


def test_losses_are_the_mean_over_the_samples_that_there_are() -> None:
    data = sized(*SIZES["all different"]).to("cpu", torch.float64)
    engine = hand.engine(mlp(), LOSS, data, "fab-top-k", gradsift.controller("sign"), probe_samples=BATCH)
    record = engine.step()  # of each client all samples, once
    module = copy.deepcopy(mlp()).double()
    with torch.no_grad():
        assert record["loss_before"] == pytest.approx(float(LOSS(module(data.x), data.y)), abs=1e-12)


def test_two_clients_of_forty_with_few_samples_need_no_setting(tmp_path: Path) -> None:
    sizes = [40 + client for client in range(40)]
    sizes[7] = sizes[33] = 20
    data = sized(*sizes)
    result = gradsift.simulate(mlp(), LOSS, data, rounds=4, out=tmp_path / "run")
    assert result.config["settings"]["batch_size"] == 32
    assert [record["clients"] for record in result.records] == [40] * 4
    for client in (7, 33):
        assert any(record["contribution"][client] for record in result.records)
    engine = hand.engine(mlp(), LOSS, data, batch_size=32)
    assert engine._everyone.batch.tolist() == [20 if client in (7, 33) else 32 for client in range(40)]


# How they are put together.


@given(batch=st.lists(st.integers(1, 4), min_size=1, max_size=12), size=st.integers(1, 13))
def test_parts_are_of_equal_minibatches_and_slices_where_all_are_equal(batch: list[int], size: int) -> None:
    data = sized(*batch)
    clients = Clients.everyone(data, 3, 0, torch.float64)
    parts, lengths = list(clients.parts(size)), np.minimum(batch, 3)
    places = [np.arange(len(batch))[part] for part in parts]
    assert sorted(itertools.chain(*places)) == list(range(len(batch)))
    for place in places:
        assert 1 <= len(place) <= size
        assert len({int(lengths[each]) for each in place}) == 1
    equal = len(set(lengths.tolist())) == 1
    assert {isinstance(part, slice) for part in parts} == {equal}
    fewest = sum(-(-int((lengths == length).sum()) // size) for length in set(lengths.tolist()))
    assert len(parts) == fewest


@pytest.mark.parametrize("clients_per_round", [None, 4])
@pytest.mark.parametrize("sizes", ["equally few", "equally many", "some"])
def test_rounds_of_equal_minibatches_take_slices(
    sizes: str, clients_per_round: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which need no copy; also where the clients that took part happen to be equal."""
    seen: list[bool] = []
    parts = Clients.parts

    def watched(clients: Clients, size: int) -> Any:
        made = list(parts(clients, size))
        seen.append(all(isinstance(part, slice) for part in made))
        assert seen[-1] == (len(set(clients.batch.tolist())) == 1)
        return iter(made)

    monkeypatch.setattr(Clients, "parts", watched)
    data = sized(*({"equally many": (9, 20, 8, 8, 30, 9)} | SIZES)[sizes])
    engine = hand.engine(mlp(), LOSS, data, clients_per_round=clients_per_round, clients_per_chunk=2)
    for _ in range(4):
        engine.step()
    assert all(seen) == (sizes != "some")


# Draws.


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    batch=st.integers(1, 9),
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(1, 10**6),
)
def test_a_small_client_draws_each_of_its_samples_once(sizes: list[int], batch: int, seed: int, step: int) -> None:
    size = np.array(sizes)
    rows = sampling.minibatches(size, batch, seed, step)
    assert rows.shape == (len(sizes), batch)
    for client, (row, own) in enumerate(zip(rows, sizes, strict=True)):
        length = min(own, batch)
        drawn = row[:length].tolist()
        assert len(set(drawn)) == length
        assert set(drawn) <= set(range(own))
        assert (row[length:] == NO_SAMPLE).all()
        assert sampling.minibatch(own, batch, seed, client, step).tolist() == drawn
    picks = sampling.probe_samples(np.minimum(size, batch), 3, seed, step)
    for client, row in enumerate(picks):
        alone = sampling.probe_sample(min(sizes[client], batch), 3, seed, client, step).tolist()
        assert row[row != NO_SAMPLE].tolist() == alone
        assert len(alone) == min(sizes[client], batch, 3)


@given(size=st.integers(8, 40), more=st.integers(0, 3), seed=st.integers(0, 99), step=st.integers(1, 99))
def test_what_a_client_draws_does_not_depend_on_the_others(size: int, more: int, seed: int, step: int) -> None:
    alone = sampling.minibatches(np.array([size]), 8, seed, step)
    among = sampling.minibatches(np.array([size, *range(1, more + 1)]), 8, seed, step)
    assert among[0].tolist() == alone[0].tolist()


# Models that do more than that.


@pytest.mark.parametrize("clients_per_round", [None, 4])
@pytest.mark.parametrize("sparsifier", ["periodic-k", "fedavg"])
def test_batch_norm_of_small_clients_is_that_of_local_modules(sparsifier: str, clients_per_round: int | None) -> None:
    """A module a client, trained on its own minibatches; running statistics averaged by share at each exchange."""
    data, model = sized(20, 3, 12, 8, 2, 15), models.seeded(models.normed)
    options: dict[str, Any] = {"buffers": "average", "clients_per_round": clients_per_round, "clients_per_chunk": 2}
    engine = hand.engine(model, LOSS, data, sparsifier, gradsift.controller("fixed", k=10), **options)
    period = engine.method.local.period(engine.flat.dim, 10)
    shared = copy.deepcopy(model).double()
    for first in range(1, 1 + 4 * period, period):
        clients = participants(data.num_clients, clients_per_round, 0, first)
        local = [copy.deepcopy(shared) for _ in clients]
        for number in range(first, first + period):
            engine.step()
            for module, client in zip(local, clients, strict=True):
                step = hand.gradient(module, LOSS, *hand.batch(data, int(client), number))
                hand.put(module, hand.flat(module) - hand.LR * step)
        share = data.share[clients] / data.share[clients].sum()
        want = hand.average([dict(module.named_buffers()) for module in local], share)
        for name, value in want.items():
            torch.testing.assert_close(engine.state.buffers[name], value.to(engine.state.buffers[name]))
        if sparsifier == "fedavg":
            mean = torch.from_numpy(share) @ torch.stack([hand.flat(module) for module in local])
            torch.testing.assert_close(engine.state.server.weights, mean, rtol=0, atol=1e-12)
        shared.load_state_dict(engine.model().state_dict())


def test_a_model_that_cannot_take_the_smallest_minibatch_is_refused_at_once(tmp_path: Path) -> None:
    """BatchNorm has no statistics of one sample; the client that has it might come in late."""
    data = sized(20, 30, 1, 25)
    with pytest.raises(GradsiftError, match=r"forward pass failed on a batch of shape \[1, 5\]: Expected more than 1"):
        gradsift.simulate(
            models.seeded(models.normed), LOSS, data, buffers="average", clients_per_round=1, out=tmp_path / "run"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:Branching cannot be batched over clients")
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch batches attention by a loop of its own
@pytest.mark.parametrize("kind", ["image", "convolutions", "samples that meet", "attention", "control flow"])
def test_gradients_of_any_model_are_those_of_autograd(kind: str) -> None:
    make = {**models.KINDS, "control flow": models.Branching}[kind]
    for sizes in (SIZES["some"], (1, 1, 20, 3)):  # the way is tried on the first two
        hand.check_gradients(models.seeded(make), LOSS, sized(*sizes), clients_per_chunk=2)


# Resume.


@pytest.mark.parametrize("sparsifier", ["fab-top-k", "fedavg"])
def test_a_resumed_run_is_the_same_run(sparsifier: str, tmp_path: Path) -> None:
    dropping = models.seeded(lambda: nn.Sequential(nn.Linear(5, 9), nn.Dropout(0.5), nn.Linear(9, 3)))

    def run(name: str, rounds: int, resume: bool = False) -> FederatedData:
        data = sized(*SIZES["some"])
        gradsift.simulate(
            *(dropping, LOSS, data),
            sparsifier=sparsifier,
            controller=controller(sparsifier),
            rounds=rounds,
            batch_size=8,
            clients_per_round=4,
            delay=1,
            probe_samples=3,
            eval_every=1,
            checkpoint_every=3,
            out=tmp_path / name,
            resume=resume,
        )
        return data

    run("whole", 9)
    run("parts", 4)
    run("parts", 9, resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_a_model_that_cannot_take_the_smallest_minibatch_is_refused_with_a_way_out() -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    options: dict[str, Any] = {"controller": gradsift.controller("fixed", k=5), "buffers": "average", "rounds": 2}
    message = r"Expected more than 1 value per channel.*; data\.at_least\(2\) leaves out"
    with pytest.raises(GradsiftError, match=message):
        gradsift.simulate(model, nn.CrossEntropyLoss(), sized(1, 8, 9), lr=0.1, **options)
    gradsift.simulate(model, nn.CrossEntropyLoss(), sized(1, 8, 9).at_least(2), lr=0.1, **options)
