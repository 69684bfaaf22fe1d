"""What an experiment of the paper is: a name, a label in a figure, and every setting of a run, when to stop included.

Experiments that differ in nothing but when they stop have the same name and share one run, which then serves all of
them: the longer figure goes on where the shorter one ended.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradsift.cli.options import RUN
from gradsift.errors import GradsiftError
from gradsift.recipes.scale import Scale, Setup
from gradsift.recipes.trajectory import Trajectory
from gradsift.simulation.settings import StopWhen

STOPS = ("rounds", "cost_budget", "target_loss", "target_accuracy")
NO_LIMIT = 1_000_000  # rounds, where the budget ends a run
# Evaluations come at about equal steps of cost: methods with dear rounds have more of them.
DEAR = {"send-all": 5, "unidirectional-top-k": 4, "value": 4, "exp3": 4, "continuous-bandit": 4}


@dataclass(frozen=True)
class Switch:
    """Figure 1: k of the settings until the global loss is ``loss`` or less, then ``k`` for so many ``rounds``."""

    loss: float
    k: float
    rounds: int


@dataclass(frozen=True)
class Experiment:
    """One run: everything ``gradsift.simulate`` needs, as the settings that ``gradsift run`` would take."""

    name: str  # of its folder; with its seed
    label: str  # in figures and tables; the same for all seeds
    settings: Mapping[str, Any] = field(repr=False)
    switch: Switch | None = None

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.settings["seed"])

    @property
    def identity(self) -> dict[str, Any]:
        """What a run is, apart from when it stops and where it is made: JSON values, kept with the run."""
        free = (*STOPS, "device", "checkpoint_every")
        said = {name: value for name, value in self.settings.items() if name not in free}
        switch = self.switch and {"loss": self.switch.loss, "k": self.switch.k}
        made: dict[str, Any] = json.loads(json.dumps(said | {"switch": switch}))
        return made

    @property
    def stop(self) -> StopWhen:
        """When its settings say that it stops."""
        return StopWhen(**{name: self.settings[name] for name in STOPS})

    def remaining(self, done: Trajectory | None) -> StopWhen | None:
        """How far to go on from what is done; None: it is finished."""
        if done is None or (done.switched_after is None and done.reached(self.stop) is None):
            return self.stop
        if self.switch is None:
            return None
        after = self.switched_after(done)
        if after is None:  # the limit of rounds came before the loss
            return None
        last = StopWhen(rounds=after + self.switch.rounds)
        return None if done.reached(last) else last

    def switched_after(self, done: Trajectory) -> int | None:
        """The round after which k is that of the switch: the first evaluation that met the loss."""
        assert self.switch is not None
        if done.switched_after is not None:
            return done.switched_after
        met = done.evaluated[done.loss <= self.switch.loss]
        return int(met[0]) if len(met) else None


def method(
    scale: Scale,
    setup: Setup,
    seed: int,
    label: str,
    *,
    sparsifier: str = "fab-top-k",
    controller: str = "fixed",
    k: float | None = None,
    comm_time: float = 10.0,
    options: Mapping[str, Any] | None = None,
    cost: tuple[str, str, Mapping[str, float]] | None = None,
    every: int | None = None,
    **stop: Any,
) -> Experiment:
    """One method on a set-up.

    ``cost`` is (a short name, the cost model, its options) where it is not the paper's clock. The clock is part of a
    name only where k depends on it. ``every`` is how often it is evaluated, where that is not the figures' choice.
    """
    settings = {option.name: option.default for option in RUN} | dict(setup.settings)
    parts = {part: dict(chosen) for part, chosen in settings.get("set", {}).items() if part != "controller"}
    if options:
        parts["controller"] = dict(options)
    settings |= {"sparsifier": sparsifier, "controller": controller, "seed": seed, "comm_time": comm_time}
    usual = _every(scale.eval_every, sparsifier, controller)
    settings |= {"eval_every": every or usual, "rounds": NO_LIMIT}
    if cost is not None:
        settings["cost"], parts["cost"] = cost[1], dict(cost[2])
    if controller == "fixed":
        settings["k"] = k
        tag = "" if sparsifier == "send-all" else f"-k{k:g}"
    else:
        tag = f"-{controller}-" + (f"comm{comm_time:g}" if cost is None else cost[0])
        tag += "".join(f"-{name}{value:g}" for name, value in (options or {}).items())
    tag += "" if every in (None, usual) else f"-every{every}"
    unknown = set(stop) - set(STOPS)
    if unknown:
        raise GradsiftError(f"no rule to stop: {sorted(unknown)[0]!r}")
    settings |= {"set": parts, **stop}
    return Experiment(f"{setup.name}-{sparsifier}{tag}-seed{seed}", label, settings)


def _every(rounds: int, sparsifier: str, controller: str) -> int:
    return max(1, rounds // DEAR.get(sparsifier, DEAR.get(controller, 1)))
