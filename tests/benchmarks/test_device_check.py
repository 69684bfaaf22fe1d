"""The checks of benchmarks/device_check.py: its dry run here, and the real ones where there is a GPU."""

from typing import Any

import pytest
import torch

from benchmarks import device_check
from gradsift.sparse import Sparse
from gradsift.sparsify.fab_top_k import FabTopK

pytestmark = pytest.mark.slow  # starts processes

CPU = torch.device("cpu")
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("kind", device_check.KINDS)
def test_no_kind_of_round_asks_the_device_while_it_is_queued(kind: str) -> None:
    found = device_check.look(device_check.make(kind, CPU, "plain-cnn", clients=2, batch=1))
    assert found.waits == {}
    assert found.read_before + found.read_after == device_check.ROUNDS


def test_a_wait_is_found_and_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = FabTopK.merge

    def asking(self: FabTopK, uploads: Sparse, *given: Any) -> Sparse:
        assert float(uploads.values.sum()) != 0
        return real(self, uploads, *given)

    monkeypatch.setattr(FabTopK, "merge", asking)
    monkeypatch.setattr(device_check, "KINDS", ("k = 1,000",))
    wrong = device_check.check_waits(CPU, "plain-cnn", clients=2, batch=1)
    assert len(wrong) == 2  # the merge and the probe
    for each in wrong:
        assert each.startswith("plain-cnn, k = 1,000: round.py:")
        assert "sparsifier.merge(" in each or "sparsifier.probe(" in each
    assert capsys.readouterr().out.count("3 in 3 rounds: round.py:") == 2


def test_a_mask_is_a_wait_too() -> None:
    noted: list[int] = []
    with device_check.Asks(lambda: noted.append(1)):
        values = torch.arange(6.0)
        values[torch.tensor([0, 2])] = 1
        assert noted == []
        values[values > 2] = 0
    assert noted


def test_products_are_as_exact_as_convolutions() -> None:
    assert device_check.check_exactness(CPU, clients=2, batch=3) == []


@on_cuda
@pytest.mark.parametrize("model", ["plain-cnn", "paper-cnn"])
def test_on_a_gpu_queueing_a_round_waits_for_nothing(model: str) -> None:
    assert device_check.check_waits(torch.device("cuda", 0), model, clients=20, batch=8) == []


@on_cuda
def test_on_a_gpu_products_are_tf32_where_convolutions_are() -> None:
    assert device_check.check_exactness(torch.device("cuda", 0), clients=20, batch=8) == []
