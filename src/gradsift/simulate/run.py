"""``gradsift.simulate``: one run from its parts to its result, with a folder that can be resumed."""

import contextlib
import dataclasses
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gradsift import check
from gradsift.control import Controller
from gradsift.control import controller as controller_named
from gradsift.cost import CostModel, NormalizedTime
from gradsift.data.federated import FederatedData
from gradsift.errors import GradsiftError
from gradsift.registry import nearest
from gradsift.simulate.engine import Engine, Record
from gradsift.simulate.flat import Loss
from gradsift.simulate.folder import RunFolder
from gradsift.simulate.schedule import Constant, Schedule
from gradsift.simulate.settings import Settings, StopWhen
from gradsift.sparsify import Sparsifier
from gradsift.sparsify import sparsifier as sparsifier_named
from gradsift.version import __version__

if TYPE_CHECKING:
    import pandas


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
            raise GradsiftError("a DataFrame needs pandas: pip install 'gradsift[pandas]'") from problem
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
    on_round: Callable[[Record], None] | None = None,
    extra_config: dict[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Train ``model`` over the clients of ``data`` and return what became of it; ``model`` itself is not changed.

    ``loss(outputs, targets)`` is the mean over a batch. ``sparsifier`` and ``controller`` are names or objects
    (``gradsift.controller("fixed", k=1000)``); ``cost`` is the paper's normalised time with comm_time 10 if left out.
    The run ends after ``rounds``, or when ``cost_budget`` is spent, or when an evaluation reaches ``target_loss`` or
    ``target_accuracy``. ``settings`` are the fields of ``gradsift.Settings``: batch_size, seed, clients_per_round,
    delay, eval_every, ...

    With ``out`` the run keeps a folder with its configuration, records and checkpoints; ``resume=True`` continues it
    (the other arguments must be the same, except for when to stop). Ctrl-C stops at the end of the round, with a
    checkpoint.
    """
    check.integer("checkpoint_every", checkpoint_every, 1)
    unknown = [name for name in settings if name not in Settings.__dataclass_fields__]
    if unknown:
        valid = list(Settings.__dataclass_fields__)
        raise GradsiftError(f"unknown setting {unknown[0]!r}{nearest(unknown[0], valid)}")
    stop = StopWhen(rounds, cost_budget, target_loss, target_accuracy)
    engine = Engine(
        model,
        loss,
        data,
        sparsifier_named(sparsifier) if isinstance(sparsifier, str) else sparsifier,
        controller_named(controller) if isinstance(controller, str) else controller,
        NormalizedTime(comm_time=10) if cost is None else cost,
        Constant(lr) if isinstance(lr, int | float) else lr,
        Settings(**settings),
        device=torch.device(device),
        dtype=dtype,
    )
    config = describe(engine, data, loss) | {"stop": dataclasses.asdict(stop), **(extra_config or {})}
    if resume and out is None:
        raise GradsiftError("resume=True needs out=, the folder to resume")
    if not resume:
        if out is not None and Path(out).exists():
            raise GradsiftError(f"{out} exists already: resume it, or choose another folder")
        config["start"] = dict(zip(("global_loss", "accuracy"), engine.evaluate(), strict=True))
    folder = _folder(Path(out), config, engine, resume) if out is not None else None
    records = folder.records() if folder is not None else []
    try:
        stopped = _rounds(engine, stop, folder, records, checkpoint_every, on_round)
    finally:
        if folder is not None:
            folder.close()
    where = None if folder is None else folder.path
    return Result(
        engine.model(), engine.state.weights, records, stopped, config if folder is None else folder.config, where
    )


def _rounds(
    engine: Engine,
    stop: StopWhen,
    folder: RunFolder | None,
    records: list[Record],
    checkpoint_every: int,
    on_round: Callable[[Record], None] | None,
) -> str:
    stopped = stop.finished(records[-1]) if records else None
    saved = engine.state.number
    with _interruptible() as interrupted:
        while stopped is None:
            record = engine.step()
            number = record["round"]
            stopped = stop.due(number, record["cost"])
            if stopped is not None or number % engine.settings.eval_every == 0:
                record["global_loss"], record["accuracy"] = engine.evaluate()
                stopped = stop.reached(record["global_loss"], record["accuracy"]) or stopped
            records.append(record)
            if folder is not None:
                folder.append(record)
            if on_round is not None:
                on_round(record)
            if stopped is None and interrupted.is_set():
                stopped = "interrupted"
            if folder is not None and (stopped is not None or number % checkpoint_every == 0):
                folder.save(engine.state)
                saved = number
    if folder is not None and saved != engine.state.number:
        folder.save(engine.state)
    return stopped


@contextlib.contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Ctrl-C sets the event, so that the round can end; a second one interrupts at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, handle)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _folder(path: Path, config: dict[str, Any], engine: Engine, resume: bool) -> RunFolder:
    if not resume:
        return RunFolder.create(path, config, engine.state)
    folder = RunFolder.open(path)
    try:
        for key in sorted((set(config) | set(folder.config)) - {"run", "stop", "versions", "start", "command"}):
            if folder.config.get(key) != config.get(key):
                raise GradsiftError(
                    f"{path} was run with another {key}: {folder.config.get(key)!r}, not {config.get(key)!r}"
                )
        engine.state = folder.restore(engine.state)
    except BaseException:
        folder.close()
        raise
    return folder


def describe(engine: Engine, data: FederatedData, loss: Loss) -> dict[str, Any]:
    """The complete configuration of a run, as JSON values."""
    module = engine.flat.module
    return {
        "model": {"class": _qualified(type(module)), "dim": engine.flat.dim, "text": str(module)},
        "loss": _qualified(type(loss)) if isinstance(loss, nn.Module) else _qualified(loss),
        "data": {
            "name": data.name,
            "clients": data.num_clients,
            "samples": len(data.x),
            "test_samples": len(data.test_x),
            "checksum": data.fingerprint(),
        },
        "sparsifier": {"name": engine.sparsifier.name, **_options(engine.sparsifier)},
        "controller": {"name": engine.controller.name, **_options(engine.controller)},
        "cost": _cost(engine.cost),
        "lr": {"class": type(engine.lr).__name__, **_options(engine.lr)},
        "settings": dataclasses.asdict(engine.settings),
        "device": engine.state.weights.device.type,
        "dtype": str(engine.state.weights.dtype).removeprefix("torch."),
        "versions": {
            "gradsift": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "platform": sys.platform,
        },
    }


def _options(thing: object) -> dict[str, Any]:
    """The fields of a dataclass as JSON values; anything else by its representation."""
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        return {} if isinstance(thing, Sparsifier | Controller) else {"text": repr(thing)}
    return {f.name: _plain(getattr(thing, f.name)) for f in dataclasses.fields(thing)}


def _cost(model: CostModel) -> dict[str, Any]:
    return {"class": type(model).__name__, **_options(model)}


def _plain(value: Any) -> Any:
    if isinstance(value, CostModel):
        return _cost(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _qualified(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}" if hasattr(thing, "__qualname__") else repr(thing)
