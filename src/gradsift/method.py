"""A training method: one choice for each of five slots, and what every round needs besides."""

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradsift import check, control, sparsify
from gradsift.control.base import Controller
from gradsift.control.fixed import Fixed
from gradsift.cost import CostModel, NormalizedTime, cost_model
from gradsift.describe import named, options
from gradsift.errors import GradsiftError
from gradsift.local import LocalComputation, local_computation
from gradsift.schedule import Constant, Schedule
from gradsift.sparsify.base import Sparsifier
from gradsift.values import ValueType, value_type

SLOTS: dict[str, type] = {
    "sparsifier": Sparsifier,  # first to be checked: it may have chosen ``local``
    "local": LocalComputation,
    "values": ValueType,
    "controller": Controller,
    "cost": CostModel,
}
COUNTING = ("charge_probe", "dense_fallback", "encoded_bytes")


@dataclass(frozen=True)
class Method:
    """How a federation trains: five slots, the step size, the seed, and how traffic is counted."""

    local: LocalComputation  # what a client adds to its residual in a round
    sparsifier: Sparsifier  # which elements travel
    values: ValueType  # how their values are rounded
    controller: Controller[Any]  # how many of them there are
    cost: CostModel  # what a round costs
    lr: Schedule
    seed: int = 0
    charge_probe: bool = False  # whether the probe's message counts in the cost; it is recorded always
    dense_fallback: bool = False  # count a message as dense where that is smaller than index-value pairs
    encoded_bytes: bool = False  # count the bytes of the wire format, not 4 for each index and value

    def __post_init__(self) -> None:
        """Refuse slots that do not go together."""
        for name, kind in SLOTS.items():
            if not isinstance(getattr(self, name), kind):
                raise GradsiftError(f"{name} must be a {kind.__name__}, got {getattr(self, name)!r:.80}")
        object.__setattr__(self, "sparsifier", sparsify.unchecked(self.sparsifier))
        object.__setattr__(self, "controller", control.unchecked(self.controller))
        if not callable(self.lr):
            raise GradsiftError(f"lr must be a number or a function of the round, got {self.lr!r:.80}")
        check.integer("seed", self.seed, 0, 2**64 - 1)
        object.__setattr__(self, "seed", operator.index(self.seed))  # numpy's overflow, and are not JSON
        for name in COUNTING:
            check.boolean(name, getattr(self, name))
        check_pair(self.sparsifier, self.controller)
        if _has_period(self.local) and not self.sparsifier.dense:
            raise GradsiftError(
                f"local computation {self.local.name!r} needs a dense sparsifier, {self.sparsifier.name!r} is not;"
                " 'local-steps' goes with every one"
            )

    @classmethod
    def of(
        cls,
        *,
        sparsifier: str | Sparsifier = "fab-top-k",
        controller: str | Controller[Any] = "extended-sign",
        cost: str | CostModel | None = None,
        local: str | LocalComputation | None = None,
        values: str | ValueType = "exact",
        lr: float | Schedule = 0.01,
        **others: Any,
    ) -> "Method":
        """A method from names or objects; ``local`` is by default what goes with the sparsifier."""
        chosen = sparsify.sparsifier(sparsifier) if isinstance(sparsifier, str) else sparsifier
        if local is None:
            local = getattr(chosen, "local", None)
        lr = lr.item() if isinstance(lr, np.number) else lr
        return cls(
            local_computation(local) if isinstance(local, str) else local,  # type: ignore[arg-type]  # checked there
            chosen,
            value_type(values) if isinstance(values, str) else values,
            control.controller(controller) if isinstance(controller, str) else controller,
            cost_model(cost) if isinstance(cost, str) else NormalizedTime(comm_time=10) if cost is None else cost,
            Constant(lr) if isinstance(lr, int | float) else lr,
            **others,
        )

    def describe(self) -> dict[str, Any]:
        """The slots and the step size as JSON values: what two runs of one method have in common."""
        parts = {name: getattr(self, name) for name in ("local", "sparsifier", "values", "controller")}
        slots = {name: {"name": part.name, **options(part)} for name, part in parts.items()}
        return slots | {"cost": named(self.cost), "lr": named(self.lr)}


def check_pair(sparsifier: Sparsifier, controller: Controller[Any]) -> None:
    """Refuse, by name, a controller that varies k over a dense sparsifier, whose messages do not depend on it."""
    if not isinstance(sparsifier, Sparsifier):
        raise GradsiftError(f"not a sparsifier: {sparsifier!r}")
    if not isinstance(controller, Controller):
        raise GradsiftError(f"not a controller: {controller!r}")
    if not sparsifier.dense:
        return
    if controller.varies:
        raise GradsiftError(
            f"sparsifier {sparsifier.name!r} is dense and accepts only a fixed k;"
            f" controller {controller.name!r} varies it"
        )
    fixed = control.unchecked(controller)
    if isinstance(fixed, Fixed) and fixed.k != int(fixed.k):
        # Rounding would give two integers in turn, and FedAvg two periods.
        raise GradsiftError(f"sparsifier {sparsifier.name!r} is dense and accepts only an integer k, got {fixed.k!r}")


def _has_period(local: LocalComputation) -> bool:
    return type(local).period is not LocalComputation.period
