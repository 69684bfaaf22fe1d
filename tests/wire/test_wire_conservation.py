"""Nothing is lost on the way: whatever rounding takes from an upload stays in the client's residual.

Shapes: gradient and residual [N, D], share [N].
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from gradsift import Round, Sparse, densify, sparsifier
from gradsift.wire import VALUE_TYPES, Limits, decode, encode, transmitted

pytestmark = pytest.mark.slow  # many runs

CLIENTS, DIM, ROUNDS = 4, 120, 25
METHODS = ["fab-top-k", "fub-top-k", "unidirectional-top-k", "periodic-k", "send-all"]


def over_the_wire(uploads: Sparse, values: str) -> Sparse:
    """Each row encoded, sent and decoded, as the server gets them."""
    rows = [Sparse(i, v, uploads.dim) for i, v in zip(uploads.indices, uploads.values, strict=True)]
    arrived = [decode(encode(row, values=values), Limits.of(DIM)) for row in rows]
    return Sparse(torch.stack([a.indices for a in arrived]), torch.stack([a.values for a in arrived]), DIM)


def run(method: str, values: str, settle_with_transmitted: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """After some rounds, of each client: what it computed, what of it was delivered, its residual; all [N, D]."""
    algorithm = sparsifier(method)
    source = np.random.default_rng(5)
    residual, computed, delivered = (torch.zeros(CLIENTS, DIM, dtype=torch.float64) for _ in range(3))
    share = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    offset = 0
    for number in range(1, ROUNDS + 1):
        k = int(source.integers(1, 40))
        rnd = Round(number, k, seed=1, offset=offset)
        # Columns of very different size: some elements wait for many rounds, and int8 rounds many to zero.
        gradient = torch.from_numpy(source.standard_normal((CLIENTS, DIM)) * np.geomspace(1e-4, 1, DIM))
        computed += gradient
        residual += gradient
        upload = algorithm.upload(residual, rnd)
        offset += upload.size
        arrived = over_the_wire(upload, values)
        merged = algorithm.merge(arrived, share, rnd)
        back = decode(encode(merged), Limits.of(DIM))  # the downlink is lossless
        sent = transmitted(upload, values=values) if settle_with_transmitted else upload
        residual = algorithm.settle(residual, sent, back)
        # What the server took, told from the server's side.
        kept = torch.zeros(DIM, dtype=torch.bool)
        kept[merged.indices] = True
        delivered += densify(arrived._replace(values=arrived.values.double())) * kept
        server = (share[:, None] * densify(arrived._replace(values=arrived.values.double())) * kept).sum(0)
        torch.testing.assert_close(densify(back).double(), server, rtol=1e-5, atol=1e-6)
    return computed, delivered, residual


@pytest.mark.parametrize("values", VALUE_TYPES)
@pytest.mark.parametrize("method", METHODS)
def test_computed_is_delivered_plus_residual(method: str, values: str) -> None:
    computed, delivered, residual = run(method, values)
    torch.testing.assert_close(delivered + residual, computed, rtol=0.0, atol=1e-13)
    assert float(delivered.abs().max()) > 0.1


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int8"])
def test_settling_with_what_was_meant_would_lose_the_rounding(values: str) -> None:
    computed, delivered, residual = run("fab-top-k", values, settle_with_transmitted=False)
    assert float((delivered + residual - computed).abs().max()) > 1e-4


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int8"])
def test_rounding_is_delivered_in_the_end(values: str) -> None:
    """Once gradients stop, a few rounds bring the residual to nothing: the error itself is sent, smaller each time."""
    algorithm = sparsifier("send-all")
    residual = torch.from_numpy(np.random.default_rng(2).standard_normal((2, DIM)))
    share = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for number in range(1, 9):
        rnd = Round(number, DIM)
        upload = algorithm.upload(residual, rnd)
        merged = algorithm.merge(over_the_wire(upload, values), share, rnd)
        residual = algorithm.settle(residual, transmitted(upload, values=values), merged)
    assert float(residual.abs().max()) < 1e-14
