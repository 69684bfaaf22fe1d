"""Runs that differ only in their seed are one method; its label says how it differs from the other methods."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradsift.report.runs import Run
from gradsift.report.text import number, shortened

# What may differ between two runs of one method: the seed, when to stop, what only changes the speed, and the command,
# which repeats the rest. The data's checksum is compared separately, since a seed may also decide the partition.
FREE_SECTIONS = {"run", "start", "stop", "versions", "command"}
FREE_PATHS = {"settings.seed", "settings.clients_per_chunk", "settings.eval_batch", "data.checksum"}
FREE_NAMES = {"seed", "out"}  # in any section

COST_AXES = {
    "LinkTime": "Time (s)",
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
    config: Flat  # what its runs have in common

    @property
    def dense(self) -> bool:
        """Whether its messages are whole vectors or empty in every run, so that k is not their size."""
        return all(run.dense for run in self.runs)


def flatten(value: Any, path: str = "") -> Flat:
    """A configuration as dotted paths: {"a": {"b": 1}} is {"a.b": 1}."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    parts = (flatten(inner, f"{path}.{key}" if path else str(key)) for key, inner in value.items())
    return {name: leaf for part in parts for name, leaf in part.items()}


def group(runs: Iterable[Run]) -> tuple[list[Method], list[str]]:
    """Methods in the order of their first runs, and notes for the reader about runs that were left out."""
    families: dict[str, list[Run]] = {}
    for run in runs:
        families.setdefault(json.dumps(_identity(run.config), sort_keys=True), []).append(run)
    notes: list[str] = []
    methods: list[Method] = []
    for family in families.values():
        for seeds in _by_data(family):
            kept = _one_a_seed(seeds, notes)
            methods.append(Method("", tuple(kept), _common([flatten(run.config) for run in kept])))
    labels = _labels(methods)
    return [replace(method, label=label) for method, label in zip(methods, labels, strict=True)], notes


def differing(configs: Sequence[Flat]) -> list[str]:
    """The paths whose values are not the same in all of these configurations, in the order of their first mention."""
    paths = list(dict.fromkeys(path for config in configs for path in config))
    absent = object()
    return [path for path in paths if any(c.get(path, absent) != configs[0].get(path, absent) for c in configs)]


def _identity(config: dict[str, Any]) -> Flat:
    flat = flatten({key: value for key, value in config.items() if key not in FREE_SECTIONS})
    return {
        path: value
        for path, value in flat.items()
        if path not in FREE_PATHS and path.rpartition(".")[2] not in FREE_NAMES
    }


def _by_data(family: list[Run]) -> list[list[Run]]:
    """One seed on several data sets makes several methods; otherwise the data differ because of the seed."""

    def checksum(run: Run) -> str:
        return json.dumps(run.config.get("data", {}).get("checksum"))

    one_each = len({(run.seed, checksum(run)) for run in family}) == len({run.seed for run in family})
    if one_each:
        return [family]
    parts: dict[str, list[Run]] = {}
    for run in family:
        parts.setdefault(checksum(run), []).append(run)
    return list(parts.values())


def _one_a_seed(seeds: list[Run], notes: list[str]) -> list[Run]:
    """Keep the longest run of each seed: a seed counted twice would make the spread over seeds look too small."""
    kept: dict[int, Run] = {}
    for run in seeds:
        other = kept.get(run.seed)
        if other is None or run.rounds > other.rounds:
            kept[run.seed] = run
        if other is not None:
            used = kept[run.seed]
            left = other if used is run else run
            notes.append(
                f"{left.path} is left out: it has the configuration and the seed {run.seed} of {used.path},"
                f" which has {used.rounds} rounds against {left.rounds}."
            )
    return [kept[seed] for seed in sorted(kept)]


def _common(configs: list[Flat]) -> Flat:
    different = set(differing(configs))
    return {path: value for path, value in configs[0].items() if path not in different}


def _labels(methods: list[Method]) -> list[str]:
    """Names; where they are not unique, also the cost model, then other settings that differ, then a number."""
    deployed = [method.runs[0].config.get("driver") == "flower" for method in methods]
    labels = [_name(method) + ", on Flower" * flower for method, flower in zip(methods, deployed, strict=True)]
    if len({json.dumps(method.runs[0].config.get("cost"), sort_keys=True) for method in methods}) > 1:
        labels = [f"{label}, {_cost(method)}" for label, method in zip(labels, methods, strict=True)]
    for label in dict.fromkeys(labels):
        same = [i for i, other in enumerate(labels) if other == label]
        paths = _telling(differing([methods[i].config for i in same]))
        for i in same:
            config = methods[i].config
            said = [f"{path.rpartition('.')[2]} {shortened(config[path], 24)}" for path in paths if path in config]
            labels[i] = ", ".join([label, *said])
    taken: set[str] = set()
    for i, label in enumerate(labels):
        count = 1
        while labels[i] in taken:
            count += 1
            labels[i] = f"{label} ({count})"
        taken.add(labels[i])
    return labels


def _telling(paths: list[str]) -> list[str]:
    """The settings that a label may name; checksums only where nothing else differs."""
    useful = [p for p in paths if p.partition(".")[0] not in FREE_SECTIONS and p not in FREE_PATHS - {"data.checksum"}]
    named = [p for p in useful if p not in ("data.checksum", "model.text")]
    return (named or useful)[:4]


def _name(method: Method) -> str:
    config = method.runs[0].config
    sparsifier, controller = (shortened(config[part]["name"], 200) for part in ("sparsifier", "controller"))
    if method.dense and all((np.diff(run.up, prepend=0.0) > 0).all() for run in method.runs):
        return sparsifier  # whole vectors in every round: k has no effect
    k = config["controller"].get("k")
    if controller == "fixed" and isinstance(k, int | float):
        return f"{sparsifier}, k = {number(k)}"
    return f"{sparsifier}, {controller}"


def _cost(method: Method) -> str:
    cost = method.runs[0].config.get("cost")
    if not isinstance(cost, dict):
        return "no cost model"
    options = {name: value for name, value in cost.items() if name != "class"}
    if cost.get("class") == "NormalizedTime" and set(options) >= {"comm_time"}:
        said = f"comm_time {shortened(options['comm_time'], 24)}"
        return said if options.get("comp_time", 1) == 1 else f"{said}, comp_time {shortened(options['comp_time'], 24)}"
    return f"{cost.get('class')}({', '.join(f'{name} {shortened(value, 16)}' for name, value in options.items())})"


def cost_axis(methods: Sequence[Method]) -> str:
    """The title of the cost axis: what is counted, and its unit."""
    costs = [method.runs[0].config.get("cost") or {} for method in methods]
    kinds = {str(cost.get("class")) for cost in costs}
    if len(kinds) > 1:
        return "Cost (each method by its own cost model)"
    kind = kinds.pop()
    if kind == "NormalizedTime":
        one = all(cost.get("comp_time", 1) == 1 for cost in costs)
        return "Normalised time (computation of a round = 1)" if one else "Normalised time"
    return COST_AXES.get(kind, "Cost" if kind == "None" else f"Cost ({kind})")
