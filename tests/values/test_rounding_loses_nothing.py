"""What rounding takes from a value stays with its client, with every sparsifier, client by client, whole rounds long.

Shapes: residual, gradients, delivered [N, D]; share [N].
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradsift
from gradsift import Method, Proposal, densify, round
from gradsift.control.base import Controller, Observation
from gradsift.round import Participation
from gradsift.sparse import kept
from tests.examples import examples
from tests.sparsify.cases import ALL, TABLE
from tests.values.table import TABLE as VALUES

CLIENTS, DIM, ROUNDS = 3, 24, 8


class Unequal(Controller[dict[str, int]]):
    """Another k for each client in every round."""

    learns = False

    def init(self, dim: int, seed: int = 0) -> dict[str, int]:
        return {"dim": dim, "seed": seed}

    def propose(self, state: dict[str, int], number: int) -> Proposal:
        source = np.random.default_rng([state["seed"], number])
        return Proposal(number, tuple(source.uniform(1, state["dim"], CLIENTS).tolist()))

    def update(self, state: dict[str, int], seen: Observation) -> dict[str, int]:
        del seen
        return state


def run(sparsifier: str, values: Any, dtype: torch.dtype, seed: int, unequal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """After some rounds: what each client computed, what of it was delivered, and its residual."""
    controller = Unequal() if unequal else gradsift.controller("fixed", k=5)
    method = Method.of(sparsifier=sparsifier, controller=controller, values=values, lr=0.5, seed=seed)
    source = np.random.default_rng(seed)
    share = torch.tensor([0.5, 0.25, 0.25], dtype=dtype)
    server = round.start(method, torch.zeros(DIM, dtype=dtype))
    residual, computed, delivered = (torch.zeros(CLIENTS, DIM, dtype=dtype) for _ in range(3))
    for _ in range(ROUNDS):
        # Columns of very different size: some elements wait for many rounds, and int8 rounds many to zero.
        gradient = torch.from_numpy(source.standard_normal((CLIENTS, DIM)) * np.geomspace(1e-3, 1, DIM)).to(dtype)
        computed += gradient
        residual += gradient
        plan = round.plan(method, server)
        upload = round.contribute(method, plan, residual)
        outcome = round.merge(method, server, plan, upload, share, Participation(np.ones(CLIENTS, dtype=bool)))
        arrived = densify(upload.with_values(upload.values * kept(upload, outcome.merged))).to(dtype)
        delivered += arrived
        torch.testing.assert_close(densify(outcome.merged).to(dtype), share @ arrived, rtol=1e-5, atol=1e-6)
        before = residual.clone()
        residual = round.settle(method, residual, upload, outcome.merged)
        assert torch.equal(residual, before - arrived)
        server = outcome.server
    return computed, delivered, residual


@pytest.mark.parametrize("sparsifier", ALL)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=st.integers(0, 2**32))
@examples(4)
def test_computed_is_delivered_plus_residual(sparsifier: str, values: str, dtype: torch.dtype, seed: int) -> None:
    for unequal in (False, True) if not TABLE[sparsifier].dense else (False,):
        computed, delivered, residual = run(sparsifier, values, dtype, seed, unequal)
        tolerance = 1e-13 if dtype == torch.float64 else 1e-5  # of sums in another order
        torch.testing.assert_close(delivered + residual, computed, rtol=0.0, atol=tolerance)
        assert float(delivered.abs().max()) > 0.1


def test_rounding_does_take_something() -> None:
    """Else the test above would prove little: what was sent and kept is not gone to the last bit."""
    for values in ("float16", "bfloat16", "int8"):
        _, _, residual = run("send-all", values, torch.float64, 0, unequal=False)
        assert 0 < float(residual.abs().max()) < 0.05
    assert not run("send-all", "exact", torch.float64, 0, unequal=False)[2].any()
