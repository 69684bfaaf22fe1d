"""Where the residuals live, and the refusal of those that fit nowhere."""

import pytest
import torch

from gradsift import GradsiftError
from gradsift.simulation import memory
from tests.simulation import hand
from tests.simulation.problems import blobs, mlp

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
GIB = 2**30


def with_free(monkeypatch: pytest.MonkeyPatch, device: float, host: float) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda which: int((host if which.type == "cpu" else device) * GIB))


@pytest.mark.parametrize(
    ("device", "host", "streams"),
    [(10, 10, False), (8.9, 10, False), (8.7, 10, True), (1, 4.5, True)],
)
def test_residuals_stay_on_the_device_while_two_of_them_fit(
    device: float, host: float, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, device, host)
    assert memory.must_stream(1000, 2**20, 0, torch.float32, CUDA, other=int(0.1 * GIB)) is streams  # 3.9 GiB


def test_uploads_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 10, 100)
    assert not memory.must_stream(1000, 2**20, 10_000, torch.float32, CUDA)
    assert memory.must_stream(1000, 2**20, 2**19, torch.float32, CUDA)  # half of all elements, with their indices


def test_residuals_that_fit_nowhere_are_refused_with_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 130, 100)
    said = (
        r"3500 clients x 100000000 weights x 4 bytes = 1,303.9 GiB, with 0.2 GiB for uploads of k = 1000 and 2.0 GiB"
        r" for activations and gradients; free memory: cuda:0 has 130.0 GiB, cpu has 100.0 GiB"
    )
    with pytest.raises(GradsiftError, match=said):
        memory.must_stream(3500, 100_000_000, 1000, torch.float32, CUDA, other=2 * GIB)
    with pytest.raises(GradsiftError, match=r"free memory: cpu has 100.0 GiB$"):
        memory.must_stream(3500, 100_000_000, 1000, torch.float32, CPU)


def test_a_run_that_does_not_fit_is_refused_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 1000)
    with pytest.raises(GradsiftError, match=r"6 clients x 57 weights x 8 bytes"):
        hand.engine(mlp(), torch.nn.CrossEntropyLoss(), blobs())


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
