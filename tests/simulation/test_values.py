"""Rounded values in the simulator: against the slow twin, against the bytes they stand for, and nothing is lost."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradsift
from gradsift import LinkTime, LocalSteps, round
from gradsift.method import Method
from gradsift.round import Plan
from gradsift.sampling import participants
from gradsift.simulation.engine import Engine
from gradsift.sparse import Sparse
from gradsift.wire import Limits, decode
from tests.simulation import hand
from tests.simulation.hand import with_twin
from tests.simulation.problems import blobs, mlp, sized
from tests.simulation.test_run import assert_same_end
from tests.simulation.ways import WAYS, going

pytestmark = pytest.mark.slow  # many runs

LOSS = nn.CrossEntropyLoss()
ROUNDED = ("float16", "bfloat16", "int8")
DIM = 57
SPARSIFIERS = gradsift.sparsifiers()
EXACT_COLUMNS = ("round", "used_k", "probe_k", "up_elements", "down_elements", "clients", "contribution", "steps")


def controller(sparsifier: str) -> gradsift.Controller[Any]:
    """One whose k changes without a look at the losses, where the sparsifier takes it."""
    if gradsift.sparsifier(sparsifier).dense:
        return gradsift.controller("fixed", k=12)
    return gradsift.controller("replay", sequence=[1 + (17 * m) % DIM for m in range(20)])


def made(values: str, sparsifier: str = "fab-top-k", **options: Any) -> Engine:
    return hand.engine(mlp(), LOSS, blobs(), sparsifier, controller(sparsifier), values=values, **options)


# Against the slow twin. Rounded values are added in single precision, in another order.


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
@pytest.mark.parametrize("values", ROUNDED)
def test_runs_are_those_of_the_twin(values: str, sparsifier: str, way: str) -> None:
    with going(way):
        parts = (mlp(), LOSS, blobs(), sparsifier, controller(sparsifier))
        engine, twin = with_twin(*parts, values=values, clients_per_round=4, clients_per_chunk=2)
        for _ in range(8):
            record, step = dict(engine.step()), next(twin)
            for name in EXACT_COLUMNS:
                assert record[name] == dict(step.record)[name], name
            torch.testing.assert_close(engine.state.server.weights, step.weights, rtol=0, atol=1e-5)
            torch.testing.assert_close(engine.state.residual, torch.stack(step.residuals), rtol=0, atol=1e-5)


@pytest.mark.parametrize("values", ROUNDED)
@pytest.mark.parametrize("sparsifier", ["fab-top-k", "send-all"])
def test_small_clients_and_local_steps_are_those_of_the_twin(sparsifier: str, values: str) -> None:
    parts = (mlp(), LOSS, sized(20, 3, 12, 8, 1, 15), sparsifier, controller(sparsifier))
    engine, twin = with_twin(*parts, values=values, local=LocalSteps(3), clients_per_chunk=2)
    for _ in range(5):
        engine.step()
        torch.testing.assert_close(engine.state.server.weights, next(twin).weights, rtol=0, atol=1e-5)


# Nothing is lost.


@pytest.mark.parametrize("way", ["plain", "queued", "streamed"])
@pytest.mark.parametrize("sparsifier", [name for name in SPARSIFIERS if name != "fedavg"])
@pytest.mark.parametrize("values", ROUNDED)
def test_what_leaves_the_residuals_is_what_moves_the_weights(values: str, sparsifier: str, way: str) -> None:
    with going(way):
        engine = made(values, sparsifier, clients_per_round=4, clients_per_chunk=2)
        for number in range(1, 7):
            before, weights = engine.state.residual.clone(), engine.state.server.weights
            record = engine.step()
            present = participants(6, 4, 0, number)
            share = torch.from_numpy(blobs().share[present] / blobs().share[present].sum())
            module = copy.deepcopy(mlp()).double()
            hand.put(module, weights)
            computed = [hand.gradient(module, LOSS, *hand.batch(blobs(), int(i), number)) for i in present]
            left = (before + _rows(computed, present) - engine.state.residual)[present]
            moved = (weights - engine.state.server.weights) / hand.LR
            torch.testing.assert_close(share @ left, moved, rtol=0, atol=1e-6)
            assert int((left.abs() > 1e-9).any(dim=0).sum()) <= record["down_elements"]


def _rows(gradients: list[Tensor], present: Any) -> Tensor:
    rows = torch.zeros(6, DIM, dtype=torch.float64)
    rows[present] = torch.stack(gradients)
    return rows


def test_rounding_leaves_something_behind() -> None:
    """Which exact values do not: of what was sent and kept nothing is left."""
    left = {}
    for values in ("exact", *ROUNDED):
        engine = made(values, "send-all")
        engine.step()
        left[values] = float(engine.state.residual.abs().max())
    assert left["exact"] == 0
    assert 0 < left["float16"] < left["bfloat16"] < left["int8"] < 0.05


@pytest.mark.parametrize("values", ["float32", "float64"])
@pytest.mark.parametrize("sparsifier", ["fab-top-k", "send-all"])
def test_a_type_that_holds_the_values_is_exact(sparsifier: str, values: str) -> None:
    dtype = torch.float32 if values == "float32" else torch.float64
    one, other = (made(each, sparsifier, dtype=dtype) for each in ("exact", values))
    for _ in range(5):
        assert one.step() == other.step()
    assert torch.equal(one.state.server.weights, other.state.server.weights)
    assert torch.equal(one.state.residual, other.state.residual)


# The bytes.


@pytest.mark.parametrize("way", ["plain", "streamed"])
@pytest.mark.parametrize("sparsifier", ["fab-top-k", "periodic-k", "send-all"])
@pytest.mark.parametrize("values", ["exact", *ROUNDED])
def test_what_is_counted_and_merged_is_what_the_bytes_hold(
    values: str, sparsifier: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every client's message is encoded as a deployed client would, and decoded as a server would."""
    sizes: list[int] = []
    contribute = round.contribute

    def watched(method: Method, plan: Plan, residual: Tensor) -> Sparse:
        before, sent = residual.clone(), contribute(method, plan, residual)
        for row, values, indices in zip(before, sent.values, sent.indices, strict=True):
            encoded = round.encoded_contribution(method, plan, row)
            got = decode(encoded, Limits(DIM, DIM))
            assert dict(zip(got.indices.tolist(), got.values.tolist(), strict=True)) == dict(
                zip(indices.tolist(), values.tolist(), strict=True)
            )
            sizes.append(len(encoded))
        return sent

    monkeypatch.setattr(round, "contribute", watched)
    cost = LinkTime(up_bandwidth=100.0, down_bandwidth=1e12, compute=1.0)
    with going(way):
        engine = made(values, sparsifier, encoded_bytes=True, cost=cost, dtype=torch.float32, clients_per_chunk=2)
        for _ in range(4):
            sizes.clear()
            record = engine.step()
            assert len(sizes) == 6
            assert record["up_bytes"] == sum(sizes)
            assert record["round_cost"] == pytest.approx(1.0 + max(sizes) / 100.0, rel=1e-6)


def test_fewer_bits_are_fewer_bytes() -> None:
    bytes_up = {
        values: made(values, "send-all", encoded_bytes=True, dtype=torch.float32).step()["up_bytes"]
        for values in ("exact", *ROUNDED)
    }
    assert bytes_up["int8"] < bytes_up["bfloat16"] < bytes_up["exact"]
    assert bytes_up["float16"] < bytes_up["exact"]
    plain = {values: made(values, "send-all").step()["up_bytes"] for values in ("exact", "int8")}
    assert plain["exact"] == plain["int8"] == 6 * 4 * DIM  # four bytes a number, where nobody counts


# Resume.


@pytest.mark.parametrize("sparsifier", ["fab-top-k", "fedavg"])
def test_a_resumed_run_is_the_same_run(sparsifier: str, tmp_path: Path) -> None:
    def run(name: str, rounds: int, values: str = "int8", **others: Any) -> None:
        gradsift.simulate(
            *(mlp(), LOSS, blobs()),
            sparsifier=sparsifier,
            controller=controller(sparsifier),
            values=values,
            rounds=rounds,
            batch_size=8,
            eval_every=1,
            checkpoint_every=2,
            out=tmp_path / name,
            **others,
        )

    run("whole", 7)
    run("parts", 3)
    with pytest.raises(gradsift.GradsiftError, match=r"parts is another run: values\.name was 'int8', not 'exact'"):
        run("parts", 7, values="exact", resume=True)
    run("parts", 7, resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
