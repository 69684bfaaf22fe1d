"""Group runs that differ only in their seed into methods; a method's label names what sets it apart from the others."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

import numpy as np

from gradsift.report.runs import Run
from gradsift.report.text import number, shortened

# Runs of one method may differ in these: the seed, the stop rules, settings that only affect speed, and the command and
# the experiment, which repeat other settings. The data's checksum is compared separately: the partition may depend on
# the seed.
FREE_SECTIONS = {"run", "start", "stop", "versions", "command", "experiment"}
FREE_PATHS = {"settings.seed", "settings.clients_per_chunk", "settings.eval_batch", "data.checksum"}
FREE_NAMES = {"seed", "out"}  # in any section

COST_AXES = {
    "LinkTime": "Time (s)",
    "MeasuredTime": "Time (s)",
    "Energy": "Energy (J)",
    "Money": "Money (in the currency of the prices)",
    "WeightedSum": "Cost (weighted sum)",
}

Flat = dict[str, Any]  # dotted path -> JSON value that is not an object


@dataclass(frozen=True, eq=False)
class Method:
    """The runs of one method, in the order of their seeds."""

    label: str
    runs: tuple[Run, ...]
    config: Flat  # the settings that all its runs share
    aside: bool = False  # one of many fixed k, but not the best of them: figures show it in grey

    @property
    def dense(self) -> bool:
        """Whether the messages of every run are full vectors or empty, so that k is not their size."""
        return all(run.dense for run in self.runs)


def look_number(methods: Sequence[Method], number: int) -> int | None:
    """Return the number of a method among those that have a look of their own; None for one that is aside."""
    return None if methods[number].aside else sum(not method.aside for method in methods[:number])


def but_for_k(method: Method) -> str | None:
    """Return what a method with a fixed k shares with those of other k, as text; None for other methods."""
    identity = _identity(method.runs[0].config)
    k = identity.pop("controller.k", None)
    return json.dumps(identity, sort_keys=True) if identity["controller.name"] == "fixed" and k is not None else None


def flatten(value: Any, path: str = "") -> Flat:
    """Convert a configuration to dotted paths: {"a": {"b": 1}} becomes {"a.b": 1}."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    parts = (flatten(inner, f"{path}.{key}" if path else str(key)) for key, inner in value.items())
    return {name: leaf for part in parts for name, leaf in part.items()}


def group(runs: Iterable[Run]) -> tuple[list[Method], list[str]]:
    """Group runs to methods, in the order of their first runs; returns also notes for the reader."""
    families: dict[str, list[Run]] = {}
    for run in runs:
        families.setdefault(json.dumps(_identity(run.config), sort_keys=True), []).append(run)
    notes: list[str] = []
    kept = [_longest_per_seed(part, notes) for family in families.values() for part in _by_data(family)]
    if len({run.config.get("driver") for seeds in kept for run in seeds}) > 1:
        notes.append("Bytes on Flower are measured; bytes of simulated runs are those that their settings count.")
    methods = [Method("", tuple(seeds), common([flatten(run.config) for run in seeds])) for seeds in kept]
    return [replace(method, label=label) for method, label in zip(methods, _labels(methods), strict=True)], notes


def differing(configs: Sequence[Flat]) -> list[str]:
    """Return the paths whose values are not the same in all configurations, in the order in which they first occur."""
    paths = dict.fromkeys(path for config in configs for path in config)
    absent = object()
    return [path for path in paths if any(c.get(path, absent) != configs[0].get(path, absent) for c in configs)]


def common(configs: Sequence[Flat]) -> Flat:
    """Return the settings that have the same value in all configurations."""
    different = set(differing(configs))
    return {path: value for path, value in configs[0].items() if path not in different}


def _identity(config: dict[str, Any]) -> Flat:
    """Return the settings in which two runs of one method must agree."""
    flat = flatten({key: value for key, value in config.items() if key not in FREE_SECTIONS})
    return {p: value for p, value in flat.items() if p not in FREE_PATHS and p.rpartition(".")[2] not in FREE_NAMES}


def _by_data(family: list[Run]) -> list[list[Run]]:
    """Split runs by the checksum of their data, unless each seed has only one: then the seed determines the data."""
    parts: dict[str, list[Run]] = {}
    for run in family:
        parts.setdefault(json.dumps(run.config.get("data", {}).get("checksum")), []).append(run)
    one_each = sum(len({run.seed for run in part}) for part in parts.values()) == len({run.seed for run in family})
    return [family] if one_each else list(parts.values())


def _longest_per_seed(runs: list[Run], notes: list[str]) -> list[Run]:
    """Keep the longest run of each seed: a seed that counts twice would make the spread over seeds look too small."""
    kept: dict[int, Run] = {}
    for run in runs:
        if run.seed not in kept:
            kept[run.seed] = run
            continue
        shorter, longer = sorted((run, kept[run.seed]), key=lambda run: run.rounds)
        kept[run.seed] = longer
        notes.append(
            f"{shorter.path} is left out: it has the configuration and the seed {run.seed} of {longer.path},"
            f" which has {longer.rounds} rounds against {shorter.rounds}."
        )
    return [kept[seed] for seed in sorted(kept)]


def _labels(methods: list[Method]) -> list[str]:
    """Name each method by its parts; if names coincide, add the cost model, other settings that differ, or a number."""
    places = [", on Flower" if m.runs[0].config.get("driver") == "flower" else "" for m in methods]
    labels = [_name(method) + place for method, place in zip(methods, places, strict=True)]
    if len({json.dumps(method.runs[0].config.get("cost"), sort_keys=True) for method in methods}) > 1:
        labels = [f"{label}, {_cost(method)}" for label, method in zip(labels, methods, strict=True)]
    rounds = [_round(method) for method in methods]
    if len(set(rounds)) > 1:
        labels = [f"{label}, {words}" if words else label for label, words in zip(labels, rounds, strict=True)]
    for label in dict.fromkeys(labels):
        same = [i for i, other in enumerate(labels) if other == label]
        paths = _label_paths(differing([methods[i].config for i in same]))
        for i in same:
            config = methods[i].config
            settings = [f"{path.rpartition('.')[2]} {shortened(config[path], 24)}" for path in paths if path in config]
            labels[i] = ", ".join([label, *settings])
    for i, label in enumerate(labels):
        candidates = chain([label], (f"{label} ({n})" for n in count(2)))
        labels[i] = next(name for name in candidates if name not in labels[:i])
    return labels


def _label_paths(paths: list[str]) -> list[str]:
    """Choose the settings that a label names: checksums only if nothing else differs."""
    useful = [p for p in paths if p.partition(".")[0] not in FREE_SECTIONS and p not in FREE_PATHS - {"data.checksum"}]
    named = [p for p in useful if p not in ("data.checksum", "model.text")]
    return (named or useful)[:4]


def _name(method: Method) -> str:
    config = method.runs[0].config
    sparsifier, controller = (shortened(config[part]["name"], 200) for part in ("sparsifier", "controller"))
    if method.dense and all((np.diff(run.up, prepend=0.0) > 0).all() for run in method.runs):
        return sparsifier  # full vectors in every round: k has no effect
    k = config["controller"].get("k")
    if controller == "fixed" and isinstance(k, int | float):
        return f"{sparsifier}, k = {number(k)}"
    return f"{sparsifier}, {controller}"


def _round(method: Method) -> str:
    """The local steps and the bits of a value, where they are not those of the paper's round."""
    config = method.runs[0].config
    steps = (config.get("local") or {}).get("steps")
    up, down = ((config.get(part) or {}).get("bits") for part in ("values", "down_values"))
    words = [f"{number(steps)} local step{'s' * (steps != 1)}"] if isinstance(steps, int) else []
    if isinstance(up, int) or isinstance(down, int):
        words.append(f"{shortened(up or 32, 24)} bits up, {shortened(down or 32, 24)} down")
    return ", ".join(words)


def _cost(method: Method) -> str:
    cost = method.runs[0].config.get("cost")
    if not isinstance(cost, dict):
        return "no cost model"
    options = {name: value for name, value in cost.items() if name != "class"}
    if cost.get("class") == "NormalizedTime" and "comm_time" in options:
        shown = ["comm_time"] if options.get("comp_time", 1) == 1 else ["comm_time", "comp_time"]
        return ", ".join(f"{name} {shortened(options[name], 24)}" for name in shown)
    return f"{cost.get('class')}({', '.join(f'{name} {shortened(value, 16)}' for name, value in options.items())})"


def cost_axis(methods: Sequence[Method]) -> str:
    """Return the title of the cost axis: the quantity and its unit."""
    costs = [method.runs[0].config.get("cost") or {} for method in methods]
    kinds = {str(cost.get("class")) for cost in costs}
    if len(kinds) > 1:
        return "Cost (each method by its own cost model)"
    kind = kinds.pop()
    if kind == "NormalizedTime":
        unit = all(cost.get("comp_time", 1) == 1 for cost in costs)
        return "Normalised time (computation of a round = 1)" if unit else "Normalised time"
    return COST_AXES.get(kind, "Cost" if kind == "None" else f"Cost ({kind})")
