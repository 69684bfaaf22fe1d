"""Where the residuals live, and the refusal of those that fit nowhere."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gradsift
from gradsift import GradsiftError, LocalSteps
from gradsift.simulation import memory
from gradsift.simulation.memory import Needs
from tests.method.controllers import OneEach
from tests.simulation import hand, models
from tests.simulation.problems import blobs, mlp

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
GIB = 2**30


def with_free(monkeypatch: pytest.MonkeyPatch, device: float, host: float) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda which: int((host if which.type == "cpu" else device) * GIB))


def needs(k: int, **others: Any) -> Needs:
    """Residuals of 3.9 GiB."""
    return Needs(1000, 2**20, k, torch.float32, **others)


@pytest.mark.parametrize(
    ("device", "host", "streams"),
    [(10, 10, False), (8.9, 10, False), (8.7, 10, True), (1, 4.5, True)],
)
def test_residuals_stay_on_the_device_while_two_of_them_fit(
    device: float, host: float, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, device, host)
    assert memory.must_stream(needs(0, activations=int(0.1 * GIB)), CUDA) is streams


HALF = 2**19  # of all elements, with their indices: 30 GiB while they are merged


@pytest.mark.parametrize(
    ("given", "streams"),
    [
        (needs(10_000), False),
        (needs(HALF), True),
        (needs(10_000, most=HALF), True),
        (needs(10_000, most=12_000), False),
        (needs(10_000, most=HALF, present=40), False),
        (needs(10_000, activations=GIB), False),
        (needs(10_000, activations=2 * GIB), True),
        (needs(10_000, losses=GIB), True),  # uploads are still there
        (needs(10_000, buffers=2**17), False),
        (needs(10_000, buffers=2**18), True),  # a quarter of a MiB of 1000 clients, four times
    ],
    ids=str,
)
def test_what_else_a_round_needs_counts_too(given: Needs, streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 10, 100)
    assert memory.must_stream(given, CUDA) is streams


def test_activations_and_uploads_are_not_there_at_the_same_time() -> None:
    few, many = needs(10_000), needs(10_000, activations=GIB)
    assert few.beside(0) < few.beside(10_000) < many.beside(0) == many.beside(10_000)


def test_some_clients_are_copied_and_the_others_only_held() -> None:
    some, everyone = needs(0, present=250), needs(0)
    row = 4 * 2**20
    assert everyone.beside(0) - some.beside(0) == (1000 - 2 * 250) * row


@pytest.mark.parametrize(
    ("clients", "dim", "activations"), [(156, 444_062, 3.0), (100, 555_178, 2.5)], ids=["FEMNIST", "CIFAR-10"]
)
def test_the_setups_of_the_paper_stay_on_a_small_gpu(
    clients: int, dim: int, activations: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose controller starts at D/2 and may go up to D."""
    with_free(monkeypatch, 5, 8)
    given = Needs(clients, dim, dim // 2, torch.float32, most=dim, activations=int(activations * GIB))
    assert not memory.must_stream(given, CUDA)


def test_streaming_is_said_with_the_k_that_it_is_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_free(monkeypatch, 10, 100)
    assert memory.must_stream(needs(10_000, most=HALF), CUDA)
    (said,) = caplog.messages
    assert re.search(r"which is slower: with k up to 524288 a round takes 3\d\.\d GiB, cuda:0 has 10.0 GiB$", said)


def test_residuals_that_fit_nowhere_are_refused_with_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 130, 100)
    given = Needs(3500, 100_000_000, 1000, torch.float32, most=10**8, activations=2 * GIB)
    said = (
        r"3500 clients x 100000000 weights x 4 bytes = 1,303.9 GiB, with 0.2 GiB for uploads of k = 1000 and 2.0 GiB"
        r" for activations and gradients; free memory: cuda:0 has 130.0 GiB, cpu has 100.0 GiB"
    )
    with pytest.raises(GradsiftError, match=said):
        memory.must_stream(given, CUDA)
    with pytest.raises(GradsiftError, match=r"free memory: cpu has 100.0 GiB$"):
        memory.must_stream(given, CPU)


def test_a_k_that_may_never_come_does_not_refuse_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 10, 10)
    assert memory.must_stream(needs(10_000, most=2**20), CUDA)  # of which the uploads alone would take 60 GiB


def test_a_run_that_does_not_fit_is_refused_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 1000)
    with pytest.raises(GradsiftError, match=r"6 clients x 57 weights x 8 bytes"):
        hand.engine(mlp(), torch.nn.CrossEntropyLoss(), blobs())


def counted(monkeypatch: pytest.MonkeyPatch, sparsifier: str, control: str, **options: Any) -> Needs:
    """What an engine of 6 clients and 57 weights asks room for."""
    asked = hand.needs_asked(monkeypatch)
    model = options.pop("model", None) or mlp()
    names = ("clients_per_round", "probe_samples", "buffers", "local", "values")
    settings = {name: options.pop(name) for name in names if name in options}
    hand.engine(
        model,
        torch.nn.CrossEntropyLoss(),
        blobs(),
        sparsifier,
        gradsift.controller(control, **options),
        **settings,
        clients_per_chunk=3,
    )
    return asked[0]


def test_an_engine_asks_for_the_largest_k_of_its_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    def ks(*arguments: str, **options: Any) -> tuple[int, int]:
        got = counted(monkeypatch, *arguments, **options)
        return got.k, got.most

    assert ks("fab-top-k", "fixed", k=7) == (7, 7)
    assert ks("fab-top-k", "replay", sequence=[3, 9, 4]) == (3, 9)
    assert ks("fab-top-k", "extended-sign", k_init=5) == (5, 57)
    assert ks("fab-top-k", "extended-sign", k_init=5, k_max=20.5) == (5, 21)
    assert ks("send-all", "fixed", k=7) == (0, 0)  # a whole vector is the residual itself


def test_an_engine_asks_for_what_its_clients_need(monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = counted(monkeypatch, "fab-top-k", "sign")
    some = counted(monkeypatch, "fab-top-k", "sign", clients_per_round=2, probe_samples=4)
    assert (everyone.present, some.present) == (6, 2)
    assert everyone.activations == 3 / 2 * some.activations  # three at a time, or the two that there are
    assert everyone.losses * 4 * 2 == some.losses * 6
    assert counted(monkeypatch, "fab-top-k", "fixed", k=7).losses == 0
    assert everyone.buffers == 0
    model = models.seeded(models.normed)
    moving = sum(8 * value.numel() for value in model.buffers())  # float64, and a count
    assert counted(monkeypatch, "fab-top-k", "sign", model=model, buffers="average").buffers == moving > 0


def test_an_engine_asks_for_what_local_steps_and_rounding_need(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = counted(monkeypatch, "fab-top-k", "sign")
    once = counted(monkeypatch, "fab-top-k", "sign", local=LocalSteps(1))
    steps = counted(monkeypatch, "fab-top-k", "sign", local=LocalSteps(5))
    row = 57 * 8
    assert once == plain
    assert steps.activations == plain.activations + 3 * 2 * row  # of each of three clients its drift and its weights
    assert replace(steps, activations=plain.activations) == plain
    heavy = counted(monkeypatch, "fab-top-k", "sign", local=LocalSteps(5, momentum=0.9))
    assert heavy.activations == steps.activations + 3 * 2 * row  # and its velocity, and a gradient for it
    decaying = counted(monkeypatch, "fab-top-k", "sign", local=LocalSteps(5, residual_decay=0.5))
    assert decaying == steps
    whole, rounded = (counted(monkeypatch, "send-all", "fixed", k=7, values=values) for values in ("exact", "int8"))
    assert whole.rounding == 0
    assert rounded.beside(0) - whole.beside(0) == 4 * 6 * row
    few = counted(monkeypatch, "send-all", "fixed", k=7, values="few-bits")
    assert few.beside(0) - whole.beside(0) == 64 * 6 * 57  # in double precision, whatever the values are
    assert counted(monkeypatch, "fab-top-k", "sign", values="int8") == plain


def test_an_engine_asks_for_the_largest_k_of_any_client(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hand.needs_asked(monkeypatch)
    hand.engine(mlp(), torch.nn.CrossEntropyLoss(), blobs(), "fab-top-k", OneEach((3.0, 1.0, 20.0, 57.0, 8.0, 2.0)))
    assert (asked[0].k, asked[0].most) == (57, 57)


def test_an_engine_streams_for_a_k_that_may_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def streams(**options: Any) -> bool:
        controller = gradsift.controller("sign", k_init=5, **options)
        made = hand.engine(mlp(), torch.nn.CrossEntropyLoss(), blobs(), controller=controller)
        made.step()
        return made._streams

    roomy = counted(monkeypatch, "fab-top-k", "sign", k_init=5, k_max=30)
    monkeypatch.undo()
    room = roomy.residuals + roomy.beside(30)
    monkeypatch.setattr(memory, "free_bytes", lambda _: int(room / 0.9) + 1)
    assert not streams(k_max=30)
    assert caplog.messages == []
    assert streams()
    assert "with k up to 57 a round takes" in caplog.text


@pytest.mark.parametrize(("gib", "chunk"), [(139, 16 * GIB), (64, 16 * GIB), (12, 3 * GIB)])
def test_a_chunk_takes_no_more_than_a_quarter_of_a_gpu(gib: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda which: SimpleNamespace(total_memory=gib * GIB, asked=which)
    )
    assert memory.chunk_bytes(CUDA) == chunk
    assert memory.chunk_bytes(CPU) == 2**26


def test_free_memory_is_what_this_machine_has_left() -> None:
    before = memory.free_bytes(CPU)
    assert 0 < before < 2**50


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"limit": 5000, "used": 1800, "gone": None}
    monkeypatch.setattr(memory, "_LIMITS", ("limit", "gone"))
    monkeypatch.setattr(memory, "_USES", ("used", "gone"))
    monkeypatch.setattr(memory, "_number", numbers.__getitem__)
    monkeypatch.setattr(memory, "_reclaimable", lambda: 300)
    assert memory.free_bytes(CPU) == 3500
