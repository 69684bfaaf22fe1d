"""The most memory that a round takes beside its residuals: measured, and held to what ``memory`` counts on."""

import gc
import itertools
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import gradsift
from gradsift import FederatedData, FewBits, LocalSteps, Round, sparse
from gradsift.server_step import Momentum
from gradsift.simulation.engine import Engine
from gradsift.simulation.memory import Needs
from gradsift.sparse import Sparse
from gradsift.sparsify.fab_top_k import FabTopK
from tests.method.controllers import OneEach
from tests.simulation import hand
from tests.simulation.problems import blobs, sized
from tests.simulation.ways import going

pytestmark = pytest.mark.slow  # many runs

CLIENTS = 48
SOME = 24
WAYS = [("plain", SOME), ("queued", None)]


def peak(work: Callable[[], object]) -> int:
    """The most bytes allocated at a time during ``work``, by kernels for themselves too, beside what was there."""
    gc.collect()
    gc.disable()  # when it runs is not ours to say
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
            work()
    finally:
        gc.enable()
    assert watched.profiler is not None
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    return int(
        max(itertools.accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))
    )


def test_a_peak_is_what_is_there_at_a_time() -> None:
    def work() -> None:
        first = torch.zeros(1000)
        second = first + 1
        del first
        third = second.double()
        del second, third
        torch.zeros(2000)

    assert 12_000 <= peak(work) < 12_500


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Needs]:
    """What engines count on, as they are made."""
    return hand.needs_asked(monkeypatch)


def wide() -> tuple[nn.Module, FederatedData]:
    """9,603 weights and hardly any activations: what counts are the residuals."""
    return nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 3)), blobs(CLIENTS, features=20)


def uneven() -> tuple[nn.Module, FederatedData]:
    """The same, of clients with one to seven samples."""
    return wide()[0], sized(*(1 + client % 7 for client in range(CLIENTS)), features=20)


def images() -> FederatedData:
    flat = blobs(CLIENTS, features=64)
    return replace(flat, x=flat.x.view(-1, 1, 8, 8), test_x=flat.test_x.view(-1, 1, 8, 8))


def convolutions() -> tuple[nn.Module, FederatedData]:
    """1,787 weights and many activations, in one pass."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)),
    ), images()


def normed() -> tuple[nn.Module, FederatedData]:
    """Many activations and buffers, by vmap."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)),
    ), images()


def statistics() -> tuple[nn.Module, FederatedData]:
    """771 weights, and two thirds as many numbers in buffers."""
    return nn.Sequential(nn.BatchNorm1d(256, affine=False), nn.Linear(256, 3)), blobs(CLIENTS, features=256)


def after_two_rounds(
    model: Callable[[], tuple[nn.Module, FederatedData]], sparsifier: str, part: float, **options: Any
) -> Engine:
    """An engine whose third round is next, at k = ``part`` of D, with a probe at k - 1 if there are probes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, data = model()
    k = max(2, int(part * sum(parameter.numel() for parameter in module.parameters())))
    dense = gradsift.sparsifier(sparsifier).dense
    controller = gradsift.controller("fixed", k=k) if dense else gradsift.controller("sign", k_min=k, k_max=k)
    if options.pop("each", False):
        controller = OneEach([1 + k * client / CLIENTS for client in range(CLIENTS)])
    chosen: dict[str, Any] = {
        "batch_size": 4,
        "clients_per_chunk": 4,
        "dtype": torch.float32,
        "buffers": "average",
    } | options
    engine = hand.engine(module, nn.CrossEntropyLoss(), data, sparsifier, controller, **chosen)
    engine.begin()
    engine.begin()
    return engine


def counted_on(needs: Needs) -> int:
    """Bytes that a round may take beside what is there before it: residuals and each client's buffers."""
    return needs.beside(needs.k) - needs.clients * needs.buffers


@pytest.mark.parametrize(("way", "clients_per_round"), WAYS)
@pytest.mark.parametrize("part", [0.001, 0.5, 1.0])
@pytest.mark.parametrize("sparsifier", gradsift.sparsifiers())
def test_a_round_takes_no_more_than_is_counted_on(
    sparsifier: str,
    part: float,
    clients_per_round: int | None,
    way: str,
    asked: list[Needs],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FedAvg's period is 500 rounds, or one."""
    if way == "queued":
        monkeypatch.setattr(sparse, "queued", lambda _: True)
    engine = after_two_rounds(wide, sparsifier, part, clients_per_round=clients_per_round)
    assert peak(engine.begin) <= counted_on(asked[0])


@pytest.mark.parametrize(("way", "clients_per_round"), WAYS)
@pytest.mark.parametrize("sparsifier", ["fab-top-k", "periodic-k", "send-all"])
@pytest.mark.parametrize(
    "kind",
    ["local steps", "small clients", "local steps of small clients", "local momentum", "a step with weight decay"],
)
def test_local_steps_and_small_clients_take_no_more_than_is_counted_on(
    kind: str, sparsifier: str, clients_per_round: int | None, way: str, asked: list[Needs]
) -> None:
    options: dict[str, Any] = {"clients_per_round": clients_per_round, "clients_per_chunk": CLIENTS}
    options |= {"local": LocalSteps(3)} if "local steps" in kind else {}
    options |= {"local": LocalSteps(3, momentum=0.9)} if "momentum" in kind else {}
    options |= {"local": LocalSteps(1, weight_decay=0.1)} if "weight decay" in kind else {}
    with going(way):
        engine = after_two_rounds(uneven if "small" in kind else wide, sparsifier, 0.01, **options)
        assert peak(engine.begin) <= counted_on(asked[0])


@pytest.mark.parametrize("clients_per_round", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("sparsifier", ["fab-top-k", "send-all", "fedavg"])
@pytest.mark.parametrize("values", ["float16", "bfloat16", "int8"])
def test_rounding_takes_no_more_than_is_counted_on(
    values: str, sparsifier: str, clients_per_round: int | None, asked: list[Needs]
) -> None:
    """It is numpy's, whose memory is measured apart."""
    options: dict[str, Any] = {"values": values, "clients_per_round": clients_per_round}
    engine = after_two_rounds(wide, sparsifier, 0.5, **options)
    tracemalloc.start()
    engine.begin()
    arrays = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert arrays > 0
    assert peak(engine.begin) + arrays <= counted_on(asked[0])


@pytest.mark.parametrize("clients_per_round", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("sparsifier", ["fab-top-k", "unidirectional-top-k", "send-all"])
@pytest.mark.parametrize("values", [FewBits(1), FewBits(2), FewBits(8), FewBits(2, stochastic=True)], ids=str)
def test_few_bits_take_no_more_than_is_counted_on(
    values: FewBits, sparsifier: str, clients_per_round: int | None, asked: list[Needs]
) -> None:
    for part, dtype in itertools.product((0.01, 0.5, 1.0), (torch.float32, torch.float64)):
        options: dict[str, Any] = {"values": values, "down_values": values, "server": Momentum(), "dtype": dtype}
        engine = after_two_rounds(wide, sparsifier, part, clients_per_round=clients_per_round, **options)
        assert peak(engine.begin) <= counted_on(asked.pop())


@pytest.mark.parametrize("clients_per_round", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("sparsifier", ["fab-top-k", "fub-top-k", "unidirectional-top-k", "periodic-k"])
@pytest.mark.parametrize("way", ["plain", "queued"])
def test_a_k_for_each_client_takes_no_more_than_is_counted_on(
    way: str, sparsifier: str, clients_per_round: int | None, asked: list[Needs]
) -> None:
    with going(way):
        engine = after_two_rounds(wide, sparsifier, 0.5, each=True, clients_per_round=clients_per_round)
        assert peak(engine.begin) <= counted_on(asked[0])


@pytest.mark.parametrize(
    ("sparsifier", "local"), [("fab-top-k", None), ("fedavg", None), ("send-all", None), ("fab-top-k", LocalSteps(3))]
)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        *itertools.product(
            [convolutions, normed], [{}, {"batch_size": 16, "probe_samples": 16}, {"clients_per_chunk": CLIENTS}]
        ),
        (statistics, {}),
    ],
)
def test_activations_losses_and_buffers_take_no_more_than_is_counted_on(
    model: Callable[[], tuple[nn.Module, FederatedData]],
    sparsifier: str,
    options: dict[str, Any],
    local: LocalSteps | None,
    asked: list[Needs],
) -> None:
    engine = after_two_rounds(model, sparsifier, 0.01, local=local, **options)
    assert peak(engine.begin) <= counted_on(asked[0])


@pytest.mark.parametrize("sparsifier", ["fab-top-k", "fub-top-k", "unidirectional-top-k", "periodic-k", "send-all"])
def test_a_round_of_few_elements_takes_one_more_buffer_and_the_plain_pass(sparsifier: str, asked: list[Needs]) -> None:
    """What was asked for at k up to 10,000 of 444,062, where all clients are computed together."""
    del asked
    engine = after_two_rounds(convolutions, sparsifier, 0.02, clients_per_chunk=CLIENTS)
    drawn = engine._rows(engine._everyone)(0).flatten()
    x, y = engine.data.x[drawn], engine.data.y[drawn]
    plain = engine.model()

    def one_pass() -> None:
        nn.functional.cross_entropy(plain(x), y).backward()  # type: ignore[no-untyped-call]

    assert peak(engine.begin) <= engine.state.residual.nbytes + peak(one_pass)


# What would show.


@pytest.mark.parametrize("clients_per_round", [None, SOME], ids=["all", "some"])
def test_one_more_copy_of_the_residuals_would_be_seen(
    clients_per_round: int | None, asked: list[Needs], monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = FabTopK.upload

    def wasteful(sparsifier: FabTopK, residual: Tensor, rnd: Round) -> Sparse:
        copy = residual.clone()
        sent = upload(sparsifier, residual, rnd)
        del copy
        return sent

    monkeypatch.setattr(FabTopK, "upload", wasteful)
    engine = after_two_rounds(wide, "fab-top-k", 0.001, clients_per_round=clients_per_round)
    assert peak(engine.begin) > counted_on(asked[0])


@pytest.mark.parametrize("model", [statistics, convolutions])
def test_without_buffers_and_activations_the_count_would_be_too_low(
    model: Callable[[], tuple[nn.Module, FederatedData]], asked: list[Needs]
) -> None:
    engine = after_two_rounds(model, "fedavg", 0.01, batch_size=16)
    took = peak(engine.begin)
    assert took <= counted_on(asked[0])
    without = replace(asked[0], buffers=0) if model is statistics else replace(asked[0], activations=0)
    assert took > counted_on(without)
