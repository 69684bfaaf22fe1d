"""``gradsift.simulate``: builds a run, trains, and returns the result; a run folder makes it resumable."""

import json
import math
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from gradsift import check
from gradsift.control import Controller
from gradsift.cost import CostModel
from gradsift.data.federated import FederatedData
from gradsift.describe import differences
from gradsift.errors import GradsiftError, install
from gradsift.local import LocalComputation
from gradsift.method import COUNTING, Method
from gradsift.records.folder import RunFolder, check_free, read_config
from gradsift.records.record import Record
from gradsift.records.stop import StopWhen
from gradsift.registry import nearest
from gradsift.schedule import Schedule
from gradsift.server_step import ServerOptimizer
from gradsift.simulation.describe import FREE, completed, describe
from gradsift.simulation.engine import Engine
from gradsift.simulation.interrupt import stop_on_signals
from gradsift.simulation.losses import Loss
from gradsift.simulation.settings import Settings
from gradsift.simulation.training import OnRound, Training
from gradsift.sparsify import Sparsifier
from gradsift.values import ValueType

if TYPE_CHECKING:
    import pandas

OF_THE_METHOD = ("seed", *COUNTING)  # settings that belong to the method, not to the simulator


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    model: nn.Module  # trained
    weights: Tensor  # [D], flat
    records: list[Record]  # one per round
    stopped: str  # "rounds", "cost budget", "target loss", "target accuracy" or "interrupted"
    config: dict[str, Any]
    folder: Path | None

    def frame(self) -> "pandas.DataFrame":
        """The records as a DataFrame with one row per round."""
        try:
            import pandas as pd
        except ImportError as problem:
            raise GradsiftError(f"a DataFrame needs pandas: {install('frame')}") from problem
        return pd.DataFrame.from_records(self.records)


def simulate(
    model: nn.Module,
    loss: Loss,
    data: FederatedData,
    *,
    sparsifier: str | Sparsifier = "fab-top-k",
    controller: str | Controller[Any] = "planned",
    cost: str | CostModel | None = None,
    local: str | LocalComputation | None = None,
    values: str | ValueType = "exact",
    down_values: str | ValueType = "exact",
    server: str | ServerOptimizer = "sgd",
    local_steps: int | None = None,
    bits: int | tuple[int, int] | None = None,
    lr: float | Schedule = 0.01,
    rounds: int = 500,
    cost_budget: float | None = None,
    target_loss: float | None = None,
    target_accuracy: float | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int = 100,
    on_round: OnRound | None = None,
    extra_config: dict[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Train a copy of ``model`` over the clients of ``data``; returns the trained model and the records of all rounds.

    ``loss(outputs, targets)`` is the mean over a batch. The slots take names or objects: ``sparsifier`` says which
    elements travel, ``controller`` how many, ``local`` what a client computes in a round (by default what goes with the
    sparsifier), ``values`` and ``down_values`` how the values that clients and server send are rounded, ``server``
    which step is made of an update, ``cost`` what a round costs (by default the paper's normalised time with comm_time
    10). ``local_steps=16`` is short for ``local=LocalSteps(16)``, ``bits=(2, 4)`` for values of 2 bits up and 4 bits
    down, and encoded_bytes. ``lr`` is the step size, a number or a function of the round. The run ends after
    ``rounds``, or when ``cost_budget`` is spent, or when an evaluation reaches ``target_loss`` or ``target_accuracy``.
    ``settings`` are seed (0), charge_probe, dense_fallback, encoded_bytes, and the fields of ``gradsift.Settings``:
    batch_size (32), clients_per_round (all), delay (0), eval_every (10), ...

    With ``out`` the run writes a run folder with its configuration, records and checkpoints, one every
    ``checkpoint_every`` rounds and one at the end; ``resume=True`` continues it (all arguments must be the same, except
    when to stop). ``extra_config``, a dict of JSON values, is added to config.json. ``on_round`` is called with each
    record. Ctrl-C, SIGTERM and an ``on_round`` that returns True stop the run at the end of a round, with a checkpoint.
    """
    check.integer("checkpoint_every", checkpoint_every, 1)
    if resume and out is None:
        raise GradsiftError("resume=True needs out=, the folder to resume")
    stop = StopWhen(rounds, cost_budget, target_loss, target_accuracy)
    place = None if out is None else check.path("out", out)
    slots: dict[str, Any] = {"sparsifier": sparsifier, "controller": controller, "cost": cost, "local": local}
    slots |= {"values": values, "down_values": down_values, "server": server, "local_steps": local_steps, "bits": bits}
    resumed = place if resume else None
    engine = _engine(model, loss, data, {**slots, "lr": lr}, settings, resumed, device, dtype)
    config = describe(engine, model, loss, data, stop)
    if not resume:
        if place is not None:
            check_free(place)
        config["start"] = _start(engine, stop)
    folder = None if place is None else _folder(place, config, extra_config or {}, engine, resume)
    with nullcontext() if folder is None else closing(folder), stop_on_signals() as request:
        records: list[Record] = [] if folder is None else folder.records()
        stopped = Training(engine, stop, folder, records, checkpoint_every, on_round, request).run()
    config = config if folder is None else folder.config
    return Result(engine.model(), engine.state.server.weights, records, stopped, config, place)


def _engine(
    model: nn.Module,
    loss: Loss,
    data: FederatedData,
    slots: dict[str, Any],
    settings: dict[str, Any],
    resumed: Path | None,
    device: str | torch.device,
    dtype: torch.dtype,
) -> Engine:
    if not isinstance(model, nn.Module) or not callable(loss) or not isinstance(data, FederatedData):
        kinds = ", ".join(type(thing).__name__ for thing in (model, loss, data))
        raise GradsiftError(f"simulate takes (torch.nn.Module, loss function, gradsift.FederatedData), got ({kinds})")
    if dtype not in (torch.float32, torch.float64):
        raise GradsiftError(f"dtype must be torch.float32 or torch.float64, got {dtype!r}")
    valid = [*OF_THE_METHOD, *Settings.__dataclass_fields__]
    for name in settings:
        if name not in valid:
            raise GradsiftError(f"unknown setting {name!r}{nearest(name, valid)}")
    if resumed is not None and settings.get("clients_per_chunk") is None:
        # Keep the size of the run's chunks, also on a GPU that would have another.
        settings["clients_per_chunk"] = read_config(resumed).get("settings", {}).get("clients_per_chunk")
    method = Method.of(**slots, **{name: settings.pop(name) for name in OF_THE_METHOD if name in settings})
    return Engine(model, loss, data, method, Settings(**settings), device=usable_device(device), dtype=dtype)


def usable_device(device: str | torch.device) -> torch.device:
    """The device, after a trial allocation; an error names a device that cannot be used."""
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as problem:
        raise GradsiftError(f"device {device!r} cannot be used: {problem}") from problem
    return chosen


def _start(engine: Engine, stop: StopWhen) -> dict[str, Any]:
    """Evaluate the initial model over all data, to fail before anything is written if that cannot work."""
    try:
        global_loss, accuracy = engine.evaluate()
    except Exception as problem:
        raise GradsiftError(f"the model or its loss fails on the data: {problem}") from problem
    if not math.isfinite(global_loss):
        raise GradsiftError(f"the loss over all training data is {global_loss} before the first round")
    if stop.target_accuracy is not None and accuracy is None:
        raise GradsiftError(f"target_accuracy is {stop.target_accuracy}, but there are no class labels to test")
    return {"global_loss": global_loss, "accuracy": accuracy}


def _folder(path: Path, config: dict[str, Any], extra: dict[str, Any], engine: Engine, resume: bool) -> RunFolder:
    if not isinstance(extra, dict):
        raise GradsiftError(f"extra_config must be a dict, got {extra!r:.80}")
    given, extra = _as_json(config), _as_json(extra)
    for key in (*given, "run", "start"):
        if key in extra:
            raise GradsiftError(f"extra_config must not have the key {key!r}, which the run itself writes")
    if not resume:
        return RunFolder.create(path, {**extra, **given}, engine.state.arrays(), engine.state.facts())
    if "driver" in read_config(path):
        raise GradsiftError(f"{path} is a run on Flower: the simulator cannot resume it, choose another folder")
    if "local" not in read_config(path):
        raise GradsiftError(f"{path} was made by an older gradsift, which can resume it; this one can only report it")
    folder = RunFolder.open(path)
    try:
        known = completed(folder.config, engine.method)
        changed = [line for key in given if key not in FREE for line in differences(known.get(key), given[key], key)]
        if changed:
            raise GradsiftError(f"{path} is another run: {'; '.join(changed)}")
        if given["stop"]["target_accuracy"] is not None and folder.config["start"]["accuracy"] is None:
            raise GradsiftError("target_accuracy is given, but there are no class labels to test")
        engine.state = folder.restore(engine.state.restored)
        records = folder.records()
        if not records or StopWhen(**given["stop"]).finished(records[-1]) is None:
            folder.amend({**extra, "stop": given["stop"]})
    except BaseException:
        folder.close()
        raise
    return folder


def _as_json(config: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", json.loads(json.dumps(config, allow_nan=False)))
    except (TypeError, ValueError) as problem:
        raise GradsiftError(f"the configuration of the run is not JSON: {problem}") from problem
