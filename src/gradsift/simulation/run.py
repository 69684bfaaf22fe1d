"""``gradsift.simulate``: one run from its parts to its result, with a folder that can be resumed."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from gradsift import check
from gradsift.control import Controller
from gradsift.cost import CostModel
from gradsift.data.federated import FederatedData
from gradsift.describe import differences
from gradsift.errors import GradsiftError, RunError, install
from gradsift.local import LocalComputation
from gradsift.method import COUNTING, Method
from gradsift.records.folder import RunFolder, check_free, read_config
from gradsift.records.record import Record
from gradsift.records.stop import StopWhen
from gradsift.registry import nearest
from gradsift.schedule import Schedule
from gradsift.simulation.describe import FREE, describe
from gradsift.simulation.engine import Engine
from gradsift.simulation.flat import Loss
from gradsift.simulation.interrupt import StopRequest, stop_on_signals
from gradsift.simulation.settings import Settings
from gradsift.sparsify import Sparsifier
from gradsift.values import ValueType

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")
OnRound = Callable[[Record], bool | None]
OF_THE_METHOD = ("seed", *COUNTING)  # settings that are the method's, not the simulator's


@dataclass(frozen=True)
class Result:
    """What a run gave."""

    model: nn.Module  # trained
    weights: Tensor  # [D], flat
    records: list[Record]  # one a round
    stopped: str  # "rounds", "cost budget", "target loss", "target accuracy" or "interrupted"
    config: dict[str, Any]
    folder: Path | None

    def frame(self) -> "pandas.DataFrame":
        """The records as a DataFrame, a row a round."""
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
    controller: str | Controller[Any] = "extended-sign",
    cost: str | CostModel | None = None,
    local: str | LocalComputation | None = None,
    values: str | ValueType = "exact",
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
    """Train ``model`` over the clients of ``data`` and return what became of it; ``model`` itself is not changed.

    ``loss(outputs, targets)`` is the mean over a batch. The five slots take names or objects: ``sparsifier`` says which
    elements travel, ``controller`` how many, ``local`` what a client computes in a round (by default what goes with the
    sparsifier), ``values`` how values are rounded, ``cost`` what a round costs (by default the paper's normalised time
    with comm_time 10). ``lr`` is the step size, a number or a function of the round. The run ends after ``rounds``, or
    when ``cost_budget`` is spent, or when an evaluation reaches ``target_loss`` or ``target_accuracy``. ``settings``
    are seed (0), charge_probe, dense_fallback, encoded_bytes, and the fields of ``gradsift.Settings``: batch_size (32),
    clients_per_round (all), delay (0), eval_every (10), ...

    With ``out`` the run keeps a folder with its configuration, records and checkpoints, one every ``checkpoint_every``
    rounds and one at the end; ``resume=True`` continues it (the other arguments must be the same, except for when to
    stop). ``extra_config``, a dict of JSON values, is kept in config.json too. ``on_round`` is called with each record.
    Ctrl-C, SIGTERM and an ``on_round`` that returns True stop the run at the end of a round, with a checkpoint.
    """
    check.integer("checkpoint_every", checkpoint_every, 1)
    if resume and out is None:
        raise GradsiftError("resume=True needs out=, the folder to resume")
    stop, place = StopWhen(rounds, cost_budget, target_loss, target_accuracy), None if out is None else Path(out)
    slots = {"sparsifier": sparsifier, "controller": controller, "cost": cost, "local": local, "values": values}
    resumed = place if resume else None
    engine = _engine(model, loss, data, {**slots, "lr": lr}, settings, resumed, device, dtype)
    config = describe(engine, model, loss, data, stop)
    if not resume:
        if place is not None:
            check_free(place)
        config["start"] = _start(engine, stop)
    folder = None if place is None else _folder(place, config, extra_config or {}, engine, resume)
    return _train(engine, stop, folder, config, checkpoint_every, on_round)


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
        # That of the run, also on a GPU that would have another.
        settings["clients_per_chunk"] = read_config(resumed).get("settings", {}).get("clients_per_chunk")
    method = Method.of(**slots, **{name: settings.pop(name) for name in OF_THE_METHOD if name in settings})
    return Engine(model, loss, data, method, Settings(**settings), device=usable_device(device), dtype=dtype)


def usable_device(device: str | torch.device) -> torch.device:
    """The device, tried once: one that cannot be used is refused by name."""
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as problem:
        raise GradsiftError(f"device {device!r} cannot be used: {problem}") from problem
    return chosen


def _start(engine: Engine, stop: StopWhen) -> dict[str, Any]:
    """Where a run starts, evaluated over all data, so that what cannot work fails before anything is written."""
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
    given, extra = _as_json(config), _as_json(extra)
    for key in (*given, "run", "start"):
        if key in extra:
            raise GradsiftError(f"extra_config must not hold {key!r}: that is the run's own")
    if not resume:
        return RunFolder.create(path, {**extra, **given}, engine.state.arrays(), engine.state.facts())
    if "driver" in read_config(path):
        raise GradsiftError(f"{path} is a run of Flower's: the simulator cannot resume it, choose another folder")
    folder = RunFolder.open(path)
    try:
        changed = [
            line for key in given if key not in FREE for line in differences(folder.config.get(key), given[key], key)
        ]
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
        made: dict[str, Any] = json.loads(json.dumps(config, allow_nan=False))
    except (TypeError, ValueError) as problem:
        raise GradsiftError(f"the configuration of the run is not JSON: {problem}") from problem
    return made


def _train(
    engine: Engine,
    stop: StopWhen,
    folder: RunFolder | None,
    config: dict[str, Any],
    checkpoint_every: int,
    on_round: OnRound | None,
) -> Result:
    try:
        records: list[Record] = [] if folder is None else folder.records()
        with stop_on_signals() as request:
            stopped = _rounds(engine, stop, folder, records, checkpoint_every, on_round, request)
    finally:
        if folder is not None:
            folder.close()
    if folder is not None:
        config = folder.config
    where = None if folder is None else folder.path
    return Result(engine.model(), engine.state.server.weights, records, stopped, config, where)


def _rounds(
    engine: Engine,
    stop: StopWhen,
    folder: RunFolder | None,
    records: list[Record],
    checkpoint_every: int,
    on_round: OnRound | None,
    request: StopRequest,
) -> str:
    """Rounds until there is a reason to stop, which is returned; each is kept in ``records`` and in the folder."""

    def keep(record: Record) -> None:
        records.append(record)
        if folder is not None:
            folder.append(record)
        if on_round is not None and on_round(record) is True:
            request.made = True

    stopped = stop.finished(records[-1]) if records else None
    while stopped is None:
        _begin(engine, keep)
        number = engine.state.server.number
        stopped = stop.due(number, engine.state.server.spent)
        # Also the first: whoever reads the records infers the columns' types from the first lines.
        evaluated = stopped is not None or number == 1 or number % engine.settings.eval_every == 0
        saved = folder is not None and (stopped is not None or number % checkpoint_every == 0)
        if not (evaluated or saved or request.made):
            continue  # the next round will finish this one while its gradients run
        record = _working(engine, engine.finish)
        if evaluated:
            global_loss, accuracy = _evaluated(engine)
            record["global_loss"], record["accuracy"] = global_loss, accuracy
            stopped = stop.reached(global_loss, accuracy) or stopped
        keep(record)
        if stopped is None and request.made:
            stopped = "interrupted"
        if folder is not None and (stopped is not None or saved):
            folder.save(number, engine.state.arrays(), engine.state.facts())
    return stopped


def _begin(engine: Engine, keep: Callable[[Record], None]) -> None:
    """Begin a round; the record of the round before, which is finished on the way, is kept also after an error."""
    before: Record | None = None
    try:
        before = _working(engine, engine.begin)
    except BaseException as problem:
        try:
            before = engine.salvage()
        except RunError:
            if isinstance(problem, Exception):
                raise
        raise  # also of Ctrl-C, whatever the round before was
    finally:
        if before is not None:
            keep(before)


def _working(engine: Engine, work: Callable[[], T]) -> T:
    try:
        return work()
    except (RunError, GradsiftError):
        raise
    except Exception as problem:  # of the user's module, loss, controller or cost
        raise RunError(f"round {engine.working_on} failed: {type(problem).__name__}: {problem}") from problem


def _evaluated(engine: Engine) -> tuple[float, float | None]:
    global_loss, accuracy = engine.evaluate()
    if not math.isfinite(global_loss):
        where = f"round {engine.state.server.number}: {_first_without_loss(engine)}"
        raise RunError(f"{where} loss {global_loss} over all training data; try a smaller step size")
    return global_loss, accuracy


def _first_without_loss(engine: Engine) -> str:
    data, state = engine.data, engine.state
    for client in range(data.num_clients):
        rows = data.rows(client)
        outputs = engine.flat.outputs(state.server.weights, state.buffers, data.x[rows])
        if not math.isfinite(float(engine.flat.loss(outputs, data.y[rows]))):
            return f"client {data.label(client)} has"
    return "the clients together have"
