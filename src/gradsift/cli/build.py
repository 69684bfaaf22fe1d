"""From the settings of a command to the parts of a run."""

import importlib
import inspect
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradsift
from gradsift import Controller, CostModel, FederatedData, Sparsifier
from gradsift.cli.options import BY_NAME, UsageError, literal
from gradsift.registry import check_options, nearest
from gradsift.simulation.run import usable_device
from gradsift.simulation.schedule import Constant, Cosine, StepDecay
from gradsift.simulation.settings import Settings

COSTS: dict[str, type[CostModel]] = {
    "normalized-time": gradsift.NormalizedTime,
    "link-time": gradsift.LinkTime,
    "energy": gradsift.Energy,
    "money": gradsift.Money,
}
SCHEDULES = {"constant": Constant, "step-decay": StepDecay, "cosine": Cosine}
# The model that suits a data set, where none is named.
MODELS = {"digits": "small-cnn", "femnist": "paper-cnn", "cifar10": "paper-cnn"}
LR = {"digits": 0.3}  # the step size likewise; elsewhere it is the paper's
PAPER_LR = 0.01
PAPER_K, PAPER_DIM = 1000, 444_062  # the paper's fixed k and the size of its model


def paper_ratio_k(dim: int) -> int:
    """The fixed k of a comparison: the paper's ratio of k to the size of the model, 1,000 in 444,062; at least 1."""
    return max(1, round(dim * PAPER_K / PAPER_DIM))


def simulate_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``gradsift.simulate`` for these settings, except where the run is kept."""
    data = load_data(settings)
    model = load_model(settings, data)
    keep = (
        "rounds",
        "cost_budget",
        "target_loss",
        "target_accuracy",
        "batch_size",
        "seed",
        "clients_per_round",
        "delay",
    )
    more = (
        "probe_samples",
        "charge_probe",
        "dense_fallback",
        "encoded_bytes",
        "buffers",
        "eval_every",
        "checkpoint_every",
    )
    return {
        "model": model,
        "loss": load_loss(settings, data),
        "data": data,
        "sparsifier": make_sparsifier(settings),
        "controller": make_controller(settings, trainable(model)),
        "cost": make_cost(settings),
        "lr": make_schedule(settings),
        "device": pick_device(settings["device"]),
        "dtype": pick_dtype(settings["dtype"]),
        **{name: settings[name] for name in keep + more},
    }


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse what can be refused before data is read and a model is made: once, where many runs are to come."""
    from gradsift.data.load import check_there

    chosen = dict(settings)
    make_sparsifier(chosen)
    make_cost(chosen)
    make_schedule(chosen)
    pick_device(chosen["device"])
    pick_dtype(chosen["dtype"])
    Settings(**{name: chosen[name] for name in Settings.__dataclass_fields__ if name in chosen})
    check_there(chosen["data"], chosen["set"].get("data", {}).get("folder"))


def load_data(settings: dict[str, Any]) -> FederatedData:
    """The federated data set that ``--data`` names."""
    from gradsift.data import load

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


def load_model(settings: dict[str, Any], data: FederatedData) -> nn.Module:
    """The model that ``--model`` names, sized for the data."""
    from gradsift.models import model

    name = settings["model"] or MODELS.get(settings["data"], "mlp")
    options = dict(settings["set"].get("model", {}))
    if _is_reference(name):
        with torch.random.fork_rng():
            torch.manual_seed(settings["seed"])
            module = _call(name, options, data)
        if not isinstance(module, nn.Module):
            raise UsageError(f"{name} gave {type(module).__name__}, not torch.nn.Module")
        return module
    return model(name, data, **{"seed": settings["seed"], **options})


def load_loss(settings: dict[str, Any], data: FederatedData) -> Any:
    """The loss: the one named, else what suits the targets."""
    if settings["loss"] is not None:
        return _resolve(settings["loss"])
    return nn.functional.cross_entropy if data.labelled else nn.functional.mse_loss


def trainable(model: nn.Module) -> int:
    """D."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def make_sparsifier(settings: dict[str, Any]) -> Sparsifier:
    """The sparsifier with its options."""
    return gradsift.sparsifier(settings["sparsifier"], **settings["set"].get("sparsifier", {}))


def make_controller(settings: dict[str, Any], dim: int) -> Controller[Any]:
    """The controller with its options; a dense sparsifier that was given none gets a fixed k by the stated rule."""
    options = dict(settings["set"].get("controller", {}))
    for name in ("k", "k_min", "k_max"):
        if settings[name] is not None:
            options[name] = settings[name]
    name = settings["controller"]
    if name is None:
        name = "fixed" if "k" in options or make_sparsifier(settings).dense else "extended-sign"
    if name == "fixed":
        options.setdefault("k", paper_ratio_k(dim))
    if name in ("exp3", "continuous-bandit"):
        options.setdefault("horizon", _horizon(settings))
    return gradsift.controller(name, **options)


def _horizon(settings: dict[str, Any]) -> int:
    """How many rounds to expect: of normalised time a round takes 1 at least, so a budget is a limit on them too."""
    budget, rounds = settings["cost_budget"], int(settings["rounds"])
    if budget is None or settings["cost"] != "normalized-time":
        return rounds
    return max(1, min(rounds, math.ceil(float(budget))))


def make_cost(settings: dict[str, Any]) -> CostModel:
    """The cost model with its options."""
    name, options = settings["cost"], dict(settings["set"].get("cost", {}))
    if name not in COSTS:
        raise UsageError(f"unknown cost {name!r}{nearest(name, list(COSTS))}")
    if name == "normalized-time":
        options.setdefault("comm_time", settings["comm_time"])
    return _construct(COSTS[name], "cost", name, options)  # type: ignore[no-any-return]


def make_schedule(settings: dict[str, Any]) -> Any:
    """The step size, constant unless ``--set lr.schedule=...`` says otherwise."""
    options = dict(settings["set"].get("lr", {}))
    name = options.pop("schedule", "constant")
    if name not in SCHEDULES:
        raise UsageError(f"unknown schedule {name!r}{nearest(name, list(SCHEDULES))}")
    lr = LR.get(settings["data"], PAPER_LR) if settings["lr"] is None else settings["lr"]
    return _construct(SCHEDULES[name], "lr", name, {"lr": lr, **options})


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


def _construct(cls: Any, part: str, name: str, options: dict[str, Any]) -> Any:
    """A cost or a schedule; what it needs and was not given is said as flags."""
    check_options(f"{part} {name!r}", cls, options)
    parameters = inspect.signature(cls).parameters.items()
    missing = [option for option, value in parameters if value.default is value.empty and option not in options]
    if missing:
        flags = " ".join(f"--set {part}.{option}=VALUE" for option in missing)
        raise UsageError(f"{part} {name!r} needs {flags}")
    return cls(**options)


def _is_reference(name: str) -> bool:
    """package.module:function, not a path."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *function.split(".")])


def _resolve(reference: str) -> Any:
    if not _is_reference(reference):
        raise UsageError(f"{reference!r} is not package.module:function")
    module_name, _, path = reference.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # one's own file in the present folder
    try:
        thing: Any = importlib.import_module(module_name)
    except Exception as problem:  # not there, or one's own module fails
        raise UsageError(f"cannot import {module_name!r}: {type(problem).__name__}: {problem}") from problem
    for name in path.split("."):
        if not hasattr(thing, name):
            raise UsageError(f"{reference!r}: {thing!r} has no {name!r}{nearest(name, _public(thing))}")
        thing = getattr(thing, name)
    return thing


def _public(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def _call(reference: str, options: dict[str, Any], *arguments: Any) -> Any:
    """Call one's own function: with the data if it takes a positional argument, and with the options given."""
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
