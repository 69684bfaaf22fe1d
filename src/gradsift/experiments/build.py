"""From settings to the parts of a run: data, model, loss, sparsifier, controller, cost and step size."""

import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradsift
from gradsift import (
    Constant,
    Controller,
    Cosine,
    CostModel,
    FederatedData,
    LocalComputation,
    Settings,
    Sparsifier,
    StepDecay,
)
from gradsift.data import load
from gradsift.data.load import check_there
from gradsift.errors import UsageError
from gradsift.experiments.settings import BY_NAME, literal
from gradsift.models import model as model_named
from gradsift.records.stop import STOPS
from gradsift.registry import MissingOptions, construct, nearest
from gradsift.simulation.run import usable_device

# How each slot of a method is made by name, and the names there are.
SLOTS: dict[str, tuple[Callable[..., Any], Callable[[], list[str]]]] = {
    "local": (gradsift.local_computation, gradsift.local_computations),
    "sparsifier": (gradsift.sparsifier, gradsift.sparsifiers),
    "values": (gradsift.value_type, gradsift.value_types),
    "controller": (gradsift.controller, gradsift.controllers),
    "cost": (gradsift.cost_model, gradsift.cost_models),
}
SCHEDULES = {"constant": Constant, "step-decay": StepDecay, "cosine": Cosine}
# The model that suits a data set, where none is named.
MODELS = {"digits": "small-cnn", "femnist": "paper-cnn", "cifar10": "paper-cnn"}
LR = {"digits": 0.3}  # the step size likewise; elsewhere it is the paper's
PAPER_LR = 0.01
PAPER_K, PAPER_DIM = 1000, 444_062  # the paper's fixed k and the size of its model
# Settings that are arguments of ``gradsift.simulate`` under the same name.
PASSED_ON = (
    *("batch_size", "seed", "clients_per_round", "delay", "probe_samples", "charge_probe", "dense_fallback"),
    *("encoded_bytes", "buffers", "eval_every", "checkpoint_every"),
)


def paper_ratio_k(dim: int) -> int:
    """The fixed k of a comparison: the paper's ratio of k to the size of the model, 1,000 in 444,062; at least 1."""
    return max(1, round(dim * PAPER_K / PAPER_DIM))


def simulate_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``gradsift.simulate`` for these settings, except where the run is kept."""
    data = load_data(settings)
    model = load_model(settings, data)
    return {
        "model": model,
        "loss": load_loss(settings, data),
        "data": data,
        "sparsifier": make_sparsifier(settings),
        "controller": make_controller(settings, trainable(model)),
        "cost": make_cost(settings),
        "local": make_local(settings),
        "values": make_slot(settings, "values", settings["values"] or "exact"),
        "lr": make_schedule(settings),
        "device": pick_device(settings["device"]),
        "dtype": pick_dtype(settings["dtype"]),
        **{name: settings[name] for name in (*STOPS, *PASSED_ON)},
    }


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse wrong settings without reading data or making a model: once, before many runs are started."""
    make_sparsifier(settings)
    make_local(settings)
    make_slot(settings, "values", settings["values"] or "exact")
    make_cost(settings)
    make_schedule(settings)
    pick_device(settings["device"])
    pick_dtype(settings["dtype"])
    Settings(**{name: settings[name] for name in Settings.__dataclass_fields__ if name in settings})
    check_there(settings["data"], settings["set"].get("data", {}).get("folder"))


def load_data(settings: Mapping[str, Any]) -> FederatedData:
    """The federated data set that ``--data`` names."""
    options = dict(settings["set"].get("data", {}))
    if _is_reference(settings["data"]):
        for name in ("clients", "partition"):
            if settings[name] is not None:
                raise UsageError(
                    f"{BY_NAME[name].flag} {settings[name]} has no meaning with --data {settings['data']}: the function"
                    " says who has what, and takes options of its own as --set data.OPTION=VALUE"
                )
        data = _call(settings["data"], options)
        if not isinstance(data, FederatedData):
            raise UsageError(f"{settings['data']} gave {type(data).__name__}, not gradsift.FederatedData")
        return data
    if settings["clients"] is not None:
        options["clients"] = settings["clients"]
    if settings["partition"] is not None:
        options["partition"], colon, alpha = settings["partition"].partition(":")
        if colon:
            options["alpha"] = literal(alpha)
    return load(settings["data"], **options)


def load_model(settings: Mapping[str, Any], data: FederatedData) -> nn.Module:
    """The model that ``--model`` names, sized for the data."""
    name = settings["model"] or MODELS.get(settings["data"], "mlp")
    options = dict(settings["set"].get("model", {}))
    if _is_reference(name):
        with torch.random.fork_rng():
            torch.manual_seed(settings["seed"])
            module = _call(name, options, data)
        if not isinstance(module, nn.Module):
            raise UsageError(f"{name} gave {type(module).__name__}, not torch.nn.Module")
        return module
    return model_named(name, data, **{"seed": settings["seed"], **options})


def load_loss(settings: Mapping[str, Any], data: FederatedData) -> Any:
    """The loss that ``--loss`` names; by default cross-entropy for labels, squared error for other targets."""
    if settings["loss"] is not None:
        return _resolve(settings["loss"])
    return nn.functional.cross_entropy if data.labelled else nn.functional.mse_loss


def trainable(model: nn.Module) -> int:
    """D: the number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def make_slot(settings: Mapping[str, Any], slot: str, name: str, **options: Any) -> Any:
    """The part with this name for a slot of the method, with the options that ``--set`` gives it.

    A name of the form package.module:Class imports the module, and is then the name under which the class is
    registered.
    """
    make, names = SLOTS[slot]
    if _is_reference(name):
        registered = getattr(_resolve(name), "name", None)
        if registered not in names():
            raise UsageError(f"--{slot} {name}: {name!r} is not registered: see docs/extending.md")
        name = str(registered)
    try:
        return make(name, **{**options, **settings["set"].get(slot, {})})
    except MissingOptions as problem:
        flags = " ".join(f"--set {slot}.{option}=VALUE" for option in problem.options)
        raise UsageError(f"{slot} {name!r} needs {flags}") from problem


def make_sparsifier(settings: Mapping[str, Any]) -> Sparsifier:
    """The sparsifier with its options."""
    made: Sparsifier = make_slot(settings, "sparsifier", settings["sparsifier"])
    return made


def make_local(settings: Mapping[str, Any]) -> LocalComputation:
    """The local computation with its options; where none is named, the one that goes with the sparsifier."""
    if settings["local"] is None:
        if "local" in settings["set"]:
            raise UsageError(f"--set local.{next(iter(settings['set']['local']))} needs --local NAME")
        return make_sparsifier(settings).local
    made: LocalComputation = make_slot(settings, "local", settings["local"])
    return made


def ignores_k(settings: Mapping[str, Any]) -> bool:
    """Whether whole vectors are sent in every round, so that k has no effect; FedAvg's k decides how seldom."""
    return make_sparsifier(settings).dense and make_local(settings).period(PAPER_DIM, PAPER_K) == 1


def make_controller(settings: Mapping[str, Any], dim: int) -> Controller[Any]:
    """The controller with its options; where none is named, Algorithm 3, or a fixed k for ``--k`` and dense methods."""
    options = {name: settings[name] for name in ("k", "k_min", "k_max") if settings[name] is not None}
    name = settings["controller"]
    if name is None:
        given = "k" in options or "k" in settings["set"].get("controller", {})
        name = "fixed" if given or make_sparsifier(settings).dense else "extended-sign"
    if name == "fixed":
        options.setdefault("k", paper_ratio_k(dim))
    if name in ("exp3", "continuous-bandit"):
        options.setdefault("horizon", _horizon(settings))
    made: Controller[Any] = make_slot(settings, "controller", name, **options)
    return made


def _horizon(settings: Mapping[str, Any]) -> int:
    """How many rounds to expect; a round takes at least 1 of normalised time, so that a budget limits them too."""
    budget, rounds = settings["cost_budget"], int(settings["rounds"])
    if budget is None or settings["cost"] != "normalized-time":
        return rounds
    return max(1, min(rounds, math.ceil(float(budget))))


def make_cost(settings: Mapping[str, Any]) -> CostModel:
    """The cost model with its options."""
    options = {"comm_time": settings["comm_time"]} if settings["cost"] == "normalized-time" else {}
    made: CostModel = make_slot(settings, "cost", settings["cost"], **options)
    return made


def make_schedule(settings: Mapping[str, Any]) -> Any:
    """The step size, constant unless ``--set lr.schedule=...`` says otherwise."""
    options = dict(settings["set"].get("lr", {}))
    name = options.pop("schedule", "constant")
    if name not in SCHEDULES:
        raise UsageError(f"unknown schedule {name!r}{nearest(name, list(SCHEDULES))}")
    lr = LR.get(settings["data"], PAPER_LR) if settings["lr"] is None else settings["lr"]
    try:
        return construct(f"lr {name!r}", SCHEDULES[name], {"lr": lr, **options})
    except MissingOptions as problem:
        flags = " ".join(f"--set lr.{option}=VALUE" for option in problem.options)
        raise UsageError(f"lr {name!r} needs {flags}") from problem


def pick_device(name: str) -> torch.device:
    """The device asked for; auto is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return usable_device(name)


def pick_dtype(name: str) -> torch.dtype:
    """float32 or float64."""
    kinds = {"float32": torch.float32, "float64": torch.float64}
    if name not in kinds:
        raise UsageError(f"unknown dtype {name!r}{nearest(name, list(kinds))}")
    return kinds[name]


def _is_reference(name: str) -> bool:
    """Whether a name has the form package.module:function, and so is not a path."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *function.split(".")])


def _resolve(reference: str) -> Any:
    if not _is_reference(reference):
        raise UsageError(f"{reference!r} is not package.module:function")
    module_name, _, path = reference.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a user's own module in the current folder
    try:
        thing: Any = importlib.import_module(module_name)
    except Exception as problem:  # there is no such module, or it fails
        raise UsageError(f"cannot import {module_name!r}: {type(problem).__name__}: {problem}") from problem
    for name in path.split("."):
        if not hasattr(thing, name):
            raise UsageError(f"{reference!r}: {thing!r} has no {name!r}{nearest(name, _public(thing))}")
        thing = getattr(thing, name)
    return thing


def _public(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def _call(reference: str, options: dict[str, Any], *arguments: Any) -> Any:
    """Call a user's own function with the options, and with as many of ``arguments`` as it needs."""
    function = _resolve(reference)
    if not callable(function):
        raise UsageError(f"{reference!r} is not a function: {function!r}")
    positional = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
        and parameter.name not in options
    ]
    try:
        return function(*arguments[: len(positional)], **options)
    except Exception as problem:
        raise UsageError(f"{reference!r} failed: {type(problem).__name__}: {problem}") from problem
