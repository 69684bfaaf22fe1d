"""What the engine should do, written by hand: ordinary modules, ordinary autograd, a loop over clients."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradsift
from gradsift import Controller, FederatedData, Settings
from gradsift.method import Method
from gradsift.records.record import Record
from gradsift.sampling import minibatch
from gradsift.schedule import Schedule
from gradsift.simulation import memory
from gradsift.simulation.engine import Engine
from gradsift.simulation.losses import Loss
from gradsift.simulation.memory import Needs
from gradsift.sparsify import Sparsifier
from tests.reference.twin import Step, reference_rounds

LR = 0.1
BATCH = 8


def needs_asked(monkeypatch: pytest.MonkeyPatch) -> list[Needs]:
    """What engines made from now on count on; they are told that there is room for it."""
    asked: list[Needs] = []

    def ask(needs: Needs, device: torch.device) -> bool:
        del device
        asked.append(needs)
        return False

    monkeypatch.setattr(memory, "must_stream", ask)
    return asked


OF_THE_METHOD = (
    *("cost", "local", "values", "down_values", "server", "local_steps", "bits", "seed"),
    *("charge_probe", "dense_fallback", "encoded_bytes"),
)


def engine(
    model: nn.Module,
    loss: Loss,
    data: FederatedData,
    sparsifier: str | Sparsifier = "fab-top-k",
    controller: Controller[Any] | None = None,
    *,
    lr: float | Schedule = LR,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Engine:
    """An engine on the CPU; ``options`` are those of a method, and settings."""
    controller = controller or gradsift.controller("fixed", k=1)
    others = {name: options.pop(name) for name in OF_THE_METHOD if name in options}
    method = Method.of(sparsifier=sparsifier, controller=controller, lr=lr, **others)
    settings = Settings(**{"batch_size": BATCH, **options})
    return Engine(model, loss, data, method, settings, device=torch.device("cpu"), dtype=dtype)


def with_twin(
    model: nn.Module, loss: Loss, data: FederatedData, *parts: Any, **options: Any
) -> tuple[Engine, Iterator[Step]]:
    """An engine, and the rounds of its slow twin on the same problem."""
    fast = engine(model, loss, data, *parts, **options)
    return fast, reference_rounds(model, loss, data, fast.method, fast.settings)


CLOSE: dict[str, tuple[float, float]] = {  # relative, absolute
    **dict.fromkeys(("cost", "round_cost", "up_bytes", "down_bytes"), (1e-12, 0.0)),
    **dict.fromkeys(("k", "low", "high", "c"), (1e-9, 0.0)),
    **dict.fromkeys(("waiting", "agreement"), (1e-9, 1e-9)),
    **dict.fromkeys(("loss_before", "loss_after", "loss_probe"), (0.0, 1e-10)),
}
DRIVERS = ("train_loss", "global_loss", "accuracy")  # which the twin does not have


def assert_same(engine: Engine, record: Record, step: Step, tolerance: float = 1e-11) -> None:
    """The round that an engine in double precision has just made is that of its twin."""
    row, want = dict(record), dict(step.record)
    assert row.keys() == want.keys()
    for name in row.keys() - DRIVERS:
        relative, absolute = CLOSE.get(name, (0.0, 0.0))
        known = name in CLOSE and want[name] is not None
        assert row[name] == (pytest.approx(want[name], rel=relative, abs=absolute) if known else want[name]), name
    assert row["down_elements"] == step.merged.size
    down = set(step.merged.indices.tolist())
    sent = {client: {*upload.indices.tolist()} - {upload.dim} for client, upload in step.uploads.items()}
    assert row["contribution"] == [len(sent.get(client, set()) & down) for client in range(engine.data.num_clients)]
    torch.testing.assert_close(engine.state.server.weights, step.weights, rtol=0, atol=tolerance)
    torch.testing.assert_close(engine.state.residual, torch.stack(step.residuals), rtol=0, atol=tolerance)
    assert engine.state.server.memory.keys() == step.memory.keys()
    for name, value in step.memory.items():
        torch.testing.assert_close(engine.state.server.memory[name], value, rtol=0, atol=tolerance)


def batch(data: FederatedData, client: int, number: int, seed: int = 0, size: int = BATCH) -> tuple[Tensor, Tensor]:
    """The minibatch of a client in a round, in float64."""
    double = data.to("cpu", torch.float64)
    rows = data.start[client] + minibatch(int(data.size[client]), size, seed, client, number)
    return double.x[rows], double.y[rows]


def trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in trainable(module)])


def put(module: nn.Module, weights: Tensor) -> None:
    nn.utils.vector_to_parameters(weights.clone(), trainable(module))


def gradient(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Tensor:
    """[D] of a module as it is; running statistics of the module move."""
    module.zero_grad()
    with torch.enable_grad():
        loss(module(x), y).backward()  # type: ignore[no-untyped-call]
    return torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in trainable(module)])


def client_gradients(model: nn.Module, loss: Loss, data: FederatedData, number: int = 1) -> Tensor:
    """[N, D] of every client's minibatch, in float64."""
    module = copy.deepcopy(model).double()
    if not module.training:
        module.train()
    return torch.stack([gradient(module, loss, *batch(data, client, number)) for client in range(data.num_clients)])


def check_gradients(
    model: nn.Module, loss: Loss, data: FederatedData, *, tolerance: float = 1e-12, **options: Any
) -> None:
    """An engine's gradients are autograd's, where clients have weights of their own and where they share them."""
    want = client_gradients(model, options.pop("by_hand", loss), data)
    assert want.abs().sum(dim=1).gt(0).all()
    # The first round of a FedAvg period exchanges nothing: a residual is a gradient.
    own = engine(model, loss, data, "fedavg", **options)
    assert own.method.local.period(own.flat.dim, 1) > 1
    own.step()
    torch.testing.assert_close(own.state.residual, want, rtol=0, atol=tolerance)
    # One element of a sparse round is kept; elsewhere a residual is a gradient.
    shared = engine(model, loss, data, "fab-top-k", **options)
    before = shared.state.server.weights.clone()
    record = shared.step()
    (kept,) = want.abs().amax(dim=0).eq(want.abs().max()).nonzero()[:, 0].tolist()
    contributed = want.abs().argmax(dim=1) == kept
    assert record["contribution"] == contributed.long().tolist()
    merged = float((torch.from_numpy(data.share) * want[:, kept])[contributed].sum())
    left = want.clone()
    left[contributed, kept] = 0
    torch.testing.assert_close(shared.state.residual, left, rtol=0, atol=tolerance)
    before[kept] -= LR * merged
    torch.testing.assert_close(shared.state.server.weights, before, rtol=0, atol=tolerance)


def average(states: list[dict[str, Tensor]], share: np.ndarray) -> dict[str, Tensor]:
    """The share-weighted average of modules' states; the largest of what is counted."""
    mean = {}
    for name in states[0]:
        stacked = torch.stack([state[name] for state in states])
        if stacked.is_floating_point():
            mean[name] = torch.tensordot(torch.from_numpy(share), stacked.double(), dims=1)
        else:
            mean[name] = stacked.amax(dim=0)
    return mean
