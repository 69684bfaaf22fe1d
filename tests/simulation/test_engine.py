"""The round: who takes part, what is evaluated where, what is written down."""

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import gradsift
from gradsift import FederatedData, GradsiftError, LinkTime, RunError, Settings
from gradsift.method import Method
from gradsift.records.record import COLUMNS
from gradsift.sampling import minibatch, participants, probe_sample
from gradsift.simulation.engine import Engine
from tests.examples import examples
from tests.simulation import hand, models
from tests.simulation.problems import blobs, mlp

LOSS = nn.CrossEntropyLoss()
DIM = 57
SPARSE = [name for name in gradsift.sparsifiers() if not gradsift.sparsifier(name).dense]


def make(sparsifier: str = "fab-top-k", control: str | None = None, **options: Any) -> Engine:
    name = control or ("fixed" if gradsift.sparsifier(sparsifier).dense else "extended-sign")
    controller = gradsift.controller(name, **({"k": 7} if name == "fixed" else {}))
    return hand.engine(mlp(), LOSS, blobs(), sparsifier, controller, **options)


def loss_of(weights: Tensor, x: Tensor, y: Tensor) -> float:
    module = copy.deepcopy(mlp()).double()
    hand.put(module, weights)
    with torch.no_grad():
        return float(LOSS(module(x), y))


# Evaluation.


@pytest.mark.parametrize("eval_batch", [1, 7, 50, 10_000])
def test_global_loss_is_the_share_weighted_mean_of_the_clients_losses(eval_batch: int) -> None:
    engine = make(eval_batch=eval_batch)
    for _ in range(3):
        engine.step()
    data, weights = engine.data, engine.state.server.weights
    losses = [loss_of(weights, data.x[data.rows(i)], data.y[data.rows(i)]) for i in range(data.num_clients)]
    loss, accuracy = engine.evaluate()
    assert loss == pytest.approx(float(data.share @ np.array(losses)), abs=1e-12)
    module = copy.deepcopy(mlp()).double()
    hand.put(module, weights)
    assert accuracy == float((module(data.test_x).argmax(dim=1) == data.test_y).double().mean())
    assert len(set(data.size.tolist())) > 1  # else the shares would not matter


def test_fedavg_is_evaluated_at_the_last_aggregated_weights() -> None:
    engine = make("fedavg")
    period = DIM // 14
    assert period == 4
    aggregated = engine.state.server.weights.clone()
    for number in range(1, 13):
        engine.step()
        if number % period == 0:
            assert not torch.equal(engine.state.server.weights, aggregated)
            assert not engine.state.residual.any()
            aggregated = engine.state.server.weights.clone()
        assert torch.equal(engine.state.server.weights, aggregated)
        assert engine.evaluate()[0] == pytest.approx(loss_of(aggregated, engine.data.x, engine.data.y), abs=1e-12)
        assert engine.state.residual.any() == bool(number % period)


# Who takes part.


@pytest.mark.parametrize("sparsifier", gradsift.sparsifiers())
def test_absentees_keep_their_residuals_bit_for_bit(sparsifier: str) -> None:
    engine, data = make(sparsifier, clients_per_round=3), blobs()
    period = engine.method.local.period(DIM, 7)
    groups = set()
    for number in range(1, 25):
        first = number - (number - 1) % period
        present = participants(6, 3, 0, first)
        before, weights = engine.state.residual.clone(), engine.state.server.weights.clone()
        record = engine.step()
        absent = np.setdiff1d(np.arange(6), present)
        assert torch.equal(engine.state.residual[absent], before[absent])
        assert not torch.equal(engine.state.residual[present], before[present]) or sparsifier == "send-all"
        assert record["clients"] == 3
        assert all(record["contribution"][i] == 0 for i in absent)
        groups.add((first, tuple(present)))
        if number % period == 0 and engine.method.sparsifier.dense:
            # Everyone has the same weights again: nobody is left with a drift.
            assert not engine.state.residual.any()
        if sparsifier == "send-all":
            share = data.share[present] / data.share[present].sum()
            module = copy.deepcopy(mlp()).double()
            hand.put(module, weights)
            rows = [hand.gradient(module, LOSS, *hand.batch(data, int(i), number)) for i in present]
            step = torch.from_numpy(share) @ torch.stack(rows)
            torch.testing.assert_close(engine.state.server.weights, weights - hand.LR * step, rtol=0, atol=1e-12)
    assert len(groups) == 24 / period  # once a period
    assert len({group for _, group in groups}) > 1  # and not always the same


def test_all_clients_by_number_are_all_clients() -> None:
    everyone, counted = make(), make(clients_per_round=6)
    for _ in range(5):
        assert everyone.step() == counted.step()
    assert torch.equal(everyone.state.residual, counted.state.residual)


def test_more_clients_a_round_than_there_are_is_refused() -> None:
    with pytest.raises(GradsiftError, match="clients_per_round is 7, but there are 6 clients"):
        make(clients_per_round=7)


# The step size.


def test_the_step_size_is_taken_once_a_period() -> None:
    asked: list[int] = []

    def falling(number: int) -> float:
        asked.append(number)
        return 1 / (10 + number)

    engine = make("fedavg", lr=falling)
    asked.clear()  # it tries the first, to refuse a bad schedule at once
    records = [engine.step() for _ in range(9)]
    assert asked == [1, 1, 1, 1, 5, 5, 5, 5, 9]
    assert [record["lr"] for record in records] == [1 / (10 + number) for number in asked]
    engine = make("fab-top-k", lr=falling)
    asked.clear()
    assert [engine.step()["lr"] for _ in range(3)] == [1 / 11, 1 / 12, 1 / 13]
    assert asked == [1, 2, 3]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1])
def test_a_step_size_that_is_none_is_refused(bad: float) -> None:
    engine = make(lr=lambda number: bad if number == 3 else 0.1)
    engine.step()
    engine.step()
    with pytest.raises(GradsiftError, match="lr of round 3 must be"):
        engine.step()


# The three losses.


@pytest.mark.parametrize("samples", [1, 3, 8])
@pytest.mark.parametrize("clients_per_round", [None, 4])
def test_the_three_losses_are_taken_on_samples_of_the_rounds_minibatches(
    samples: int, clients_per_round: int | None
) -> None:
    engine, data = make(probe_samples=samples, clients_per_round=clients_per_round), blobs().to("cpu", torch.float64)
    for number in range(1, 6):
        before = engine.state.server.weights.clone()
        record = engine.step()
        rows = []
        for i in participants(6, clients_per_round, 0, number):
            picks = probe_sample(hand.BATCH, samples, 0, int(i), number)
            rows += (data.start[i] + minibatch(int(data.size[i]), hand.BATCH, 0, int(i), number)[picks]).tolist()
        assert len(set(rows)) == samples * record["clients"]
        assert record["loss_before"] == pytest.approx(loss_of(before, data.x[rows], data.y[rows]), abs=1e-12)
        assert record["loss_after"] == pytest.approx(
            loss_of(engine.state.server.weights, data.x[rows], data.y[rows]), abs=1e-12
        )
        assert record["loss_probe"] is not None
        assert record["observed"] == number


def test_a_late_observation_is_of_the_round_before_on_the_samples_of_this_one() -> None:
    engine, data = make(delay=1, control="sign"), blobs().to("cpu", torch.float64)
    weights = [engine.state.server.weights.clone()]
    records = []
    for _ in range(6):
        records.append(engine.step())
        weights.append(engine.state.server.weights.clone())
    assert [record["observed"] for record in records] == [None, 1, 2, 3, 4, 5]
    assert records[0]["loss_before"] is records[0]["sign"] is None
    assert records[1]["k"] == records[0]["k"]  # nothing was known when the second round began
    assert records[1]["sign"] is not None
    assert records[2]["k"] != records[0]["k"]
    for number in range(2, 7):
        picks = {i: probe_sample(hand.BATCH, 1, 0, i, number) for i in range(6)}
        rows = [
            int(data.start[i] + minibatch(int(data.size[i]), hand.BATCH, 0, i, number)[picks[i]][0]) for i in range(6)
        ]
        for name, at in (("loss_before", number - 2), ("loss_after", number - 1)):
            assert dict(records[number - 1])[name] == pytest.approx(loss_of(weights[at], data.x[rows], data.y[rows]))


@pytest.mark.parametrize("control", ["fixed", "replay"])
def test_a_controller_that_does_not_learn_costs_no_losses(control: str) -> None:
    controller = gradsift.controller(control, **({"k": 5} if control == "fixed" else {"sequence": [5.0, 6.5]}))
    engine = hand.engine(mlp(), LOSS, blobs(), "fab-top-k", controller)
    for _ in range(2):
        record = engine.step()
        row = dict(record)
        assert {row[name] for name in ("observed", "sign", "loss_before", "loss_after", "loss_probe")} == {None}


# Repetition.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sparsifier", gradsift.sparsifiers())
def test_a_seed_repeats_bit_for_bit_and_another_seed_does_not(sparsifier: str, dtype: torch.dtype) -> None:
    def run(seed: int) -> tuple[list[str], Engine]:
        engine = make(sparsifier, seed=seed, dtype=dtype, clients_per_round=4)
        return [json.dumps(engine.step()) for _ in range(8)], engine

    (one, left), (two, right), (three, other) = run(3), run(3), run(4)
    assert one == two
    assert one != three
    assert left.state.server.weights.dtype == left.state.residual.dtype == dtype
    assert torch.equal(left.state.server.weights, right.state.server.weights)
    assert torch.equal(left.state.residual, right.state.residual)
    assert not torch.equal(left.state.server.weights, other.state.server.weights)


@pytest.mark.parametrize("sparsifier", gradsift.sparsifiers())
def test_single_precision_follows_double_precision(sparsifier: str) -> None:
    single, double = (make(sparsifier, "fixed", dtype=dtype) for dtype in (torch.float32, torch.float64))
    for _ in range(5):
        few, many = single.step(), double.step()
        assert few["train_loss"] == pytest.approx(many["train_loss"], abs=1e-5)
    torch.testing.assert_close(single.state.server.weights.double(), double.state.server.weights, rtol=0, atol=1e-5)


# What cannot go on.


@pytest.mark.parametrize("clients_per_round", [None, 4])
@pytest.mark.parametrize("kind", ["loss", "gradient", "probe"])
def test_a_loss_that_is_not_finite_names_round_and_client(kind: str, clients_per_round: int | None) -> None:
    plain = blobs()
    poisoned: list[bool] = []
    names = tuple(f"site {i}" for i in range(6))
    data = FederatedData(plain.x, plain.y, plain.size, plain.test_x, plain.test_y, "blobs", names)

    class Marking(nn.Module):
        """Marks the outputs of client 2's samples in evaluation or in training, once it is told to."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            if not poisoned or self.training == (kind == "probe"):
                return out
            bad = (x[..., None, :] == plain.x[plain.rows(2)].to(x)).all(dim=-1).any(dim=-1)[..., None]
            if kind == "gradient":  # the slope of the root at zero
                return out + torch.where(bad, torch.where(bad, 0 * out, 1).sqrt(), 0)
            return torch.where(bad, torch.inf, out)

    engine = hand.engine(
        Marking(), LOSS, data, controller=gradsift.controller("sign"), clients_per_round=clients_per_round
    )
    for _ in range(3):
        engine.step()
    while 2 not in participants(6, clients_per_round, 0, engine.state.server.number + 1):
        engine.step()
    number, weights = engine.state.server.number, engine.state.server.weights.clone()
    poisoned.append(True)
    what = {"loss": "loss (nan|inf)", "gradient": "a gradient that is not finite", "probe": "loss (nan|inf)"}[kind]
    with pytest.raises(RunError, match=rf"round {number + 1}: client 2 \(site 2\) has {what}"):
        engine.step()
    if kind == "probe":
        return  # found when the round is read back; the state is void, and nothing of it was returned
    assert engine.state.server.number == number
    assert torch.equal(engine.state.server.weights, weights)


def test_a_step_to_weights_that_are_not_finite_is_not_taken() -> None:
    engine = make("send-all", lr=lambda number: 1e308 if number == 2 else 0.1)
    engine.step()
    before = engine.state.server.weights.clone()
    # The weights themselves overflow, before any loss does.
    engine.state.residual += 1e10
    with pytest.raises(RunError, match="round 2: the step leads to weights that are not finite"):
        engine.step()
    assert torch.equal(engine.state.server.weights, before)
    assert engine.state.server.number == 1


# Records.

NUMBERS = {"cost", "round_cost", "lr", "k", "train_loss", "up_bytes", "down_bytes"}
COUNTS = {"round", "used_k", "steps", "up_elements", "down_elements", "clients", "refused", "resets"}
MAYBE = {
    "probe_k": int,
    "low": float,
    "high": float,
    "c": float,
    "waiting": float,
    "agreement": float,
    "observed": int,
    "sign": int,
    "loss_before": float,
    "loss_after": float,
    "loss_probe": float,
    "probe_elements": int,
    "global_loss": float,
    "accuracy": float,
}


@given(
    sparsifier=st.sampled_from(gradsift.sparsifiers()),
    control=st.sampled_from(["fixed", "sign", "extended-sign", "value", "continuous-bandit", "planned"]),
    clients_per_round=st.one_of(st.none(), st.integers(1, 6)),
    delay=st.integers(0, 1),
    samples=st.integers(1, hand.BATCH),
    chunk=st.one_of(st.none(), st.integers(1, 7)),
    flags=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 2**64 - 1),
)
@examples(40)
def test_every_record_is_complete_and_adds_up(
    sparsifier: str,
    control: str,
    clients_per_round: int | None,
    delay: int,
    samples: int,
    chunk: int | None,
    flags: tuple[bool, bool],
    seed: int,
) -> None:
    dense = gradsift.sparsifier(sparsifier).dense
    charge, fallback = flags
    engine = make(
        sparsifier,
        "fixed" if dense else control,
        clients_per_round=clients_per_round,
        delay=delay,
        probe_samples=samples,
        clients_per_chunk=chunk,
        charge_probe=charge,
        dense_fallback=fallback,
        seed=seed,
    )
    spent = offset = 0.0
    for number in range(1, 5):
        record = engine.step()
        assert json.loads(json.dumps(record, allow_nan=False)) == record
        assert tuple(record) == COLUMNS
        row = dict(record)
        assert row.keys() == NUMBERS | COUNTS | MAYBE.keys() | {"contribution", "client_k"}
        assert all(type(row[name]) is float for name in NUMBERS)
        assert all(type(row[name]) is int for name in COUNTS)
        assert all(row[name] is None or type(row[name]) is kind for name, kind in MAYBE.items())
        assert record["client_k"] is None
        assert (record["steps"], record["refused"], record["resets"]) == (1, 0, 0)
        assert record["round"] == number
        spent += record["round_cost"]
        offset += record["up_elements"]
        assert record["cost"] == spent == engine.state.server.spent
        assert engine.state.server.offset == offset
        present = clients_per_round or 6
        assert record["clients"] == present
        assert sum(count > 0 for count in record["contribution"]) <= present
        assert 1 <= record["used_k"] <= DIM
        assert abs(record["used_k"] - record["k"]) < 1
        assert (record["probe_k"] is None) == (record["probe_elements"] is None)
        if record["probe_k"] is not None:
            assert 1 <= record["probe_k"] < record["used_k"]
        if not dense:
            assert record["down_elements"] <= record["up_elements"] * (
                present if sparsifier == "unidirectional-top-k" else 1
            )
            assert max(record["contribution"]) <= min(record["up_elements"], record["down_elements"])
            assert sum(record["contribution"]) >= record["down_elements"]  # whatever is kept, someone sent

        def size(elements: int) -> int:
            numbers = elements if dense else 2 * elements
            return 4 * (min(numbers, DIM) if fallback and not dense else numbers)

        extra = size(record["probe_elements"] or 0) if charge else 0
        assert record["up_bytes"] == present * size(record["up_elements"])
        assert record["down_bytes"] == 6 * (size(record["down_elements"]) + extra)  # absentees listen too
        assert record["global_loss"] is record["accuracy"] is None  # those are the driver's


def test_train_loss_is_the_share_weighted_loss_of_the_minibatches() -> None:
    engine, data = make(clients_per_round=4), blobs()
    for number in range(1, 4):
        weights = engine.state.server.weights.clone()
        record = engine.step()
        present = participants(6, 4, 0, number)
        losses = np.array([loss_of(weights, *hand.batch(data, int(i), number)) for i in present])
        share = data.share[present] / data.share[present].sum()
        assert record["train_loss"] == pytest.approx(float(share @ losses), abs=1e-12)


def test_the_cost_model_sees_the_slowest_present_client() -> None:
    slow = [1.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0]
    engine = make("send-all", clients_per_round=3, cost=LinkTime(up_bandwidth=slow, down_bandwidth=1e9))
    for number in range(1, 9):
        present = participants(6, 3, 0, number)
        record = engine.step()
        assert record["round_cost"] == pytest.approx(4 * DIM / (1.0 if 0 in present else 1000.0), rel=1e-5)


# Settings.


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be an integer"),
        ({"seed": -1}, "seed must be in"),
        ({"delay": 2}, "delay must be in [0, 1], got 2"),
        ({"probe_samples": 9, "batch_size": 8}, "probe_samples must be in [1, 8], got 9"),
        ({"clients_per_round": 0}, "clients_per_round must be at least 1, got 0"),
        ({"clients_per_chunk": 0}, "clients_per_chunk must be at least 1, got 0"),
        ({"eval_every": 0}, "eval_every must be at least 1, got 0"),
        ({"eval_batch": 0}, "eval_batch must be at least 1, got 0"),
        ({"buffers": "mean"}, "buffers must be 'refuse' or 'average', got 'mean'"),
        ({"charge_probe": "yes"}, "charge_probe must be True or False, got 'yes'"),
        ({"dense_fallback": 1}, "dense_fallback must be True or False, got 1"),
        ({"encoded_bytes": 0}, "encoded_bytes must be True or False, got 0"),
    ],
)
def test_impossible_settings_are_refused(bad: dict[str, Any], named: str) -> None:
    of_a_method = {"seed", "charge_probe", "dense_fallback", "encoded_bytes"}
    with pytest.raises(GradsiftError) as caught:
        Method.of(**bad) if bad.keys() <= of_a_method else Settings(**bad)
    assert named in str(caught.value)


def test_the_first_batches_of_a_dropout_model_do_not_depend_on_who_asks_first() -> None:
    """The generator that dropout draws from is set anew for every round: an evaluation between two changes nothing."""
    model = models.seeded(lambda: nn.Sequential(nn.Linear(5, 20), nn.Dropout(0.5), nn.Linear(20, 3)))
    one, other = (hand.engine(model, LOSS, blobs()) for _ in range(2))
    for _ in range(3):
        one.evaluate()
        torch.rand(3)
        assert one.step() == other.step()
    assert torch.equal(one.state.residual, other.state.residual)
