"""The complete configuration of a run as JSON values: what config.json holds and a resumed run must agree with."""

import dataclasses
import math
import platform
import re
import sys
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradsift.cost import CostModel
from gradsift.data.federated import FederatedData
from gradsift.simulation.engine import Engine
from gradsift.simulation.flat import Loss
from gradsift.simulation.settings import StopWhen
from gradsift.version import __version__

FREE = ("versions", "stop", "start")  # what may differ when a run is resumed

JSON = dict[str, Any]


def describe(engine: Engine, model: nn.Module, loss: Loss, data: FederatedData, stop: StopWhen) -> JSON:
    """Everything that decides the course of the run, the versions it runs on, and when it is to stop."""
    return {
        "model": _model(engine, model),
        "loss": _loss(loss),
        "data": {
            "name": data.name,
            "clients": data.num_clients,
            "samples": len(data.x),
            "test_samples": len(data.test_x),
            "checksum": data.fingerprint(),
        },
        "sparsifier": {"name": engine.sparsifier.name, **_options(engine.sparsifier)},
        "controller": {"name": engine.controller.name, **_options(engine.controller)},
        "cost": _named(engine.cost),
        "lr": _named(engine.lr),
        "settings": _options(engine.settings),
        "device": engine.state.weights.device.type,
        "dtype": str(engine.state.weights.dtype).removeprefix("torch."),
        "stop": _options(stop),
        "versions": {
            "gradsift": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "platform": sys.platform,
        },
    }


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """Where two configurations differ, each as ``name.part was old, not new``."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        within = f"{name}." if name else ""
        parts = sorted(old.keys() | new.keys())
        return [line for part in parts for line in differences(old.get(part), new.get(part), within + part)]
    return [] if old == new else [f"{name} was {old!r}, not {new!r}"]


def _model(engine: Engine, model: nn.Module) -> JSON:
    """Trainable weights are not looked at: a resumed run takes them from its checkpoint. All the rest must be there."""
    moving = set(engine.flat.moving)
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    constant = frozen | {name: b for name, b in model.named_buffers() if name not in moving}
    resting = [name for name, part in model.named_modules() if model.training and not part.training]
    names = [(name, list(p.shape)) for name, p in model.named_parameters() if p.requires_grad]
    return {
        "class": _name(type(model)),
        "dim": engine.flat.dim,
        "text": _text(model),
        "parameters": f"{zlib.crc32(repr((names, sorted(moving), resting)).encode()):08x}",
        "constants": _checksum(constant),
    }


def _loss(loss: Loss) -> JSON:
    if not isinstance(loss, nn.Module):
        return {"class": _text(loss)}
    options = {
        name: _plain(value)
        for name, value in vars(loss).items()
        if name != "training" and not name.startswith("_") and isinstance(value, str | int | float | None)
    }
    return {"class": _name(type(loss)), "text": _text(loss), **options, "constants": _checksum(loss.state_dict())}


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    crc = 0
    for name, value in sorted(tensors.items()):
        array = value.detach().cpu().contiguous()
        crc = zlib.crc32(f"{name} {array.dtype} {list(array.shape)}".encode(), crc)
        crc = zlib.crc32(array.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def _named(thing: object) -> JSON:
    return {"class": type(thing).__name__, **_options(thing)}


def _options(thing: object) -> JSON:
    """The fields of a dataclass; anything else in its own words."""
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        return {"text": _text(thing)}
    return {field.name: _plain(getattr(thing, field.name)) for field in dataclasses.fields(thing)}


def _plain(value: Any) -> Any:
    if isinstance(value, CostModel):
        return _named(value)
    if isinstance(value, np.ndarray | np.generic | Tensor):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _text(value)


def _text(thing: Any) -> str:
    """What a thing calls itself; without the address in memory, which is another one in every process."""
    if hasattr(thing, "__qualname__"):
        return _name(thing)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
