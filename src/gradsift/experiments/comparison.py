"""The methods of a comparison: from the words of ``--methods`` to the settings of each run."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

import gradsift
from gradsift.cost import CostModel, Traffic
from gradsift.errors import UsageError
from gradsift.experiments import build
from gradsift.experiments.settings import BY_NAME, DEFAULT_CONTROLLER
from gradsift.registry import nearest

ROUND = ("local", "local_steps", "values", "down_values", "bits", "server")  # settings of a round besides k
FIXED = 5  # how many fixed k stand for all of them
HIGHEST, LOWEST = 0.3, (0.0005, 0.03)  # the range of the fixed k, as parts of D; the cost decides where it starts
FREE = 0.1  # a smaller k is not worth a run where communication adds less than this to what a round costs without it


def fixed_ks(dim: int, cost: CostModel, clients: int) -> list[int]:
    """Return the fixed k of a comparison, in equal ratios, from where communication begins to cost to 0.3 D."""
    nothing, everything = (cost.round_cost(Traffic.of(dim, k, k, clients=clients)) for k in (0, dim))
    low = FREE * nothing / (everything - nothing) if everything > nothing else LOWEST[1]
    ks = np.geomspace(min(max(low, LOWEST[0]), LOWEST[1]) * dim, HIGHEST * dim, FIXED)
    return sorted({int(min(max(k, 1), dim)) for k in ks.round()})


def expand(words: Sequence[str], settings: dict[str, Any], ks: Sequence[int]) -> list[str]:
    """Return the methods with their fixed k: ``fixed`` stands for each of ``ks``, other methods get the middle one."""
    methods: list[str] = []
    for word in words:
        chosen = resolve(word, settings)
        if "@" in word or settings["k"] is not None or chosen["controller"] != "fixed" or build.ignores_k(chosen):
            methods.append(word)
        else:
            many = _split_own(word)[0] == "fixed"
            methods += [f"{word}@{k}" for k in (ks if many else [ks[(len(ks) - 1) // 2]])]
    resolved = [resolve(method, settings) for method in methods]
    for i, method in enumerate(methods):
        if resolved[i] in resolved[:i]:
            raise UsageError(f"--methods: {methods[resolved.index(resolved[i])]!r} and {method!r} are the same")
    return methods


def split(methods: str) -> list[str]:
    """Return the methods between the commas, except for commas inside brackets."""
    return [word for word in (part.strip() for part in re.split(r",(?![^\[]*\])", methods)) if word]


def folder_name(method: str) -> str:
    """Return the method without the signs that a shell would take for its own."""
    return re.sub(r"[\[\];=,]+", "-", method).strip("-")


def resolve(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of one method: the common ones, with its sparsifier, its controller, its k and its own."""
    method, own = _split_own(method)
    settings = {**settings, **own}
    sparsifier, controller = _parts(method.partition("@")[0], settings["sparsifier"])
    for slot, name in (("sparsifier", sparsifier), ("controller", controller)):
        if build.class_name(name) not in (valid := build.SLOTS[slot].names()):
            raise UsageError(f"unknown method {method!r}: {name!r}{nearest(name, valid)}")
    # Options given with --set are for a controller that learns k, and for the sparsifier of the settings.
    parts = dict(settings["set"])
    if controller == "fixed":
        parts.pop("controller", None)
    if sparsifier != settings["sparsifier"]:
        parts.pop("sparsifier", None)
    chosen = {**settings, "sparsifier": sparsifier, "controller": controller, "set": parts}
    if build.make_sparsifier(chosen).dense:  # sends everything exactly, and FedAvg has its own period, if not told else
        kept = {name: parts[name] for name in parts if name not in ROUND}
        chosen |= {name: own.get(name) for name in ROUND} | {"set": kept}
        chosen["encoded_bytes"] = settings["encoded_bytes"] or settings["bits"] is not None
    # Targets are for the table only: a run that stopped at one could not be compared at equal cost.
    chosen |= {"target_loss": None, "target_accuracy": None}
    chosen |= {"k_min": None, "k_max": None} if controller == "fixed" else {"k": None}
    if settings["eval_every"] is None:  # a method that sends whole vectors has few and costly rounds
        chosen["eval_every"] = 1 if build.ignores_k(chosen) else 5
    return {**chosen, "k": _k(method, chosen)} if "@" in method else chosen


def _split_own(method: str) -> tuple[str, dict[str, Any]]:
    """Return METHOD and the settings of its own in METHOD[SETTING=VALUE;...]; @K may follow."""
    if "[" not in method:
        return method, {}
    valid = (*ROUND, "lr")
    parts = re.fullmatch(r"([^\[\]]+)\[([^\[\]]+)\]([^\[\]]*)", method)
    own: dict[str, Any] = {}
    for setting, _, value in (pair.partition("=") for pair in (parts[2] if parts else "").split(";")):
        name = setting.strip().replace("-", "_")
        if name not in valid:
            raise UsageError(f"--methods: {method!r} must be METHOD[SETTING=VALUE;...], SETTING of {', '.join(valid)}")
        kind = BY_NAME[name].kind
        assert kind is not None
        try:
            own[name] = kind(value.strip())
        except ValueError:
            raise UsageError(f"--methods: {name} of {method!r} cannot be {value!r}") from None
    assert parts is not None
    return parts[1] + parts[3], own


def _parts(name: str, sparsifier: str) -> tuple[str, str]:
    """Return the sparsifier and the controller that a method names; ``sparsifier`` is the default."""
    if "+" in name:
        sparsifier, controller = name.split("+", 1)
        return sparsifier, controller
    if name in ("adaptive", "fixed"):
        return sparsifier, "fixed" if name == "fixed" else DEFAULT_CONTROLLER
    if build.class_name(name) in gradsift.sparsifiers():
        return name, "fixed"
    if build.class_name(name) in gradsift.controllers():
        return sparsifier, name
    valid = list(dict.fromkeys(["adaptive", "fixed", *gradsift.sparsifiers(), *gradsift.controllers()]))
    raise UsageError(f"unknown method {name!r}{nearest(name, valid)}")


def _k(method: str, chosen: dict[str, Any]) -> float:
    """Return the k of METHOD@K."""
    if chosen["controller"] != "fixed" or build.ignores_k(chosen):
        raise UsageError(f"--methods: {method!r} has no fixed k to choose")
    try:
        return float(method.partition("@")[2])
    except ValueError:
        raise UsageError(f"--methods: the k of {method!r} is not a number") from None
