"""Make the arguments of ``gradsift.simulate`` from settings: data, model, loss, parts of the method and step size."""

import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn

import gradsift
from gradsift import FederatedData, control, cost, local, server_step, sparsify, values
from gradsift.data import load
from gradsift.data.load import check_files
from gradsift.errors import UsageError
from gradsift.experiments.settings import BY_NAME, DEFAULT_CONTROLLER, literal
from gradsift.method import EXACT_BITS
from gradsift.models import model as model_named
from gradsift.records.stop import STOPS
from gradsift.registry import MissingOptions, construct, nearest
from gradsift.simulation.run import usable_device


class Slot(NamedTuple):
    """One slot of a method: the noun for what fills it, and the functions of its registry."""

    noun: str
    make: Callable[..., Any]
    names: Callable[[], list[str]]
    describe: Callable[[str], str]


SLOTS = {
    "local": Slot("local computation", local.local_computation, local.local_computations, local.describe),
    "sparsifier": Slot("sparsifier", sparsify.sparsifier, sparsify.sparsifiers, sparsify.describe),
    "values": Slot("value type", values.value_type, values.value_types, values.describe),
    "down_values": Slot("value type", values.value_type, values.value_types, values.describe),
    "server": Slot(
        "server optimizer", server_step.server_optimizer, server_step.server_optimizers, server_step.describe
    ),
    "controller": Slot("controller", control.controller, control.controllers, control.describe),
    "cost": Slot("cost", cost.cost_model, cost.cost_models, cost.describe),
}
SCHEDULES = {"constant": gradsift.Constant, "step-decay": gradsift.StepDecay, "cosine": gradsift.Cosine}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
MODELS = {"digits": "small-cnn", "femnist": "paper-cnn", "cifar10": "paper-cnn"}  # the default model of a data set
LR = {"digits": 0.3}  # the default step size of a data set; PAPER_LR for all others
PAPER_LR = 0.01
PAPER_K, PAPER_DIM = 1000, 444_062  # the paper's fixed k and the size of its model
# Settings that are arguments of ``gradsift.simulate`` under the same name.
PASSED_ON = (
    *("batch_size", "seed", "clients_per_round", "delay", "probe_samples", "charge_probe", "dense_fallback"),
    *("buffers", "eval_every", "checkpoint_every"),
)


def paper_ratio_k(dim: int) -> int:
    """Return the default fixed k: the paper's ratio of k to the size of the model, 1,000 in 444,062; at least 1."""
    return max(1, round(dim * PAPER_K / PAPER_DIM))


def simulate_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``gradsift.simulate`` for these settings, except for the run folder."""
    data = load_data(settings)
    model = load_model(settings, data)
    return {
        "model": model,
        "loss": load_loss(settings, data),
        "data": data,
        **method_parts(settings, trainable(model)),
        "device": pick_device(settings["device"]),
        "dtype": pick_dtype(settings["dtype"]),
        **{name: settings[name] for name in (*STOPS, *PASSED_ON)},
        "encoded_bytes": settings["encoded_bytes"] or settings["bits"] is not None,
    }


def method_parts(settings: Mapping[str, Any], dim: int) -> dict[str, Any]:
    """Return the parts of the method and the step size, for a model with ``dim`` parameters."""
    for slot in SLOTS:  # import all modules first, since one may register a part that another setting names
        class_name(settings[slot] or "")
    return {
        "local": make_local(settings),
        "sparsifier": make_sparsifier(settings),
        **_make_values(settings),
        "server": make_slot(settings, "server", settings["server"] or "sgd"),
        "controller": make_controller(settings, dim),
        "cost": make_cost(settings),
        "lr": make_schedule(settings),
    }


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse wrong settings without loading data or a model, before many runs are started."""
    gradsift.Method.of(**method_parts(settings, PAPER_DIM))
    pick_device(settings["device"])
    pick_dtype(settings["dtype"])
    gradsift.Settings(**{name: settings[name] for name in gradsift.Settings.__dataclass_fields__ if name in settings})
    check_files(settings["data"], settings["set"].get("data", {}).get("folder"))


def load_data(settings: Mapping[str, Any]) -> FederatedData:
    """Load the federated data set that ``--data`` names."""
    options = dict(settings["set"].get("data", {}))
    if _is_reference(settings["data"]):
        for name in ("clients", "partition"):
            if settings[name] is not None:
                raise UsageError(
                    f"{BY_NAME[name].flag} {settings[name]} has no meaning with --data {settings['data']}: the function"
                    " decides which client has which samples, and takes its own options as --set data.OPTION=VALUE"
                )
        data = _call(settings["data"], options)
        if not isinstance(data, FederatedData):
            raise UsageError(f"{settings['data']} returned {type(data).__name__}, not gradsift.FederatedData")
        return data
    if settings["clients"] is not None:
        options["clients"] = settings["clients"]
    if settings["partition"] is not None:
        options["partition"], colon, alpha = settings["partition"].partition(":")
        if colon:
            options["alpha"] = literal(alpha)
    return load(settings["data"], **options)


def load_model(settings: Mapping[str, Any], data: FederatedData) -> nn.Module:
    """Make the model that ``--model`` names, sized for the data."""
    name = settings["model"] or MODELS.get(settings["data"], "mlp")
    options = dict(settings["set"].get("model", {}))
    if not _is_reference(name):
        return model_named(name, data, **{"seed": settings["seed"], **options})
    with torch.random.fork_rng():
        torch.manual_seed(settings["seed"])
        model = _call(name, options, data)
    if not isinstance(model, nn.Module):
        raise UsageError(f"{name} returned {type(model).__name__}, not torch.nn.Module")
    return model


def load_loss(settings: Mapping[str, Any], data: FederatedData) -> Any:
    """Return the loss that ``--loss`` names; by default cross-entropy for labels, squared error for other targets."""
    if settings["loss"] is not None:
        return _resolve(settings["loss"])
    return nn.functional.cross_entropy if data.labelled else nn.functional.mse_loss


def trainable(model: nn.Module) -> int:
    """Return D, the number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def make_slot(settings: Mapping[str, Any], slot: str, name: str, **options: Any) -> Any:
    """Make the part for a slot of the method, from a name or module:Class and with the options of ``--set``."""
    registered, (noun, make, names, _) = class_name(name), SLOTS[slot]
    if registered not in names():
        problem = f"unknown {noun} {name!r}" if registered == name else f"{name!r} is not registered as a {noun}"
        raise UsageError(f"{BY_NAME[slot].flag}: {problem}{nearest(name, names())}")
    return _make(slot, name, lambda: make(registered, **{**options, **settings["set"].get(slot, {})}))


def class_name(name: str) -> str | None:
    """Return the registered name of a class given as module:Class, or None; other names are returned unchanged."""
    if not _is_reference(name):
        return name
    # From the class itself, since a subclass that is not registered inherits the name of its base.
    return cast(str | None, getattr(_resolve(name), "__dict__", {}).get("name"))


def _make(part: str, name: str, make: Callable[[], Any]) -> Any:
    """Call ``make``; if options are missing, the error shows the flags that give them."""
    try:
        return make()
    except MissingOptions as problem:
        flags = " ".join(f"--set {part}.{option}=VALUE" for option in problem.options)
        raise UsageError(f"{part} {name!r} needs {flags}") from problem


def make_sparsifier(settings: Mapping[str, Any]) -> gradsift.Sparsifier:
    """Make the sparsifier with its options."""
    return cast(gradsift.Sparsifier, make_slot(settings, "sparsifier", settings["sparsifier"]))


def make_local(settings: Mapping[str, Any]) -> gradsift.LocalComputation:
    """Make the local computation with its options; without ``--local`` it is that of the sparsifier."""
    if settings["local_steps"] is not None:
        if settings["local"] is not None:
            raise UsageError(f"--local-steps and --local {settings['local']} both say what a client computes")
        return cast(
            gradsift.LocalComputation, make_slot(settings, "local", "local-steps", steps=settings["local_steps"])
        )
    if settings["local"] is not None:
        return cast(gradsift.LocalComputation, make_slot(settings, "local", settings["local"]))
    if "local" in settings["set"]:
        raise UsageError(f"--set local.{next(iter(settings['set']['local']))} needs --local NAME")
    return make_sparsifier(settings).local


def _make_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Make the value types up and down, from their names or from the numbers of bits."""
    if settings["bits"] is None:
        return {slot: make_slot(settings, slot, settings[slot] or "exact") for slot in ("values", "down_values")}
    for slot in ("values", "down_values"):
        if settings[slot] is not None:
            raise UsageError(f"--bits and {BY_NAME[slot].flag} {settings[slot]} both say how values are rounded")
    both = zip(("values", "down_values"), settings["bits"], strict=True)
    return {
        slot: make_slot(settings, slot, "exact")
        if bits == EXACT_BITS
        else make_slot(settings, slot, "few-bits", bits=bits)
        for slot, bits in both
    }


def ignores_k(settings: Mapping[str, Any]) -> bool:
    """Return whether k has no effect, because whole vectors are sent in every round (FedAvg's k sets its period)."""
    return make_sparsifier(settings).dense and make_local(settings).period(PAPER_DIM, PAPER_K) == 1


def make_controller(settings: Mapping[str, Any], dim: int) -> gradsift.Controller[Any]:
    """Make the controller with its options; with ``--k`` or a dense sparsifier, the default is a fixed k."""
    options = {name: settings[name] for name in ("k", "k_min", "k_max") if settings[name] is not None}
    name = settings["controller"]
    if name is None:
        fixed = "k" in options or "k" in settings["set"].get("controller", {}) or make_sparsifier(settings).dense
        name = "fixed" if fixed else DEFAULT_CONTROLLER
    if class_name(name) == "fixed":
        options.setdefault("k", paper_ratio_k(dim))
    if class_name(name) in ("exp3", "continuous-bandit"):
        options["horizon"] = _horizon(settings)
    return cast(gradsift.Controller[Any], make_slot(settings, "controller", name, **options))


def _horizon(settings: Mapping[str, Any]) -> int:
    """Return the largest number of rounds of a run; a round costs at least 1 in normalised time."""
    budget, rounds = settings["cost_budget"], int(settings["rounds"])
    if budget is None or settings["cost"] != "normalized-time":
        return rounds
    return max(1, min(rounds, math.ceil(float(budget))))


def make_cost(settings: Mapping[str, Any]) -> gradsift.CostModel:
    """Make the cost model with its options."""
    options = {"comm_time": settings["comm_time"]} if settings["cost"] == "normalized-time" else {}
    return cast(gradsift.CostModel, make_slot(settings, "cost", settings["cost"], **options))


def make_schedule(settings: Mapping[str, Any]) -> Any:
    """Make the step size, which is constant unless ``--set lr.schedule`` names a schedule."""
    options = {"lr": LR.get(settings["data"], PAPER_LR) if settings["lr"] is None else settings["lr"]}
    options |= settings["set"].get("lr", {})
    name = options.pop("schedule", "constant")
    if name not in SCHEDULES:
        raise UsageError(f"--set lr.schedule={name}: unknown schedule {name!r}{nearest(name, list(SCHEDULES))}")
    return _make("lr", name, lambda: construct(f"lr {name!r}", SCHEDULES[name], options))


def pick_device(name: str) -> torch.device:
    """Return the named device; "auto" is the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return usable_device(name)


def pick_dtype(name: str) -> torch.dtype:
    """Return float32 or float64."""
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}{nearest(name, list(DTYPES))}")
    return DTYPES[name]


def _is_reference(name: str) -> bool:
    """Return whether a name has the form package.module:function, and so is not a path."""
    module, colon, path = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *path.split(".")])


def _resolve(reference: str) -> Any:
    """Import what package.module:function refers to; modules in the current folder are found too."""
    if not _is_reference(reference):
        raise UsageError(f"{reference!r} is not package.module:function")
    module_name, _, path = reference.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        value: Any = importlib.import_module(module_name)
    except Exception as problem:  # whatever a user's module raises
        raise UsageError(f"cannot import {module_name!r}: {type(problem).__name__}: {problem}") from problem
    for name in path.split("."):
        if not hasattr(value, name):
            public = [other for other in dir(value) if not other.startswith("_")]
            raise UsageError(f"{reference!r}: {value!r} has no {name!r}{nearest(name, public)}")
        value = getattr(value, name)
    return value


def _call(reference: str, options: dict[str, Any], *arguments: Any) -> Any:
    """Call a user's function with the options, and with as many of ``arguments`` as it requires."""
    function = _resolve(reference)
    if not callable(function):
        raise UsageError(f"{reference!r} is not a function: {function!r}")
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(p.kind in kinds and p.default is p.empty and p.name not in options for p in parameters)
    try:
        return function(*arguments[:required], **options)
    except Exception as problem:
        raise UsageError(f"{reference!r} failed: {type(problem).__name__}: {problem}") from problem
