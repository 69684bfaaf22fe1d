"""Any module, any loss: each against an ordinary copy of itself under ordinary autograd."""

import copy
import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradsift
from gradsift import FederatedData, GradsiftError, sparse
from gradsift.sampling import participants
from gradsift.simulation.losses import Loss
from tests.simulation import hand, models
from tests.simulation.problems import blobs, mlp

# torch batches some layers by a loop of its own, and says that this is slow.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

CROSS_ENTROPY = nn.CrossEntropyLoss()
FIXED = gradsift.controller("fixed", k=3)


def close(have: Tensor, want: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(have, want.to(have.dtype), rtol=0, atol=tolerance)


def same_state(left: nn.Module, right: nn.Module) -> bool:
    one, other = left.state_dict(), right.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", models.KINDS)
def test_gradients_are_those_of_autograd(kind: str) -> None:
    model, data = models.seeded(models.KINDS[kind]), blobs()
    hand.check_gradients(model, CROSS_ENTROPY, data)
    hand.check_gradients(model, CROSS_ENTROPY, data, clients_per_chunk=4)


@pytest.mark.parametrize("kind", models.KINDS)
def test_what_one_pass_can_do_is_done_in_one_pass(kind: str) -> None:
    """The quick way gives way silently wherever a trial shows it wrong: it must not where it is meant to be right."""
    quick = {"frozen", "tied", "unused", "image", "convolutions", "constant buffers"}
    engine = hand.engine(models.seeded(models.KINDS[kind]), CROSS_ENTROPY, blobs())
    assert (engine.flat._one_pass is not None) == (kind in quick)


class Scaled(nn.Module):
    """Its samples meet: all are divided by the largest value in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x / x.amax())
        return out


def test_a_statistic_that_the_first_clients_agree_on_is_not_taken_over_all_clients() -> None:
    data = blobs()
    x = data.x.clamp(-1, 1)
    for client in range(data.num_clients):
        x[data.rows(client), 0] = 1.0 if client < 2 else 0.5
        x[data.rows(client)] = x[data.rows(client)].clamp(max=1.0 if client < 2 else 0.5)
    hand.check_gradients(models.seeded(Scaled), CROSS_ENTROPY, replace(data, x=x))


def test_a_class_that_the_loss_ignores_is_not_counted_in_its_mean() -> None:
    data = blobs()
    y = data.y.clone()
    for client in range(data.num_clients):
        rows = data.rows(client)
        y[rows] = y[rows] % 2 if client < 3 else torch.arange(rows.stop - rows.start) % 3
    hand.check_gradients(mlp(), nn.CrossEntropyLoss(ignore_index=2), replace(data, y=y))


def test_a_slower_way_is_said_once_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    engine = hand.engine(nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3)), CROSS_ENTROPY, blobs())
    for _ in range(3):
        engine.step()
    said = [record.getMessage() for record in caplog.records if record.name == "gradsift"]
    assert said == [
        "gradients of Sequential are taken by vmap, not in one pass, which is slower: layer '1' is LayerNorm"
    ]


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_run_leaves_the_module_and_the_generator_as_they_were(kind: str) -> None:
    model = models.seeded(models.KINDS[kind])
    before, modes = copy.deepcopy(model), [part.training for part in model.modules()]
    random = torch.get_rng_state()
    result = gradsift.simulate(model, CROSS_ENTROPY, blobs(), rounds=3, batch_size=8, lr=0.1)
    assert torch.equal(torch.get_rng_state(), random)
    assert same_state(model, before)
    for ours, theirs in zip(model.parameters(), before.parameters(), strict=True):
        assert ours.requires_grad == theirs.requires_grad
        assert ours.grad is None
    assert [part.training for part in model.modules()] == modes
    # The trained one is another module of the same kind, with the trained weights.
    assert [part.training for part in result.model.modules()] == modes
    assert torch.equal(hand.flat(result.model), result.weights)
    assert not same_state(result.model, before)
    assert [p.requires_grad for p in result.model.parameters()] == [p.requires_grad for p in before.parameters()]


def test_a_module_in_evaluation_mode_is_trained_in_training_mode() -> None:
    model = nn.Sequential(nn.Linear(5, 30), nn.Dropout(0.5), nn.Linear(30, 3))
    asleep = copy.deepcopy(model).eval()
    woken, awake = (hand.engine(module, CROSS_ENTROPY, blobs()) for module in (asleep, model))
    assert woken.step() == awake.step()
    assert torch.equal(woken.state.residual, awake.state.residual)
    assert not asleep.training


def test_frozen_parameters_never_move_and_are_not_counted() -> None:
    model = models.seeded(models.frozen_layer)
    engine = hand.engine(model, CROSS_ENTROPY, blobs(), "send-all")
    assert engine.flat.dim == 6 * 3
    for _ in range(5):
        engine.step()
    trained = engine.model()
    assert isinstance(trained, nn.Sequential)
    assert isinstance(model, nn.Sequential)
    assert torch.equal(trained[0].weight, model[0].weight.double())  # type: ignore[arg-type]
    assert torch.equal(trained[2].bias, model[2].bias.double())  # type: ignore[arg-type]
    assert not torch.equal(trained[2].weight, model[2].weight.double())  # type: ignore[arg-type]


def test_tied_parameters_are_one_and_stay_tied() -> None:
    model = models.seeded(models.Tied)
    engine = hand.engine(model, CROSS_ENTROPY, blobs(), "send-all")
    assert engine.flat.dim == 25 + 5 + 5 + 15 + 3
    for _ in range(3):
        engine.step()
    trained = engine.model()
    assert isinstance(trained, models.Tied)
    assert trained.decoder.weight is trained.encoder.weight
    # As ordinary training of the tied module does.
    module, data = copy.deepcopy(model).double(), blobs()
    for number in range(1, 4):
        rows = [hand.gradient(module, CROSS_ENTROPY, *hand.batch(data, i, number)) for i in range(data.num_clients)]
        hand.put(module, hand.flat(module) - hand.LR * torch.from_numpy(data.share) @ torch.stack(rows))
    close(engine.state.server.weights, hand.flat(module))


def test_a_module_without_trainable_parameters_is_refused() -> None:
    model = mlp().requires_grad_(False)
    with pytest.raises(GradsiftError, match="Sequential has no trainable parameters"):
        hand.engine(model, CROSS_ENTROPY, blobs())


# Dropout. With one sample of ones and a loss that is linear in the weights, a gradient is the mask itself, doubled.


def masks(rounds: int, seed: int = 0, **settings: Any) -> list[Tensor]:
    """The masks [N, 400] of each round."""
    clients = 5
    x, y = np.ones((clients * 2, 400)), np.zeros(clients * 2)
    data = FederatedData.from_arrays(x, y, np.repeat(np.arange(clients), 2))
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(400, 1, bias=False))
    engine = hand.engine(
        model, lambda out, target: out.mean() + 0 * target.mean(), data, "fedavg", seed=seed, batch_size=1, **settings
    )
    before, seen = engine.state.residual.clone(), []
    for _ in range(rounds):
        engine.step()
        seen.append(engine.state.residual - before)
        before = engine.state.residual.clone()
    return seen


@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_dropout_differs_between_clients_rounds_and_seeds_and_repeats(chunk: int | None) -> None:
    drawn = masks(3, clients_per_chunk=chunk)
    everything = torch.cat(drawn)
    assert set(everything.flatten().tolist()) == {0.0, 2.0}
    assert 0.4 < float((everything == 0).double().mean()) < 0.6
    assert len({tuple(row.tolist()) for row in everything}) == len(everything)
    assert all(torch.equal(one, other) for one, other in zip(drawn, masks(3, clients_per_chunk=chunk), strict=True))
    assert not torch.equal(drawn[0], masks(1, seed=1, clients_per_chunk=chunk)[0])


def test_dropout_leaves_the_generator_alone_and_is_off_in_evaluations() -> None:
    model = nn.Sequential(nn.Linear(5, 50), nn.Dropout(0.5), nn.Linear(50, 3))
    state = torch.get_rng_state()
    engine = hand.engine(model, CROSS_ENTROPY, blobs(), controller=gradsift.controller("sign"))
    engine.step()
    double = blobs().to("cpu", torch.float64)
    loss, _ = engine.evaluate()
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        close(torch.tensor(loss), CROSS_ENTROPY(engine.model().eval()(double.x), double.y), 1e-6)


# Buffers that change in training.


@pytest.mark.parametrize("kind", ["BatchNorm", "of one's own"])
def test_moving_buffers_are_refused_by_name(kind: str) -> None:
    model = models.normed() if kind == "BatchNorm" else models.Statistics()
    named = r"1\.running_mean, 1\.running_var, 1\.num_batches_tracked" if kind == "BatchNorm" else "mean"
    with pytest.raises(GradsiftError, match=f"^buffers {named} change in training.*--buffers average"):
        hand.engine(model, CROSS_ENTROPY, blobs())


MOVING = {
    "BatchNorm": models.normed,
    "BatchNorm, cumulative": lambda: models.normed(None),
    "of one's own": models.Statistics,
}


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:Sequential cannot be batched over clients"
)  # a cumulative BatchNorm reads its count
@pytest.mark.parametrize("kind", MOVING)
@pytest.mark.parametrize("clients_per_round", [None, 4])
@pytest.mark.parametrize("k", [1, 10])
def test_buffers_and_weights_of_fedavg_are_those_of_local_modules(
    kind: str, clients_per_round: int | None, k: int
) -> None:
    """FedAvg as everybody writes it: a module and an optimizer a client, and an average of their states."""
    data, model = blobs(), models.seeded(MOVING[kind])
    controller = gradsift.controller("fixed", k=k)
    engine = hand.engine(
        model, CROSS_ENTROPY, data, "fedavg", controller, buffers="average", clients_per_round=clients_per_round
    )
    period = max(1, engine.flat.dim // (2 * k))
    shared = copy.deepcopy(model).double()
    number = 0
    for _ in range(2 if k == 1 else 6):
        clients = participants(data.num_clients, clients_per_round, 0, number + 1)
        local = [copy.deepcopy(shared) for _ in clients]
        for _ in range(period):
            number += 1
            before = engine.evaluate()
            engine.step()
            if number % period:
                assert engine.evaluate() == before  # nothing was exchanged: the global model is where it was
            for module, client in zip(local, clients, strict=True):
                step = hand.gradient(module, CROSS_ENTROPY, *hand.batch(data, int(client), number))
                hand.put(module, hand.flat(module) - hand.LR * step)
        share = data.share[clients] / data.share[clients].sum()
        shared.load_state_dict(hand.average([module.state_dict() for module in local], share))
        have, want = engine.model().state_dict(), shared.state_dict()
        assert have.keys() == want.keys()
        for name in want:
            close(have[name], want[name])
        loss, accuracy = engine.evaluate()
        double = data.to("cpu", torch.float64)
        with torch.no_grad():
            asleep = copy.deepcopy(shared).eval()
            assert loss == pytest.approx(float(CROSS_ENTROPY(asleep(double.x), double.y)), abs=1e-11)
            right = asleep(double.test_x).argmax(dim=1) == double.test_y
        assert accuracy == float(right.double().mean())


@pytest.mark.filterwarnings(
    "ignore:Sequential cannot be batched over clients"
)  # a cumulative BatchNorm reads its count
@pytest.mark.parametrize("kind", MOVING)
@pytest.mark.parametrize("clients_per_round", [None, 4])
def test_buffers_are_averaged_in_every_round_of_a_sparse_method(kind: str, clients_per_round: int | None) -> None:
    data, model = blobs(), models.seeded(MOVING[kind])
    engine = hand.engine(
        model, CROSS_ENTROPY, data, "periodic-k", FIXED, buffers="average", clients_per_round=clients_per_round
    )
    shared = copy.deepcopy(model).double()
    for number in range(1, 7):
        clients = participants(data.num_clients, clients_per_round, 0, number)
        passes = []
        for client in clients:
            module = copy.deepcopy(shared)
            module(hand.batch(data, int(client), number)[0])
            passes.append(dict(module.named_buffers()))
        engine.step()
        share = data.share[clients] / data.share[clients].sum()
        state = hand.average(passes, share)
        for name, value in state.items():
            close(engine.state.buffers[name], value)
            assert engine.state.local_buffers[name].eq(engine.state.buffers[name]).all()  # the absentees' too
        # The weights follow their own path; the buffers must follow from them.
        shared.load_state_dict(engine.model().state_dict())


def test_averaged_buffers_travel_and_are_charged() -> None:
    data, model = blobs(), models.normed()
    free = hand.engine(models.seeded(models.resting_norm), CROSS_ENTROPY, data, "fab-top-k", FIXED).step()
    paid = hand.engine(model, CROSS_ENTROPY, data, "fab-top-k", FIXED, buffers="average").step()
    numbers = 6 + 6 + 1  # mean, variance and count of 6 features
    assert paid["up_bytes"] - free["up_bytes"] == 4 * numbers * data.num_clients
    assert paid["down_bytes"] - free["down_bytes"] == 4 * numbers * data.num_clients
    dim = hand.flat(model).numel()
    assert paid["round_cost"] - free["round_cost"] == pytest.approx(10 * 2 * numbers / (2 * dim))


def test_constant_buffers_are_no_trouble() -> None:
    model = models.seeded(models.constant_buffers)
    engine = hand.engine(model, CROSS_ENTROPY, blobs())
    engine.step()
    assert engine.state.buffers == {}
    buffers = dict(engine.model().named_buffers())
    assert buffers["scale"].tolist() == [2.0]
    assert buffers["count"].item() == 7


# Modules and losses that cannot be batched over clients.


def branching_loss(outputs: Tensor, y: Tensor) -> Tensor:
    value = nn.functional.cross_entropy(outputs, y)
    return value * (2.0 if value.detach().item() > 1.1 else 0.5)


@pytest.mark.parametrize("where", ["module", "loss"])
def test_what_cannot_be_batched_runs_one_by_one_and_says_so_once(where: str) -> None:
    model = models.seeded(models.Branching) if where == "module" else mlp()
    loss: Loss = CROSS_ENTROPY if where == "module" else branching_loss
    data = blobs()
    engine = hand.engine(model, loss, data, controller=gradsift.controller("extended-sign"), clients_per_chunk=2)
    with pytest.warns(UserWarning, match="cannot be batched over clients, they run one by one") as caught:
        records = [engine.step() for _ in range(3)]
    assert len(caught) == 1
    assert all(record["loss_probe"] is not None for record in records)
    with pytest.warns(UserWarning, match="one by one"):
        hand.check_gradients(model, loss, data)


@pytest.mark.parametrize("where", ["module", "loss"])
def test_losses_of_what_cannot_be_batched_are_right(where: str) -> None:
    model = models.seeded(models.Branching) if where == "module" else mlp()
    loss: Loss = CROSS_ENTROPY if where == "module" else branching_loss
    data = blobs()
    engine = hand.engine(model, loss, data, controller=gradsift.controller("sign"), probe_samples=hand.BATCH)
    with pytest.warns(UserWarning, match="one by one"):
        record = engine.step()
    module = copy.deepcopy(model).double().eval()
    samples = [
        float(loss(module(x[None]), y[None]).detach())
        for client in range(data.num_clients)
        for x, y in zip(*hand.batch(data, client, 1), strict=True)
    ]
    assert record["loss_before"] == pytest.approx(np.mean(samples), abs=1e-12)


def test_a_recurrent_network_trains() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.cells(x.unsqueeze(-1))[0][:, -1])
            return out

    model, data = models.seeded(Recurrent), blobs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether torch can batch its LSTM, and how fast, is its own affair
        hand.check_gradients(model, CROSS_ENTROPY, data, tolerance=1e-9)


# Outputs and losses of other kinds.


@pytest.mark.parametrize("kind", ["tuple", "named tuple", "dict"])
def test_several_outputs(kind: str) -> None:
    model, data = models.seeded(lambda: models.Several(kind)), blobs()
    hand.check_gradients(model, models.several_loss, data)
    engine = hand.engine(model, models.several_loss, data, controller=gradsift.controller("sign"), probe_samples=8)
    record = engine.step()
    module = copy.deepcopy(model).double()
    with torch.no_grad():
        samples = [
            float(models.several_loss(module(x[None]), y[None]))
            for client in range(data.num_clients)
            for x, y in zip(*hand.batch(data, client, 1), strict=True)
        ]
    assert record["loss_before"] == pytest.approx(np.mean(samples), abs=1e-12)
    loss, accuracy = engine.evaluate()
    assert np.isfinite(loss)
    assert accuracy is None  # which of the outputs are the classes, only their owner knows


@pytest.mark.parametrize("columns", [None, 1, 2])
def test_regression(columns: int | None) -> None:
    source, classified = np.random.default_rng(0), blobs()
    rows = int(classified.size.sum())
    y = source.normal(size=rows if columns is None else (rows, columns))
    data = FederatedData.from_arrays(classified.x, y, classified.owner, test=np.arange(rows) % 5 == 0)
    layers = [nn.Linear(5, columns or 1), *([nn.Flatten(0)] if columns is None else [])]
    model = nn.Sequential(*layers)
    result = gradsift.simulate(model, nn.MSELoss(), data, rounds=60, batch_size=8, lr=0.05, eval_every=20)
    assert [record["accuracy"] for record in result.records] == [None] * 60
    assert result.config["start"]["accuracy"] is None
    assert result.records[-1]["global_loss"] < result.config["start"]["global_loss"]
    hand.check_gradients(model, nn.MSELoss(), data)


def test_one_logit_has_no_accuracy() -> None:
    """A binary classifier with a single output: its largest output is always the first."""
    data = blobs(classes=2)
    model = nn.Sequential(nn.Linear(5, 1))

    def binary(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.to(outputs))

    assert hand.engine(model, binary, data).evaluate()[1] is None


def test_a_loss_with_weights_of_its_own() -> None:
    weight = torch.tensor([0.2, 1.0, 3.0])
    loss, data = nn.CrossEntropyLoss(weight=weight), blobs()
    hand.check_gradients(mlp(), loss, data, by_hand=nn.CrossEntropyLoss(weight=weight.double()))
    assert loss.weight is weight
    assert weight.dtype == torch.float32


def test_a_loss_with_trainable_parameters_is_refused() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(outputs * self.scale, y)

    with pytest.raises(GradsiftError, match=r"the loss has trainable parameters \(scale\)"):
        hand.engine(mlp(), Scaled(), blobs())


def test_a_loss_that_does_not_depend_on_the_weights_is_refused() -> None:
    def cut(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs.detach(), y)

    with pytest.raises(GradsiftError, match="does not depend on the model's trainable weights"):
        hand.engine(mlp(), cut, blobs())


def test_a_backward_pass_that_fails_is_refused() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            root = self.layer(x).exp()
            out: Tensor = root * 2
            root.add_(1)  # exp needs its own output to go back
            return out

    with pytest.raises(GradsiftError, match=re.escape("backward pass failed")):
        hand.engine(Broken(), CROSS_ENTROPY, blobs())


def test_it_may_be_called_where_gradients_are_off() -> None:
    with torch.no_grad():
        hand.check_gradients(mlp(), CROSS_ENTROPY, blobs())


def test_token_inputs_stay_integers() -> None:
    source = np.random.default_rng(0)
    tokens, y = source.integers(0, 11, (60, 4)), source.integers(0, 3, 60)
    data = FederatedData.from_arrays(tokens, y, np.arange(60) % 3)
    model = models.seeded(lambda: nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(16, 3)))
    hand.check_gradients(model, CROSS_ENTROPY, data)


class TimeFirst(nn.Module):
    """Its layers see [time, batch, features], and a head that starts at zero hides that at first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 16), nn.Linear(16, 3)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.inner(x.reshape(-1, 2, 4).transpose(0, 1)).relu().mean(0))
        return out


def test_the_one_pass_way_is_not_taken_where_it_would_be_wrong_later() -> None:
    source = np.random.default_rng(0)
    x, y = source.normal(size=(90, 8)), source.integers(0, 3, 90)
    data = gradsift.FederatedData.from_arrays(x, y, np.arange(90) % 3)
    engine = hand.engine(models.seeded(TimeFirst), CROSS_ENTROPY, data)
    assert engine.flat._one_pass is None


def test_a_relu_that_rounding_turns_around_does_not_hide_the_one_pass_way() -> None:
    torch.manual_seed(0)
    first, sample = nn.Linear(777, 256), torch.rand(777)
    with torch.no_grad():  # what comes out is zero up to float32's rounding
        first.bias.copy_(-(first.weight.double() @ sample.double()))
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(256, 10))
    x, y = sample.expand(64, -1).numpy(), np.arange(64) % 10
    data = gradsift.FederatedData.from_arrays(x, y, np.repeat([0, 1], 32))
    engine = hand.engine(model, CROSS_ENTROPY, data, dtype=torch.float32, batch_size=32)
    assert engine.flat._one_pass is not None
    assert engine.flat._one_pass.takes_client_weights


class Viewing(nn.Module):
    """Convolutions whose result is viewed, which only the plain order of images allows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(4 * 64, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).view(len(x), -1))
        return out


@pytest.mark.parametrize("queued", [False, True])
def test_a_model_that_views_goes_in_one_pass_in_the_plain_order(queued: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where double precision leaves the order of images alone, as cuDNN does, and so hides what fails later."""
    if queued:
        monkeypatch.setattr(sparse, "queued", lambda _: True)
        convolve = nn.functional.conv2d

        def plain_in_double(x: Tensor, *rest: Any, **options: Any) -> Tensor:
            out: Tensor = convolve(x, *rest, **options)
            return out.contiguous() if x.dtype == torch.float64 else out

        monkeypatch.setattr(nn.functional, "conv2d", plain_in_double)
        monkeypatch.setattr(torch, "conv2d", plain_in_double)
    flat = blobs(features=64)
    data = replace(flat, x=flat.x.view(-1, 1, 8, 8), test_x=flat.test_x.view(-1, 1, 8, 8))
    engine = hand.engine(models.seeded(Viewing), CROSS_ENTROPY, data, "fedavg", dtype=torch.float32)
    assert engine.flat._one_pass is not None
    assert (engine.flat._one_pass.channels_last, engine.flat._one_pass.takes_client_weights) == (False, True)
    engine.step()


class Autocast(nn.Module):
    """Half precision inside, but not in double."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = self.second(self.first(x).relu())
        return out


def test_what_runs_in_double_precision_only_is_not_trusted() -> None:
    engine = hand.engine(models.seeded(Autocast), CROSS_ENTROPY, blobs(features=8), dtype=torch.float32)
    assert engine.flat._one_pass is None
    engine.step()


def test_a_copy_of_a_model_has_weights_of_its_own() -> None:
    engine = hand.engine(models.seeded(models.KINDS["image"]), CROSS_ENTROPY, blobs())
    engine.step()
    before = engine.evaluate()
    assert copy.deepcopy(engine).evaluate() == before
    engine.step()
    assert engine.evaluate() != before


def test_labels_are_checked_before_the_loss_sees_them() -> None:
    data = blobs(classes=4)
    for loss in (CROSS_ENTROPY, nn.functional.nll_loss, nn.CrossEntropyLoss()):
        with pytest.raises(gradsift.GradsiftError, match="label 3 is outside the model's 3 classes"):
            hand.engine(mlp(), loss, data)


def test_a_loss_that_is_no_mean_is_refused() -> None:
    with pytest.raises(GradsiftError, match="mean over a batch, got reduction='sum'"):
        hand.engine(mlp(), nn.CrossEntropyLoss(reduction="sum"), blobs())
