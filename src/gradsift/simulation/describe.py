"""The configuration of a run as JSON values, for config.json; a resumed run must have the same."""

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gradsift.data.federated import FederatedData
from gradsift.describe import options, plain, qualified_name, slot, text, versions
from gradsift.method import COUNTING, SLOTS, Method
from gradsift.records.stop import StopWhen
from gradsift.server_step import SGD
from gradsift.simulation.engine import Engine
from gradsift.simulation.losses import Loss
from gradsift.values import Exact

FREE = ("versions", "stop", "start")  # keys that may differ when a run is resumed

JSON = dict[str, Any]

ADDED: JSON = {"down_values": slot(Exact()), "server": slot(SGD())}  # what runs had before there were these slots


def describe(engine: Engine, model: nn.Module, loss: Loss, data: FederatedData, stop: StopWhen) -> JSON:
    """Everything that affects the course of the run, the versions of its libraries, and when it stops."""
    method = engine.method
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
        **method.describe(),
        "settings": {name: getattr(method, name) for name in ("seed", *COUNTING)} | options(engine.settings),
        "device": engine.state.server.weights.device.type,
        "dtype": str(engine.state.server.weights.dtype).removeprefix("torch."),
        "stop": options(stop),
        "versions": versions(),
    }


def completed(config: JSON, method: Method) -> JSON:
    """The configuration of a run with the slots, and the options of the parts of ``method``, that it is older than.

    An option that a part did not have yet is taken to be the default.
    """
    complete = {**ADDED, **config}
    for name in SLOTS:
        part, old = getattr(method, name), complete[name]
        if dataclasses.is_dataclass(part) and old.get("name") == slot(part)["name"]:
            fields = [field for field in dataclasses.fields(part) if field.default is not dataclasses.MISSING]
            complete[name] = {field.name: plain(field.default) for field in fields} | old
    return complete


def _model(engine: Engine, model: nn.Module) -> JSON:
    """The model without its trainable weights, which a resumed run takes from its checkpoint."""
    moving = set(engine.flat.moving)
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    constant = frozen | {name: b for name, b in model.named_buffers() if name not in moving}
    in_eval_mode = [name for name, part in model.named_modules() if model.training and not part.training]
    names = [(name, list(p.shape)) for name, p in model.named_parameters() if p.requires_grad]
    return {
        "class": qualified_name(type(model)),
        "dim": engine.flat.dim,
        "text": text(model),
        "parameters": f"{zlib.crc32(repr((names, sorted(moving), in_eval_mode)).encode()):08x}",
        "constants": _checksum(constant),
    }


def _loss(loss: Loss) -> JSON:
    if not isinstance(loss, nn.Module):
        return {"class": text(loss)}
    chosen = {
        name: plain(value)
        for name, value in vars(loss).items()
        if name != "training" and not name.startswith("_") and isinstance(value, str | int | float | None)
    }
    return {
        "class": qualified_name(type(loss)),
        "text": text(loss),
        **chosen,
        "constants": _checksum(loss.state_dict()),
    }


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    crc = 0
    for name, value in sorted(tensors.items()):
        array = value.detach().cpu().contiguous()
        crc = zlib.crc32(f"{name} {array.dtype} {list(array.shape)}".encode(), crc)
        crc = zlib.crc32(array.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"
