"""An experiment is one run of a figure: its name, its label and all its settings, including when it stops.

Experiments that differ only in when they stop have the same name and share a run folder: the longer experiment resumes
the run of the shorter one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradsift.errors import GradsiftError
from gradsift.experiments.settings import DEFAULTS
from gradsift.records.stop import STOPS, StopWhen

if TYPE_CHECKING:
    from gradsift.experiments.trajectory import Trajectory

NO_LIMIT = 1_000_000  # rounds of a run that a cost budget ends
# Methods with costly rounds are evaluated this many times as often, so that evaluations are at similar steps of cost.
# This choice is part of the published runs of the figures.
MORE_OFTEN = {"send-all": 5, "unidirectional-top-k": 4, "value": 4, "exp3": 4, "continuous-bandit": 4}
# Names in the paper's figures.
SPARSIFIERS = {
    "fab-top-k": "FAB-top-k",
    "fub-top-k": "FUB-top-k",
    "unidirectional-top-k": "unidirectional top-k",
    "periodic-k": "periodic-k",
    "fedavg": "FedAvg",
    "send-all": "always send all",
}
CONTROLLERS = {
    "planned": "planned k",
    "extended-sign": "Algorithm 3",
    "sign": "Algorithm 2",
    "value": "value-based descent",
    "exp3": "EXP3",
    "continuous-bandit": "continuous bandit",
}


@dataclass(frozen=True)
class Setup:
    """A data set and its model, as settings of ``gradsift run``."""

    name: str  # the first part of the names of its runs
    dim: int
    settings: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Switch:
    """A change of k in Figure 1: when the global loss is at most ``loss``, use ``k`` for ``rounds`` more rounds."""

    loss: float
    k: float
    rounds: int


@dataclass(frozen=True)
class Experiment:
    """One run, as the settings that ``gradsift run`` takes."""

    name: str  # of its run folder; it includes the seed
    label: str  # in figures and tables; the same for all seeds
    settings: Mapping[str, Any] = field(repr=False)
    switch: Switch | None = None

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.settings["seed"])

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that decide the numbers of the run, as JSON values: not when it stops, nor its device."""
        left_out = (*STOPS, "device", "checkpoint_every")
        identity: dict[str, Any] = {name: value for name, value in self.settings.items() if name not in left_out}
        identity["switch"] = self.switch and {"loss": self.switch.loss, "k": self.switch.k}
        return dict(json.loads(json.dumps(identity)))

    @property
    def stop(self) -> StopWhen:
        """The stop rules in its settings."""
        return StopWhen(**{name: self.settings[name] for name in STOPS})

    def remaining(self, done: "Trajectory | None") -> StopWhen | None:
        """Return when to stop if the run is resumed, or None if the run is complete."""
        if done is None or (done.switched_after is None and done.reached(self.stop) is None):
            return self.stop
        after = self.switched_after(done)
        if self.switch is None or after is None:  # None: it ended before the loss of the switch
            return None
        last = StopWhen(rounds=after + self.switch.rounds)
        return None if done.reached(last) else last

    def switched_after(self, done: "Trajectory") -> int | None:
        """Return the first round that was evaluated at or below the loss of the switch; None if there is none yet."""
        if self.switch is None or done.switched_after is not None:
            return done.switched_after
        met = done.evaluated[done.loss <= self.switch.loss]
        return int(met[0]) if len(met) else None


def along(setup: Setup, local_steps: int | None, bits: Sequence[int] | None, encoded_bytes: bool = False) -> Setup:
    """The set-up with so many local steps a round and bits of a value; its runs have names of their own."""
    name, settings = setup.name, dict(setup.settings)
    if local_steps is not None:
        name, settings["local_steps"] = f"{name}-steps{local_steps}", local_steps
    if bits is not None:
        name, settings["bits"] = f"{name}-bits{'-'.join(map(str, bits))}", list(bits)
    elif encoded_bytes:
        name += "-encoded"
    return Setup(name, setup.dim, {**settings, "encoded_bytes": encoded_bytes or bits is not None})


def in_short(option: Any) -> str:
    """An option of a controller as text: 10.0 is "10"."""
    return f"{option:g}" if isinstance(option, float | int) else str(option)


def make_experiment(
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
    cost: tuple[str, Mapping[str, Any]] | None = None,
    **stop: Any,
) -> Experiment:
    """Make the experiment of a sparsifier and a controller with its ``options`` on a set-up, and name its run.

    ``cost`` is a cost model and its options, if it is not normalised time. It is part of the run's name only if k
    depends on it. With ``evaluate_alike``, methods with costly rounds are not evaluated more often than others.
    """
    from gradsift.experiments.build import ignores_k  # needs torch, which a list of figures does not

    if unknown := set(stop) - set(STOPS):
        raise GradsiftError(f"unknown stop rule {min(unknown)!r}")
    settings = DEFAULTS | dict(setup.settings)
    parts = {part: dict(chosen) for part, chosen in settings.get("set", {}).items() if part != "controller"}
    if options:
        parts["controller"] = dict(options)
    usual = max(1, eval_every // MORE_OFTEN.get(sparsifier, MORE_OFTEN.get(controller, 1)))
    every = eval_every if evaluate_alike else usual
    settings |= {"sparsifier": sparsifier, "controller": controller, "seed": seed, "comm_time": comm_time}
    settings |= {"eval_every": every, "rounds": NO_LIMIT, "set": parts}
    if cost is not None:
        settings["cost"], parts["cost"] = cost[0], dict(cost[1])
    if controller == "fixed":
        settings["k"] = k
        tag = "" if ignores_k(settings) else f"-k{k:g}"
    else:
        tag = f"-{controller}-" + (f"comm{comm_time:g}" if cost is None else cost[0])
        tag += "".join(f"-{name}{in_short(value)}" for name, value in (options or {}).items())
    tag += "" if every == usual else f"-every{every}"
    return Experiment(f"{setup.name}-{sparsifier}{tag}-seed{seed}", label, settings | stop)
