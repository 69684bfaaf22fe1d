"""``gradsift.simulate``: one run from its parts to its result, with a folder that can be resumed."""

import contextlib
import json
import math
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from gradsift import check
from gradsift.control import Controller
from gradsift.control import controller as controller_named
from gradsift.cost import CostModel, NormalizedTime
from gradsift.data.federated import FederatedData
from gradsift.errors import GradsiftError, RunError, install
from gradsift.registry import nearest
from gradsift.simulation.describe import FREE, describe, differences
from gradsift.simulation.engine import Engine, Record
from gradsift.simulation.flat import Loss
from gradsift.simulation.folder import RunFolder, check_free, read_config
from gradsift.simulation.schedule import Constant, Schedule
from gradsift.simulation.settings import Settings, StopWhen
from gradsift.sparsify import Sparsifier
from gradsift.sparsify import sparsifier as sparsifier_named

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)  # that ask a run to stop


@dataclass
class Asked:
    """Whether to stop. No Event: its lock is held while it is set, and a second signal would wait for it forever."""

    yes: bool = False


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
    cost: CostModel | None = None,
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
    on_round: Callable[[Record], bool | None] | None = None,
    extra_config: dict[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Train ``model`` over the clients of ``data`` and return what became of it; ``model`` itself is not changed.

    ``loss(outputs, targets)`` is the mean over a batch. ``sparsifier`` and ``controller`` are names or objects
    (``gradsift.controller("fixed", k=1000)``); ``cost`` is the paper's normalised time with comm_time 10 if left out.
    ``lr`` is the step size, a number or a function of the round's number. The run ends after ``rounds`` (500), or when
    ``cost_budget`` is spent, or when an evaluation reaches ``target_loss`` or ``target_accuracy``. ``settings`` are the
    fields of ``gradsift.Settings``: batch_size (32), seed (0), clients_per_round (all), delay (0), eval_every (10), ...
    The defaults are not all those of ``gradsift run``, which has 300 rounds, the GPU where there is one, and lr 0.3 for
    the digits.

    With ``out`` the run keeps a folder with its configuration, records and checkpoints, one every ``checkpoint_every``
    rounds and one at the end; ``resume=True`` continues it (the other arguments must be the same, except for when to
    stop). ``extra_config``, a dict of JSON values, is kept in the folder's config.json beside what the run writes
    there. ``on_round`` is called with each record. Ctrl-C and SIGTERM stop at the end of the round, with a checkpoint,
    and so does an ``on_round`` that returns True.
    """
    check.integer("checkpoint_every", checkpoint_every, 1)
    if resume and out is None:
        raise GradsiftError("resume=True needs out=, the folder to resume")
    if not isinstance(model, nn.Module) or not callable(loss) or not isinstance(data, FederatedData):
        kinds = ", ".join(type(thing).__name__ for thing in (model, loss, data))
        raise GradsiftError(f"simulate takes (torch.nn.Module, loss function, gradsift.FederatedData), got ({kinds})")
    if dtype not in (torch.float32, torch.float64):
        raise GradsiftError(f"dtype must be torch.float32 or torch.float64, got {dtype!r}")
    unknown = [name for name in settings if name not in Settings.__dataclass_fields__]
    if unknown:
        valid = list(Settings.__dataclass_fields__)
        raise GradsiftError(f"unknown setting {unknown[0]!r}{nearest(unknown[0], valid)}")
    if (
        resume and settings.get("clients_per_chunk") is None
    ):  # that of the run, also where another GPU would have another
        settings["clients_per_chunk"] = read_config(Path(str(out))).get("settings", {}).get("clients_per_chunk")
    stop = StopWhen(rounds, cost_budget, target_loss, target_accuracy)
    engine = Engine(
        model,
        loss,
        data,
        sparsifier_named(sparsifier) if isinstance(sparsifier, str) else sparsifier,
        controller_named(controller) if isinstance(controller, str) else controller,
        NormalizedTime(comm_time=10) if cost is None else cost,
        _schedule(lr),
        Settings(**settings),
        device=usable_device(device),
        dtype=dtype,
    )
    config = describe(engine, model, loss, data, stop)
    if not resume:
        if out is not None:
            check_free(Path(out))
        config["start"] = _start(engine, stop)
    folder = None if out is None else _folder(Path(out), config, extra_config or {}, engine, resume)
    try:
        records = [] if folder is None else folder.records()
        stopped = _rounds(engine, stop, folder, records, checkpoint_every, on_round)
    finally:
        if folder is not None:
            folder.close()
    if folder is not None:
        config = folder.config
    where = None if folder is None else folder.path
    return Result(engine.model(), engine.state.weights, records, stopped, config, where)


def usable_device(device: str | torch.device) -> torch.device:
    """The device, tried once: one that cannot be used is refused by name."""
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as problem:
        raise GradsiftError(f"device {device!r} cannot be used: {problem}") from problem
    return chosen


def _schedule(lr: float | Schedule) -> Schedule:
    if isinstance(lr, np.number):
        lr = lr.item()
    if isinstance(lr, int | float):
        return Constant(lr)
    if not callable(lr):
        raise GradsiftError(f"lr must be a number or a function of the round, got {lr!r}")
    return lr


def _start(engine: Engine, stop: StopWhen) -> Record:
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


def _rounds(
    engine: Engine,
    stop: StopWhen,
    folder: RunFolder | None,
    records: list[Record],
    checkpoint_every: int,
    on_round: Callable[[Record], bool | None] | None,
) -> str:
    def keep(record: Record) -> None:
        records.append(record)
        if folder is not None:
            folder.append(record)
        if on_round is not None and on_round(record) is True:
            interrupted.yes = True

    stopped = stop.finished(records[-1]) if records else None
    with _interruptible() as interrupted:
        while stopped is None:
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
            number = engine.state.number
            stopped = stop.due(number, engine.state.spent)
            # Also the first: whoever reads the records infers the columns' types from the first lines.
            evaluated = stopped is not None or number == 1 or number % engine.settings.eval_every == 0
            saved = folder is not None and (stopped is not None or number % checkpoint_every == 0)
            if not (evaluated or saved or interrupted.yes):
                continue  # the next round will finish this one while its gradients run
            record = _working(engine, engine.finish)
            if evaluated:
                record["global_loss"], record["accuracy"] = _evaluated(engine)
                stopped = stop.reached(record["global_loss"], record["accuracy"]) or stopped
            keep(record)
            if stopped is None and interrupted.yes:
                stopped = "interrupted"
            if folder is not None and (stopped is not None or saved):
                folder.save(engine.state)
    return stopped


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
        where = f"round {engine.state.number}: {_first_without_loss(engine)}"
        raise RunError(f"{where} loss {global_loss} over all training data; try a smaller step size")
    return global_loss, accuracy


def _first_without_loss(engine: Engine) -> str:
    data, state = engine.data, engine.state
    for client in range(data.num_clients):
        rows = data.rows(client)
        outputs = engine.flat.outputs(state.weights, state.buffers, data.x[rows])
        if not math.isfinite(float(engine.flat.loss(outputs, data.y[rows]))):
            return f"client {data.label(client)} has"
    return "the clients together have"


@contextlib.contextmanager
def _interruptible() -> Iterator[Asked]:
    """Ctrl-C and SIGTERM ask, so that the round can end; a second one of them does what it did before the run."""
    asked = Asked()
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in SIGNALS}
    # A job in the background is started to ignore Ctrl-C, and None is a handler that Python cannot put back.
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        asked.yes = True
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, handle)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _folder(path: Path, config: Record, extra: Record, engine: Engine, resume: bool) -> RunFolder:
    try:
        given = json.loads(json.dumps(config, allow_nan=False))
        extra = json.loads(json.dumps(extra, allow_nan=False))
    except (TypeError, ValueError) as problem:
        raise GradsiftError(f"the configuration of the run is not JSON: {problem}") from problem
    for key in (*given, "run", "start"):
        if key in extra:
            raise GradsiftError(f"extra_config must not hold {key!r}: that is the run's own")
    if not resume:
        return RunFolder.create(path, {**extra, **given}, engine.state)
    folder = RunFolder.open(path)
    try:
        changed = [
            line for key in given if key not in FREE for line in differences(folder.config.get(key), given[key], key)
        ]
        if changed:
            raise GradsiftError(f"{path} is another run: {'; '.join(changed)}")
        if given["stop"]["target_accuracy"] is not None and folder.config["start"]["accuracy"] is None:
            raise GradsiftError("target_accuracy is given, but there are no class labels to test")
        engine.state = folder.restore(engine.state)
        records = folder.records()
        if not records or StopWhen(**given["stop"]).finished(records[-1]) is None:
            folder.amend({**extra, "stop": given["stop"]})
    except BaseException:
        folder.close()
        raise
    return folder
