"""``gradsift.simulate`` from its arguments to its result and its folder, in one process."""

import functools
import json
import math
import os
import re
import signal
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import Tensor, nn

import gradsift
from gradsift import Cosine, FederatedData, GradsiftError, NormalizedTime, Result, RunError, StepDecay
from gradsift.records import files
from gradsift.records.folder import read_config, read_records
from gradsift.simulation import memory
from tests.simulation import models
from tests.simulation.problems import blobs, mlp

LOSS = nn.CrossEntropyLoss()


def run(
    out: Path | None = None, *, model: nn.Module | None = None, loss: Any = LOSS, data: Any = None, **options: Any
) -> Result:
    chosen = {"rounds": 8, "batch_size": 8, "lr": 0.1, "checkpoint_every": 3, "eval_every": 3} | options
    return gradsift.simulate(model or mlp(), loss, blobs() if data is None else data, out=out, **chosen)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder except the lock, byte by byte."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != ".lock"
    }


def arrays(file: Path) -> dict[str, Any]:
    """The arrays of a checkpoint, without the identity of its run."""
    with np.load(file) as members:
        found = {name: members[name] for name in members.files}
    about = json.loads(found.pop("about").tobytes())
    assert about.pop("run")
    return {**found, "about": about}


def assert_same_end(one: Path, other: Path) -> None:
    """The last checkpoints of two runs hold the same bits, and so do their records."""
    assert (one / "records.jsonl").read_bytes() == (other / "records.jsonl").read_bytes()
    last, twin = (max(folder.glob("checkpoint-*.npz")) for folder in (one, other))
    assert last.name == twin.name
    left, right = arrays(last), arrays(twin)
    assert left.keys() == right.keys()
    assert left.pop("about") == right.pop("about")
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert left[name].tobytes() == right[name].tobytes(), name


# When it stops.


def test_it_stops_after_its_rounds() -> None:
    result = run(rounds=7)
    assert result.stopped == "rounds"
    assert [record["round"] for record in result.records] == list(range(1, 8))


def test_it_stops_when_the_budget_is_spent() -> None:
    whole = run(rounds=8)
    costs = [record["cost"] for record in whole.records]
    for budget in (costs[3], costs[3] - 1e-9, costs[3] + 1e-9):
        result = run(cost_budget=budget)
        assert result.stopped == "cost budget"
        assert len(result.records) == (4 if budget <= costs[3] else 5)
        assert result.records[-1]["global_loss"] is not None


@pytest.mark.parametrize("kind", ["loss", "accuracy"])
def test_it_stops_when_an_evaluation_reaches_the_target(kind: str) -> None:
    options: dict[str, Any] = {"rounds": 60, "lr": 0.5, "eval_every": 4}
    name = "global_loss" if kind == "loss" else "accuracy"
    rows = [dict(record) for record in run(**options).records]
    seen: dict[Any, Any] = {row["round"]: row[name] for row in rows if row[name] is not None}
    target = seen[32]

    def reached(value: float) -> bool:
        return bool(value <= target if kind == "loss" else value >= target)

    first = min(number for number, value in seen.items() if reached(value))
    result = run(**options, **{f"target_{kind}": target})
    assert result.stopped == f"target {kind}"
    assert len(result.records) == first > 1


def test_whichever_comes_first() -> None:
    assert run(rounds=2, cost_budget=1e9, target_loss=-1.0, target_accuracy=1.0).stopped == "rounds"
    assert run(rounds=2, cost_budget=0.0).stopped == "cost budget"
    assert run(rounds=1, cost_budget=0.0, target_loss=1e9).stopped == "target loss"


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"rounds": 0}, r"rounds must be at least 1, got 0"),
        ({"rounds": 2.5}, "rounds must be an integer"),
        ({"cost_budget": -1.0}, "cost_budget must be at least"),
        ({"target_loss": math.nan}, "target_loss must be a finite number, got nan"),
        ({"target_accuracy": 95}, r"target_accuracy must be in \[0\.0, 1\.0\], got 95"),
        ({"checkpoint_every": 0}, r"checkpoint_every must be at least 1, got 0"),
    ],
)
def test_impossible_stops_are_refused(bad: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(GradsiftError, match=named):
        run(tmp_path / "run", **bad)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("every", [1, 4, 100])
def test_evaluations_keep_their_cadence(every: int) -> None:
    result = run(rounds=10, eval_every=every)
    evaluated = [record["round"] for record in result.records if record["global_loss"] is not None]
    assert evaluated == sorted({1, 10, *range(every, 11, every)})
    assert [record["round"] for record in result.records if record["accuracy"] is not None] == evaluated
    # Off the round's clock, and without a trace in the training.
    plain = run(rounds=10, eval_every=7)
    assert torch.equal(plain.weights, result.weights)
    assert plain.records[-1]["cost"] == result.records[-1]["cost"]


# What it returns, and the folder.


def test_the_result_holds_everything(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    result = run(tmp_path / "run", on_round=seen.append, extra_config={"note": [1, "two"]})
    assert seen == result.records == read_records(tmp_path / "run")
    assert result.folder == tmp_path / "run"
    assert result.config == read_config(tmp_path / "run")
    assert result.config["note"] == [1, "two"]
    frame = result.frame()
    assert frame["round"].tolist() == list(range(1, 9))
    assert list(frame.columns) == list(result.records[0])
    assert run().folder is None


def test_the_same_run_with_and_without_a_folder(tmp_path: Path) -> None:
    kept, plain = run(tmp_path / "run"), run()
    assert kept.records == plain.records
    assert torch.equal(kept.weights, plain.weights)


def test_the_folder_holds_config_records_and_two_checkpoints(tmp_path: Path) -> None:
    run(tmp_path / "run", seed=5, lr=Cosine(0.1, rounds=8), cost_budget=1e6)
    assert set(contents(tmp_path / "run")) == {
        "config.json",
        "records.jsonl",
        "checkpoint-00000006.npz",
        "checkpoint-00000008.npz",
    }
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"]["seed"] == 5
    assert config["settings"]["batch_size"] == 8
    assert config["stop"] == {"rounds": 8, "cost_budget": 1e6, "target_loss": None, "target_accuracy": None}
    assert config["sparsifier"] == {"name": "fab-top-k"}
    assert config["controller"] == {"name": "planned", "k_min": None, "k_max": None, "guess": 1.0}
    assert config["cost"] == {"class": "NormalizedTime", "comm_time": 10, "comp_time": 1.0}
    assert config["lr"] == {"class": "Cosine", "lr": 0.1, "rounds": 8, "last": 0.0}
    assert config["model"]["dim"] == 57
    assert config["data"]["clients"] == 6
    assert (config["device"], config["dtype"]) == ("cpu", "float32")
    assert config["versions"]["torch"] == torch.__version__
    assert config["versions"]["gradsift"] == gradsift.__version__
    with torch.no_grad():
        start = float(LOSS(mlp()(blobs().x.float()), blobs().y))
    assert config["start"]["global_loss"] == pytest.approx(start, abs=1e-6)


@pytest.mark.parametrize("every", [3, 150])
def test_pandas_and_polars_read_the_records_as_they_are(tmp_path: Path, every: int) -> None:
    rounds = 8 if every == 3 else 160  # a column that is empty in the first hundred lines misleads a reader
    result = run(tmp_path / "run", rounds=rounds, eval_every=every, controller="extended-sign")
    file = tmp_path / "run" / "records.jsonl"
    by_pandas, by_polars = pd.read_json(file, lines=True), pl.read_ndjson(file)
    assert list(by_pandas.columns) == by_polars.columns == list(result.records[0])
    assert by_pandas["contribution"].tolist() == by_polars["contribution"].to_list()
    for name in ("round", "cost", "k", "used_k", "probe_k", "sign", "global_loss", "accuracy", "up_bytes"):
        written = [record[name] for record in result.records]
        assert by_polars[name].to_list() == written
        numbers = np.array([math.nan if value is None else value for value in written])
        np.testing.assert_allclose(by_pandas[name].to_numpy(), numbers, rtol=1e-9)  # NaN where nothing is


def test_a_run_in_a_thread_is_no_trouble(tmp_path: Path) -> None:
    done: list[Result] = []
    worker = threading.Thread(target=lambda: done.append(run(tmp_path / "run")))
    worker.start()
    worker.join()
    assert done[0].records == run().records


def test_on_round_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    cut = run(tmp_path / "run", rounds=9, checkpoint_every=100, on_round=lambda record: record["round"] == 3)
    assert cut.stopped == "interrupted"
    assert len(cut.records) in (3, 4)  # a round is told of while the next one runs
    assert (tmp_path / "run" / f"checkpoint-{len(cut.records):08d}.npz").exists()
    whole = run(tmp_path / "run", rounds=9, checkpoint_every=100, resume=True)
    assert [record["train_loss"] for record in whole.records] == [
        record["train_loss"] for record in run(rounds=9).records
    ]


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_the_signal_handler_is_put_back(kind: signal.Signals) -> None:
    def mine(number: int, frame: types.FrameType | None) -> None:
        raise AssertionError(number, frame)

    before = signal.signal(kind, mine)
    try:
        run(rounds=1, on_round=lambda _: _assert(signal.getsignal(kind) is not mine))
        assert signal.getsignal(kind) is mine
        signal.signal(kind, signal.SIG_IGN)  # as the shell starts a job in the background
        run(rounds=1, on_round=lambda _: _assert(signal.getsignal(kind) == signal.SIG_IGN))
    finally:
        signal.signal(kind, before)


def _assert(true: bool) -> None:
    assert true


# Resume.

KINDS: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "planned, delay": {"delay": 1},
    "planned, some clients, delay": {"sparsifier": "fub-top-k", "clients_per_round": 3, "delay": 1, "values": "int8"},
    "extended sign": {"controller": "extended-sign"},
    "fub, value, delay": {"sparsifier": "fub-top-k", "controller": "value", "delay": 1},
    "unidirectional, sign, some clients": {
        "sparsifier": "unidirectional-top-k",
        "controller": "sign",
        "clients_per_round": 3,
    },
    "periodic, exp3": {
        "sparsifier": "periodic-k",
        "controller": gradsift.controller("exp3", grid="log", arms=5),
        "delay": 1,
    },
    "fedavg": {
        "sparsifier": "fedavg",
        "controller": gradsift.controller("fixed", k=7),
        "clients_per_round": 3,
        "lr": StepDecay(0.1, factor=0.5, every=3),
    },
    "send-all, double": {
        "sparsifier": "send-all",
        "controller": gradsift.controller("fixed", k=1),
        "dtype": torch.float64,
    },
    "BatchNorm": {"model": models.seeded(models.normed), "buffers": "average"},
    "BatchNorm in FedAvg": {
        "model": models.seeded(models.normed),
        "buffers": "average",
        "sparsifier": "fedavg",
        "controller": gradsift.controller("fixed", k=8),
        "clients_per_round": 4,
    },
    "dropout": {"model": models.seeded(lambda: nn.Sequential(nn.Linear(5, 9), nn.Dropout(), nn.Linear(9, 3)))},
    "dropout, one by one": {"model": models.seeded(lambda: models.Branching(0.5)), "clients_per_chunk": 2},
    "a schedule of one's own": {"lr": lambda number: 0.1 / number},
    "bandit": {"controller": "continuous-bandit"},
}


@pytest.mark.filterwarnings("ignore:Branching cannot be batched over clients")
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_same_run(kind: str, tmp_path: Path) -> None:
    options = {**KINDS[kind], "eval_every": 1}
    run(tmp_path / "whole", rounds=11, **options)
    run(tmp_path / "parts", rounds=3, **options)
    run(tmp_path / "parts", rounds=4, **options, resume=True)
    result = run(tmp_path / "parts", rounds=11, **options, resume=True)
    assert len(result.records) == 11
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_a_resumed_run_keeps_its_chunks_where_another_device_has_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout draws by chunks: with others it would be another run."""
    dropping = models.seeded(lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 3)))
    run(tmp_path / "whole", model=dropping, rounds=9, eval_every=1)
    run(tmp_path / "parts", model=dropping, rounds=4, eval_every=1)
    monkeypatch.setattr(memory, "chunk_bytes", lambda _: 1)
    small = run(tmp_path / "small", model=dropping, rounds=9, eval_every=1)
    result = run(tmp_path / "parts", model=dropping, rounds=9, eval_every=1, resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
    assert not torch.equal(small.weights, result.weights)
    with pytest.raises(GradsiftError, match=r"settings\.clients_per_chunk was \d+, not 1"):
        run(tmp_path / "parts", model=dropping, rounds=12, eval_every=1, clients_per_chunk=1, resume=True)


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    first = run(tmp_path / "run")
    before = contents(tmp_path / "run")
    for options in ({}, {"rounds": 5}, {"cost_budget": 0.0, "rounds": 99}, {"target_loss": 1e9, "rounds": 99}):
        again = run(tmp_path / "run", **options, resume=True)
        assert again.records == first.records
        assert torch.equal(again.weights, first.weights)
        assert contents(tmp_path / "run") == before
    assert again.stopped == "target loss"


def test_more_rounds_go_on(tmp_path: Path) -> None:
    run(tmp_path / "run")
    result = run(tmp_path / "run", rounds=20, resume=True)
    assert torch.equal(result.weights, run(rounds=20).weights)
    assert [record["round"] for record in result.records] == list(range(1, 21))


def test_weights_come_from_the_checkpoint_not_from_the_module(tmp_path: Path) -> None:
    """Who does not seed a model's initial weights can resume all the same."""
    run(tmp_path / "run", rounds=5)
    result = run(tmp_path / "run", model=mlp(seed=99), rounds=9, resume=True)
    assert torch.equal(result.weights, run(rounds=9).weights)


def other_data() -> FederatedData:
    data = blobs()
    x = data.x.clone()
    x[17, 2] += 1e-6
    return FederatedData(x, data.y, data.size, data.test_x, data.test_y, data.name, data.client_names)


def other_constants() -> nn.Module:
    model = mlp()
    assert isinstance(model[0], nn.Linear)  # type: ignore[index]
    model.register_buffer("scale", torch.tensor(2.0))
    return model


CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 1}, r"settings\.seed was 0, not 1"),
    "batch size": ({"batch_size": 9}, r"settings\.batch_size was 8, not 9"),
    "clients": ({"clients_per_round": 2}, r"settings\.clients_per_round was None, not 2"),
    "sparsifier": ({"sparsifier": "fub-top-k"}, r"sparsifier\.name was 'fab-top-k', not 'fub-top-k'"),
    "controller": ({"controller": "sign"}, r"controller\.name was 'planned', not 'sign'"),
    "an option of the controller": (
        {"controller": gradsift.controller("planned", guess=2.0)},
        r"controller\.guess was 1\.0, not 2\.0",
    ),
    "cost": ({"cost": NormalizedTime(comm_time=1)}, r"cost\.comm_time was 10, not 1"),
    "step size": ({"lr": 0.2}, r"lr\.lr was 0\.1, not 0\.2"),
    "schedule": ({"lr": Cosine(0.1, rounds=9)}, r"lr\.class was 'Constant', not 'Cosine'"),
    "type": ({"dtype": torch.float64}, "dtype was 'float32', not 'float64'"),
    "width": ({"model": mlp(hidden=7)}, r"model\.dim was 57, not 66"),
    "layers": ({"model": nn.Sequential(*mlp().children(), nn.Tanh())}, r"model\.text was .*Tanh"),
    "constants": ({"model": other_constants()}, r"model\.constants was "),
    "data": ({"data": other_data()}, r"data\.checksum was "),
    "loss": ({"loss": nn.functional.cross_entropy}, r"loss\.class was "),
    "an option of the loss": (
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
        r"loss\.label_smoothing was 0\.0, not 0\.1",
    ),
    "weights of the loss": ({"loss": nn.CrossEntropyLoss(weight=torch.ones(3))}, r"loss\.constants was "),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_another_run_is_not_resumed_and_the_difference_is_named(kind: str, tmp_path: Path) -> None:
    run(tmp_path / "run", rounds=3)
    before = contents(tmp_path / "run")
    options, named = CHANGED[kind]
    with pytest.raises(GradsiftError, match=rf"run is another run: .*{named}"):
        run(tmp_path / "run", **options, resume=True)
    assert contents(tmp_path / "run") == before
    run(tmp_path / "run", resume=True)  # the lock was let go


def test_a_run_of_an_older_version_is_refused_as_that(tmp_path: Path) -> None:
    """Before methods had five slots, configurations had no local computation, and checkpoints another form."""
    run(tmp_path / "run", rounds=3)
    config = json.loads((tmp_path / "run/config.json").read_text())
    del config["local"], config["values"]
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    before = contents(tmp_path / "run")
    with pytest.raises(GradsiftError, match="run was made by an older gradsift, which can resume it"):
        run(tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


def test_frozen_weights_and_modes_are_part_of_the_run(tmp_path: Path) -> None:
    run(tmp_path / "run", model=models.seeded(models.resting_norm), rounds=3)
    moved = models.seeded(models.resting_norm)
    dict(moved.named_buffers())["1.running_mean"] += 1
    with pytest.raises(GradsiftError, match=r"model\.constants"):
        run(tmp_path / "run", model=moved, resume=True)
    frozen = models.seeded(models.resting_norm)
    next(frozen.parameters()).requires_grad_(False)
    with pytest.raises(GradsiftError, match=r"model\.dim"):
        run(tmp_path / "run", model=frozen, resume=True)
    awake = models.seeded(models.resting_norm).train()
    with pytest.raises(GradsiftError, match=r"model\.parameters"):
        run(tmp_path / "run", model=awake, buffers="average", resume=True)


def test_the_same_function_is_the_same_in_another_process(tmp_path: Path) -> None:
    """Addresses in memory are no part of a configuration."""

    def schedule(scale: float) -> Any:
        return functools.partial(lambda base, number: base / number, scale)

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return LOSS(outputs, y)  # type: ignore[no-any-return]

    run(tmp_path / "run", rounds=3, lr=schedule(0.5), loss=functools.partial(loss))
    assert "0x" not in (tmp_path / "run" / "config.json").read_text()
    run(tmp_path / "run", lr=schedule(0.5), loss=functools.partial(loss), resume=True)


def test_numbers_of_other_kinds_are_numbers(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "batch_size": np.int64(8),
        "seed": np.uint8(0),
        "lr": np.float64(0.1),
        "controller": gradsift.controller("fixed", k=np.int64(5)),
        "cost": gradsift.LinkTime(up_bandwidth=np.full(6, 100.0), down_bandwidth=[np.float32(7)] * 6),  # type: ignore[arg-type, list-item]
        "cost_budget": np.float64(1e9),
    }
    run(tmp_path / "run", rounds=np.int64(3), **options)
    result = run(tmp_path / "run", **options, resume=True)
    assert len(result.records) == 8


def test_extra_configuration_may_change_and_must_be_json(tmp_path: Path) -> None:
    run(tmp_path / "run", rounds=3, extra_config={"command": {"rounds": 3}})
    assert run(tmp_path / "run", extra_config={"command": {"rounds": 8}}, resume=True).stopped == "rounds"
    with pytest.raises(GradsiftError, match="not JSON"):
        run(tmp_path / "other", extra_config={"thing": object()})
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_resuming_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GradsiftError, match="resume=True needs out="):
        run(resume=True)
    with pytest.raises(GradsiftError, match="nowhere is not a run folder"):
        run(tmp_path / "nowhere", resume=True)
    (tmp_path / "stranger").mkdir()
    for text in ("", "[]", "{}", "{"):
        (tmp_path / "stranger" / "config.json").write_text(text)
        with pytest.raises(GradsiftError, match=r"stranger is not a run folder: config\.json"):
            run(tmp_path / "stranger", resume=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["stranger"]
    assert [entry.name for entry in (tmp_path / "stranger").iterdir()] == ["config.json"]


@pytest.mark.parametrize("kind", ["run", "folder", "file", "dangling link"])
def test_a_place_that_is_taken_is_refused(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "here"
    if kind == "run":
        run(place, rounds=2)
    elif kind == "folder":
        place.mkdir()
    elif kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(tmp_path / "gone")
    before = contents(tmp_path)
    said = ": resume it, or" if kind == "run" else " and is not a run:"
    with pytest.raises(GradsiftError, match=f"here exists already{said} choose another folder"):
        run(place)
    assert contents(tmp_path) == before
    assert os.path.lexists(place)
    assert not (tmp_path / "gone").exists()


def test_a_place_in_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    place = tmp_path / "file" / "x" / "run"
    with pytest.raises(GradsiftError, match=f"out must be a folder, got '{place}': '{tmp_path / 'file'}' is not one"):
        run(place)
    assert contents(tmp_path) == {"file": b"mine"}


def test_missing_parents_are_made(tmp_path: Path) -> None:
    run(tmp_path / "a" / "b" / "run", rounds=1)
    assert (tmp_path / "a" / "b" / "run" / "records.jsonl").exists()


# Bad input: a clear message, and nothing written.


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


def own_loss(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, y)


def late_label() -> FederatedData:
    """A label that no trial batch would meet: it is the last client's last."""
    data = blobs()
    y = data.y.clone()
    y[-1] = 3
    return FederatedData(data.x, y, data.size, data.test_x, data.test_y)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "labels outside the classes": ({"model": mlp(classes=2)}, "label 2 is outside the model's 2 classes"),
    "a label outside the classes that comes late": (
        {"data": late_label()},
        "label 3 is outside the model's 3 classes",
    ),
    "a label outside the classes that comes late, a loss of one's own": (
        {"data": late_label(), "loss": own_loss},
        "the model or its loss fails on the data: Target 3 is out of bounds",
    ),
    "forward fails": ({"model": Failing()}, r"forward pass failed on a batch of shape \[8, 5\]: .*4x3"),
    "loss fails": ({"loss": nn.MSELoss()}, "the loss failed on the model's outputs"),
    "loss is no scalar": (
        {"loss": nn.CrossEntropyLoss(reduction="none")},
        r"the loss must be one number, the mean over the batch, got \[8\]",
    ),
    "loss is no tensor": ({"loss": lambda *_: 3.0}, "the loss must be one number.*got 3.0"),
    "loss is NaN": ({"loss": lambda *both: both[0].mean() * math.nan}, "loss over all training data is nan"),
    "too many clients": ({"clients_per_round": 7}, "clients_per_round is 7, but there are 6 clients"),
    "unknown setting": ({"batchsize": 8}, "unknown setting 'batchsize'; did you mean 'batch_size'?"),
    "unknown sparsifier": ({"sparsifier": "fab-topk"}, "unknown sparsifier 'fab-topk'; did you mean 'fab-top-k'?"),
    "unknown controller": ({"controller": "sing"}, "unknown controller 'sing'; did you mean 'sign'?"),
    "a pair that does not go": ({"sparsifier": "send-all"}, "'send-all' is dense.*'planned'"),
    "k too large": ({"controller": gradsift.controller("fixed", k=58)}, r"k must be in \[1, 57\], got 58"),
    "no accuracy to reach": (
        {"target_accuracy": 0.5, "model": models.Several("tuple"), "loss": models.several_loss},
        "target_accuracy is 0.5, but there are no class labels to test",
    ),
    "step size": ({"lr": -0.1}, "lr must be positive, got -0.1"),
    "step size of another kind": ({"lr": "0.1"}, "lr must be a number or a function of the round, got '0.1'"),
    "type": ({"dtype": torch.float16}, "dtype must be torch.float32 or torch.float64, got torch.float16"),
    "not data": ({"data": [(1, 2)]}, r"simulate takes .*gradsift\.FederatedData\), got \(Sequential, .*, list\)"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_refused_and_nothing_is_written(kind: str, tmp_path: Path) -> None:
    options, named = BAD[kind]
    with pytest.raises(GradsiftError, match=named):
        run(tmp_path / "deep" / "run", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_client_without_samples_is_refused() -> None:
    data = blobs()
    with pytest.raises(GradsiftError, match=r"client 6 \(empty\) of 'data' has no training samples"):
        FederatedData(
            data.x, data.y, np.array([*data.size, 0]), data.test_x, data.test_y, client_names=(*"abcdef", "empty")
        )


# What goes wrong on the way.


def test_a_run_that_diverges_stops_and_keeps_its_last_good_checkpoint(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "sparsifier": "send-all",
        "controller": gradsift.controller("fixed", k=1),
        "lr": lambda number: 0.1 if number < 6 else 1e30,
        "loss": lambda outputs, y: own_loss(outputs, y) + outputs.pow(4).mean(),
        "checkpoint_every": 2,
    }
    with pytest.raises(RunError, match=r"round [678]: (client \d has|the step leads)"):
        run(tmp_path / "run", rounds=20, **options)
    last = max((tmp_path / "run").glob("checkpoint-*.npz"))
    kept = arrays(last)
    assert all(np.isfinite(kept[name]).all() for name in ("weights", "residual"))
    assert kept["about"]["number"] in (4, 6)
    # It can be opened again, and stops again where it did.
    with pytest.raises(RunError, match=r"round [678]"):
        run(tmp_path / "run", rounds=20, **options, resume=True)
    good = run(tmp_path / "run", rounds=kept["about"]["number"], **options, resume=True)
    assert good.weights.isfinite().all()


def test_a_global_loss_that_is_not_finite_names_round_and_client(tmp_path: Path) -> None:
    """The minibatches are fine, another sample of one client is not."""
    data = blobs()
    poisoned: list[bool] = []

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        value = nn.functional.cross_entropy(outputs, y)
        return value * math.inf if poisoned and len(y) > 8 and _holds(y) else value

    def _holds(y: Tensor) -> bool:
        return len(y) == len(data.y) or torch.equal(y, data.y[data.rows(3)])

    def poison(record: dict[str, Any]) -> None:
        if record["round"] == 4:
            poisoned.append(True)

    with pytest.raises(RunError, match="round 6: client 3 has loss inf over all training data"):
        run(tmp_path / "run", loss=loss, on_round=poison, checkpoint_every=5)
    assert [record["round"] for record in read_records(tmp_path / "run")] == [1, 2, 3, 4, 5]
    assert max((tmp_path / "run").glob("checkpoint-*.npz")).name == "checkpoint-00000005.npz"


def test_an_error_in_a_round_does_not_lose_the_round_before_it(tmp_path: Path) -> None:
    seen: list[int] = []
    with pytest.raises(RunError, match="round 8"):
        run(tmp_path / "r", lr=lambda number: 0.1 if number < 8 else 1e308, rounds=20, checkpoint_every=100,
            on_round=lambda record: seen.append(record["round"]))  # fmt: skip
    lines = (tmp_path / "r" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == seen == list(range(1, 8))


def test_what_the_caller_raises_comes_through_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    def fail(record: dict[str, Any]) -> None:
        if record["round"] == 5:
            raise KeyError("mine")

    run(tmp_path / "whole")
    with pytest.raises(KeyError, match="mine"):
        run(tmp_path / "run", on_round=fail)
    run(tmp_path / "run", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "run")


def test_state_goes_through_a_checkpoint_unchanged(tmp_path: Path) -> None:
    """Also what has odd shapes: counts without dimensions, a late observation."""
    from tests.simulation import hand

    engine = hand.engine(
        models.normed(), LOSS, blobs(), controller=gradsift.controller("sign"), buffers="average", delay=1
    )
    for _ in range(3):
        engine.step()
    files.save(tmp_path / "one.npz", "mine", engine.state.arrays(), engine.state.facts())
    loaded = engine.state.restored(*files.load(tmp_path / "one.npz", "mine"))
    assert loaded.pending is not None
    assert engine.state.pending is not None
    assert loaded.pending.observation == engine.state.pending.observation
    for name in ("number", "steps", "control", "spent", "offset"):
        assert getattr(loaded.server, name) == getattr(engine.state.server, name)
    files.save(tmp_path / "two.npz", "mine", loaded.arrays(), loaded.facts())
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["one.npz", "two.npz"]


def test_a_resumed_run_remembers_when_to_stop(tmp_path: Path) -> None:
    run(tmp_path / "run", rounds=2)
    run(tmp_path / "run", rounds=4, resume=True)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["stop"]["rounds"] == 4


def assert_same_weights(one: Path, other: Path) -> None:
    np.testing.assert_array_equal(arrays(one)["weights"], arrays(other)["weights"])


def test_a_copy_of_a_checkpoint_under_another_name_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, rounds=4, checkpoint_every=2)
    backup = folder / "checkpoint-backup.npz"
    backup.write_bytes((folder / "checkpoint-00000002.npz").read_bytes())
    run(folder, rounds=6, checkpoint_every=2, resume=True)
    result = run(folder, rounds=8, checkpoint_every=2, resume=True)
    assert len(result.records) == 8
    assert backup.exists()
    run(tmp_path / "whole", rounds=8, checkpoint_every=2)
    assert_same_weights(folder / "checkpoint-00000008.npz", tmp_path / "whole" / "checkpoint-00000008.npz")


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("key", ["run", "start", "model", "stop"])
def test_extra_configuration_cannot_replace_the_runs_own(key: str, resume: bool, tmp_path: Path) -> None:
    if resume:
        run(tmp_path / "run", rounds=2)
    with pytest.raises(GradsiftError, match=f"extra_config must not have the key '{key}'"):
        run(tmp_path / "run", rounds=4, resume=resume, extra_config={key: "mine"})


def test_a_model_that_fails_later_names_the_round_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    failing: list[bool] = []

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if failing:
            raise KeyError("boom")
        return torch.nn.functional.cross_entropy(outputs, y)

    def watch(record: dict[str, Any]) -> None:
        if record["round"] == 4:
            failing.append(True)

    with pytest.raises(RunError, match="round 5 failed: KeyError: 'boom'"):
        run(tmp_path / "run", rounds=9, checkpoint_every=2, loss=loss, on_round=watch)
    failing.clear()
    assert len(run(tmp_path / "run", rounds=9, checkpoint_every=2, loss=loss, resume=True).records) == 9


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
        ({"device": "meta"}, "device must be one of cpu, cuda, got 'meta'"),
        ({"cost": 10}, "cost must be a CostModel, got 10"),
        ({"lr": lambda _: None}, "lr of round 1 must be a finite number, got None"),
    ],
)
def test_parts_that_cannot_work_are_refused_before_anything_is_written(
    options: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(GradsiftError, match=re.escape(named)):
        run(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
