"""Rounds that are finished late, while the next one's gradients run: nothing but the moment differs."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import gradsift
from benchmarks.device_check import Asks
from gradsift import FederatedData, GradsiftError, RunError, sparse
from gradsift.local import LocalSteps
from gradsift.records.folder import read_records
from gradsift.simulation.engine import Engine
from gradsift.simulation.flat import FlatModel
from gradsift.simulation.state import Readings
from tests.examples import examples
from tests.simulation import hand
from tests.simulation.problems import blobs, mlp
from tests.simulation.ways import going

pytestmark = pytest.mark.slow  # many runs

ROUNDS = 9
DIM = 57
LOSS = nn.CrossEntropyLoss()
WAYS = ("plain", "queued", "streamed", "queued, streamed")
CONTROLLERS: dict[str, dict[str, Any]] = {
    "fixed": {"k": 7},
    "replay": {"sequence": [1 + (5 * m) % DIM for m in range(ROUNDS)]},
    "extended-sign": {"window": 2},
    "exp3": {"grid": "log", "arms": 5},
    "planned": {},
}
PAIRS = [
    pytest.param(name, control, id=f"{name}-{control}")
    for name, control in itertools.product(gradsift.sparsifiers(), CONTROLLERS)
    if not (gradsift.sparsifier(name).dense and control != "fixed")
]


def made(sparsifier: str, control: str, **options: Any) -> Engine:
    controller = gradsift.controller(control, **CONTROLLERS[control])
    return hand.engine(mlp(), LOSS, blobs(), sparsifier, controller, **options)


def assert_same_state(one: Engine, other: Engine) -> None:
    left, right = one.state, other.state
    for name in ("number", "steps", "control", "spent", "offset"):
        assert getattr(left.server, name) == getattr(right.server, name)
    assert torch.equal(left.server.weights, right.server.weights)
    assert torch.equal(left.residual, right.residual)
    assert (left.pending is None) == (right.pending is None)


@pytest.mark.parametrize(("sparsifier", "control"), PAIRS)
@pytest.mark.parametrize("way", WAYS)
@examples(3)
@given(
    waits=st.lists(st.booleans(), min_size=ROUNDS, max_size=ROUNDS),
    options=st.fixed_dictionaries(
        {"delay": st.sampled_from([0, 1]), "clients_per_round": st.sampled_from([None, 4]), "seed": st.integers(0, 99)}
    ),
)
def test_it_is_the_same_whichever_rounds_are_waited_for(
    way: str, sparsifier: str, control: str, waits: list[bool], options: dict[str, Any]
) -> None:
    with going(way):
        one, other = (made(sparsifier, control, clients_per_chunk=2, **options) for _ in range(2))
        want = [one.step() for _ in range(ROUNDS)]
        got: list[Any] = []
        for wait in waits:
            got.append(other.begin())
            if wait:
                got.append(other.finish())
                assert_state_is_that_of_its_records(other, got)
        if not waits[-1]:
            got.append(other.finish())
        assert [record for record in got if record is not None] == want
        assert_same_state(one, other)
        with pytest.raises(RunError, match="no round was begun"):
            other.finish()


def assert_state_is_that_of_its_records(engine: Engine, got: list[Any]) -> None:
    """What a checkpoint would hold now."""
    assert engine.state.server.number == got[-1]["round"]
    assert engine.state.server.spent == got[-1]["cost"]


@pytest.mark.parametrize("settings", [{"charge_probe": True}, {"delay": 1, "probe_samples": 3}], ids=str)
def test_probes_of_rounds_that_nobody_waits_for_are_the_same(settings: dict[str, Any]) -> None:
    one, other = (made("fab-top-k", "extended-sign", **settings) for _ in range(2))
    want = [one.step() for _ in range(ROUNDS)]
    assert [*[other.begin() for _ in range(ROUNDS)][1:], other.finish()] == want
    assert_same_state(one, other)


# When the host waits.


def moments(engine: Engine, rounds: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """When gradients are queued and when a round is read, in order."""
    seen: list[str] = []
    add_gradients, read = FlatModel.add_gradients, Readings.read

    def adding(flat: FlatModel, *arguments: Any) -> Any:
        if engine.flat is flat:
            seen.append(f"gradients {engine.state.server.number + 1}")
        return add_gradients(flat, *arguments)

    def reading(readings: Readings) -> Any:
        seen.append("read")
        return read(readings)

    monkeypatch.setattr(FlatModel, "add_gradients", adding)
    monkeypatch.setattr(Readings, "read", reading)
    for _ in range(rounds):
        engine.begin()
    return seen


AFTER = ["gradients 1", "gradients 2", "read", "gradients 3", "read"]
BEFORE = ["gradients 1", "read", "gradients 2", "read", "gradients 3"]


@pytest.mark.parametrize(
    ("sparsifier", "control", "way", "order"),
    [
        ("fab-top-k", "fixed", "plain", AFTER),
        ("fab-top-k", "extended-sign", "plain", AFTER),
        ("fedavg", "fixed", "plain", AFTER),
        ("fedavg", "fixed", "queued", AFTER),
        ("fedavg", "fixed", "streamed", AFTER),
        ("fab-top-k", "replay", "streamed", AFTER),
        ("fab-top-k", "extended-sign", "streamed", BEFORE),
        ("fab-top-k", "planned", "plain", AFTER),
        ("fab-top-k", "planned", "streamed", BEFORE),
        ("local steps", "replay", "plain", AFTER),
        ("local steps", "exp3", "plain", BEFORE),
    ],
)
def test_gradients_wait_for_a_reading_only_where_they_need_the_plan(
    sparsifier: str, control: str, way: str, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalSteps(1) if sparsifier == "local steps" else None
    with going(way):
        engine = made("fab-top-k" if local else sparsifier, control, local=local)
        assert moments(engine, 3, monkeypatch) == order


@pytest.mark.parametrize("control", ["extended-sign", "planned"])
def test_the_first_round_of_a_late_observation_has_nothing_to_wait_for(
    control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With delay 1 the first round answers none, so the second may start; the third needs what the second observed."""
    with going("streamed"):
        seen = moments(made("fab-top-k", control, delay=1), 3, monkeypatch)
    assert seen == ["gradients 1", "gradients 2", "read", "read", "gradients 3"]


@pytest.mark.parametrize(
    ("sparsifier", "control"),
    [
        *itertools.product(["fab-top-k", "fub-top-k"], ["fixed", "extended-sign", "planned"]),
        *itertools.product(["fedavg", "send-all", "periodic-k"], ["fixed"]),
    ],
)
@pytest.mark.parametrize("clients_per_round", [None, 4], ids=["all", "some"])
def test_a_round_is_queued_without_a_question(
    sparsifier: str, control: str, clients_per_round: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of them: a whole period of FedAvg."""
    monkeypatch.setattr(sparse, "_takes_lowest_first", lambda _: True)  # as a CUDA device does
    with going("queued"):
        engine = made(sparsifier, control, clients_per_round=clients_per_round)
        asked: list[int] = []
        for _ in range(4):
            with Asks(lambda: asked.append(1)):
                engine.begin()
            assert asked == []
            engine.finish()


# Rounds that fail.


class Trap(nn.Module):
    """A perceptron whose outputs, or whose gradients, are not finite for one sample; or that refuses to go on."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.inner = mlp()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        if self.kind == "refuses" and not bool(out.isfinite().all()):
            raise ValueError("these are no numbers")
        if not self.training or self.kind not in ("loss", "gradient"):
            return out
        bad = x[..., :1] > 50
        if self.kind == "gradient":  # the slope of the root at zero
            return out + torch.where(bad, torch.where(bad, 0 * out, 1).sqrt(), 0)
        return torch.where(bad, torch.inf, out)


def trapped() -> FederatedData:
    """The last training sample of client 3 is the one."""
    data = blobs()
    data.x[data.rows(3)][-1, 0] = 100.0
    return data


def steep(number: int) -> float:
    """Steps too far from the fifth round on, the first of FedAvg's second period."""
    return 1e308 if number >= 5 else 0.1


def outcome(out: Path, kind: str, sparsifier: str, checkpoint_every: int) -> tuple[str, list[Any], list[Any]]:
    """The error, and the records that were handed over and written."""
    seen: list[Any] = []
    control = "fixed" if gradsift.sparsifier(sparsifier).dense else "replay"
    with pytest.raises((RunError, GradsiftError)) as raised:
        gradsift.simulate(
            Trap(kind),
            LOSS,
            trapped(),
            sparsifier=sparsifier,
            controller=gradsift.controller(control, **CONTROLLERS[control]),
            rounds=40,
            lr=0.1 if kind in ("loss", "gradient", "end") else steep,
            batch_size=8,
            dtype=torch.float64,
            out=out,
            eval_every=100,
            checkpoint_every=checkpoint_every,
            on_round=seen.append,
        )
    return str(raised.value), seen, read_records(out)


@pytest.mark.filterwarnings("ignore:Trap cannot be batched over clients")
@pytest.mark.parametrize(
    ("sparsifier", "kind"),
    [
        pytest.param(name, kind, id=f"{name}-{kind}")
        for name, kind in itertools.product(gradsift.sparsifiers(), ("loss", "gradient", "weights", "refuses", "end"))
        if not (gradsift.sparsifier(name).dense and kind == "end")  # no sequence to come to the end of
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_fails_names_the_same_round_whether_it_waited_or_not(
    way: str, sparsifier: str, kind: str, tmp_path: Path
) -> None:
    """A checkpoint a round makes it wait for every round; none makes it wait for none but the first."""
    with going(way):
        waited = outcome(tmp_path / "waited", kind, sparsifier, 1)
        did_not = outcome(tmp_path / "did not", kind, sparsifier, 100)
    assert waited == did_not
    error, seen, written = waited
    assert seen == written
    assert len(seen) > 3
    assert [record["round"] for record in seen] == list(range(1, len(seen) + 1))
    assert f"round {len(seen) + 1}" in error


@pytest.mark.parametrize(("first", "told"), [(KeyboardInterrupt, KeyboardInterrupt), (ValueError, RunError)])
def test_ctrl_c_is_told_before_what_was_wrong_with_the_round_before(
    first: type[BaseException], told: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(_: Engine) -> None:
        raise first

    def salvage(_: Engine) -> None:
        raise RunError("round 1: not finite")

    monkeypatch.setattr(Engine, "begin", begin)
    monkeypatch.setattr(Engine, "salvage", salvage)
    with pytest.raises(told, match="round 1: not finite" if told is RunError else None):
        gradsift.simulate(mlp(), LOSS, blobs(), rounds=3, batch_size=8)
