"""An experiment is one run of a figure: a name, a label, and every setting of the run, also when it stops.

Experiments that differ only in when they stop have the same name and share one run: the longer experiment continues
where the shorter one ended.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradsift.errors import GradsiftError
from gradsift.experiments.settings import DEFAULTS
from gradsift.records.stop import STOPS, StopWhen

if TYPE_CHECKING:
    from gradsift.experiments.trajectory import Trajectory

NO_LIMIT = 1_000_000  # rounds, where the budget ends a run
# Methods with costly rounds are evaluated so many times as often, for evaluations at about equal steps of cost. By
# name: it is a choice of the figures and part of what their published runs are, not a property of the methods.
MORE_OFTEN = {"send-all": 5, "unidirectional-top-k": 4, "value": 4, "exp3": 4, "continuous-bandit": 4}
# The methods as the paper's figures call them.
SPARSIFIERS = {
    "fab-top-k": "FAB-top-k",
    "fub-top-k": "FUB-top-k",
    "unidirectional-top-k": "unidirectional top-k",
    "periodic-k": "periodic-k",
    "fedavg": "FedAvg",
    "send-all": "always send all",
}
CONTROLLERS = {
    "extended-sign": "Algorithm 3",
    "sign": "Algorithm 2",
    "value": "value-based descent",
    "exp3": "EXP3",
    "continuous-bandit": "continuous bandit",
}


@dataclass(frozen=True)
class Setup:
    """A data set and its model, as settings of ``gradsift run``."""

    name: str  # the names of its runs begin with it
    dim: int
    settings: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Switch:
    """A change of k, for Figure 1: once the global loss is at most ``loss``, use ``k`` for ``rounds`` more rounds."""

    loss: float
    k: float
    rounds: int


@dataclass(frozen=True)
class Experiment:
    """One run: everything ``gradsift.simulate`` needs, as the settings that ``gradsift run`` would take."""

    name: str  # of its folder; it includes the seed
    label: str  # in figures and tables; the same for all seeds
    settings: Mapping[str, Any] = field(repr=False)
    switch: Switch | None = None

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.settings["seed"])

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the course of the run, as JSON values; not when it stops, nor on which device it runs."""
        left_out = (*STOPS, "device", "checkpoint_every")
        said = {name: value for name, value in self.settings.items() if name not in left_out}
        switch = self.switch and {"loss": self.switch.loss, "k": self.switch.k}
        made: dict[str, Any] = json.loads(json.dumps(said | {"switch": switch}))
        return made

    @property
    def stop(self) -> StopWhen:
        """The stop rules of its settings."""
        return StopWhen(**{name: self.settings[name] for name in STOPS})

    def remaining(self, done: "Trajectory | None") -> StopWhen | None:
        """When to stop if the run is continued from what is done; None if it is finished."""
        if done is None or (done.switched_after is None and done.reached(self.stop) is None):
            return self.stop
        if self.switch is None:
            return None
        after = self.switched_after(done)
        if after is None:  # the limit of rounds came before the loss
            return None
        last = StopWhen(rounds=after + self.switch.rounds)
        return None if done.reached(last) else last

    def switched_after(self, done: "Trajectory") -> int | None:
        """The round after which k changes: that of the first evaluation at the loss of the switch, or below it."""
        assert self.switch is not None
        if done.switched_after is not None:
            return done.switched_after
        met = done.evaluated[done.loss <= self.switch.loss]
        return int(met[0]) if len(met) else None


def method(
    setup: Setup,
    seed: int,
    label: str,
    *,
    eval_every: int,
    evaluate_alike: bool = False,
    sparsifier: str = "fab-top-k",
    controller: str = "fixed",
    k: float | None = None,
    comm_time: float = 10.0,
    options: Mapping[str, Any] | None = None,
    cost: tuple[str, str, Mapping[str, float]] | None = None,
    **stop: Any,
) -> Experiment:
    """One method on a set-up.

    ``cost`` is (a short name, the cost model, its options) where it is not normalised time. It is part of the run's
    name only where k depends on it. ``evaluate_alike`` evaluates methods with costly rounds no more often than others.
    """
    from gradsift.experiments.build import ignores_k  # needs torch, which a list of figures does not

    settings = DEFAULTS | dict(setup.settings)
    parts = {part: dict(chosen) for part, chosen in settings.get("set", {}).items() if part != "controller"}
    if options:
        parts["controller"] = dict(options)
    usual = max(1, eval_every // MORE_OFTEN.get(sparsifier, MORE_OFTEN.get(controller, 1)))
    every = eval_every if evaluate_alike else usual
    settings |= {"sparsifier": sparsifier, "controller": controller, "seed": seed, "comm_time": comm_time}
    settings |= {"eval_every": every, "rounds": NO_LIMIT, "set": parts}
    if cost is not None:
        settings["cost"], parts["cost"] = cost[1], dict(cost[2])
    if controller == "fixed":
        settings["k"] = k
        tag = "" if ignores_k(settings) else f"-k{k:g}"
    else:
        tag = f"-{controller}-" + (f"comm{comm_time:g}" if cost is None else cost[0])
        tag += "".join(f"-{name}{value:g}" for name, value in (options or {}).items())
    tag += "" if every == usual else f"-every{every}"
    unknown = set(stop) - set(STOPS)
    if unknown:
        raise GradsiftError(f"no rule to stop: {sorted(unknown)[0]!r}")
    return Experiment(f"{setup.name}-{sparsifier}{tag}-seed{seed}", label, settings | stop)
