"""A training method: one choice for each slot, the step size, the seed, and how traffic is counted."""

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradsift import check, control, sparsify
from gradsift.control.base import Controller
from gradsift.control.fixed import Fixed
from gradsift.cost import CostModel, NormalizedTime, cost_model
from gradsift.describe import named, slot
from gradsift.errors import GradsiftError
from gradsift.local import LocalComputation, LocalSteps, local_computation
from gradsift.schedule import Constant, Schedule
from gradsift.server_step import SGD, ServerOptimizer, server_optimizer
from gradsift.sparsify.base import Sparsifier
from gradsift.values import Exact, FewBits, ValueType, value_type

SLOTS: dict[str, type] = {
    "sparsifier": Sparsifier,  # checked before ``local``, which it may have chosen
    "local": LocalComputation,
    "values": ValueType,
    "down_values": ValueType,
    "server": ServerOptimizer,
    "controller": Controller,
    "cost": CostModel,
}
EXACT_BITS = 32  # the number of bits of a value that is not rounded
EXACT, PLAIN = Exact(), SGD()
COUNTING = ("charge_probe", "dense_fallback", "encoded_bytes")


@dataclass(frozen=True)
class Method:
    """How a federation trains. ``Method.of`` makes one from names."""

    local: LocalComputation  # what a client adds to its residual in a round
    sparsifier: Sparsifier  # which elements travel
    values: ValueType  # how the values that clients send are rounded
    controller: Controller[Any]  # how many elements: k
    cost: CostModel  # what a round costs
    lr: Schedule
    seed: int = 0
    charge_probe: bool = False  # whether the cost includes the probe's message; the record always has its size
    dense_fallback: bool = False  # count a message as dense if that is smaller than index-value pairs
    encoded_bytes: bool = False  # count the bytes of the wire format instead of 4 for each index and each value
    down_values: ValueType = EXACT  # how the values that the server sends are rounded
    server: ServerOptimizer = PLAIN  # the step that is made of what the server sends

    def __post_init__(self) -> None:
        for name, kind in SLOTS.items():
            if not isinstance(getattr(self, name), kind):
                raise GradsiftError(f"{name} must be a {kind.__name__}, got {getattr(self, name)!r:.80}")
        object.__setattr__(self, "sparsifier", sparsify.unchecked(self.sparsifier))
        object.__setattr__(self, "controller", control.unchecked(self.controller))
        if not callable(self.lr):
            raise GradsiftError(f"lr must be a number or a function of the round, got {self.lr!r:.80}")
        check.integer("seed", self.seed, 0, 2**64 - 1)
        object.__setattr__(self, "seed", operator.index(self.seed))  # numpy integers overflow, and are not JSON
        for name in COUNTING:
            check.boolean(name, getattr(self, name))
        check_pair(self.sparsifier, self.controller)
        has_period = type(self.local).period is not LocalComputation.period
        if has_period and not self.sparsifier.dense:
            raise GradsiftError(
                f"local computation {self.local.name!r} needs a dense sparsifier, {self.sparsifier.name!r} is not;"
                " 'local-steps' works with every sparsifier"
            )

    @classmethod
    def of(
        cls,
        *,
        sparsifier: str | Sparsifier = "fab-top-k",
        controller: str | Controller[Any] = "planned",
        cost: str | CostModel | None = None,
        local: str | LocalComputation | None = None,
        values: str | ValueType = "exact",
        down_values: str | ValueType = "exact",
        server: str | ServerOptimizer = "sgd",
        lr: float | Schedule = 0.01,
        local_steps: int | None = None,
        bits: int | tuple[int, int] | None = None,
        **others: Any,
    ) -> "Method":
        """A method from names or objects; ``local`` defaults to the sparsifier's own choice.

        ``local_steps`` is short for ``local=LocalSteps(local_steps)``. ``bits``, up and down, are short for values and
        down_values of so many bits, and for counting the bytes of the wire format; 32 are exact values.
        """
        chosen = sparsify.sparsifier(sparsifier) if isinstance(sparsifier, str) else sparsifier
        if local_steps is not None:
            if local is not None:
                raise GradsiftError(f"give either local_steps, {local_steps!r}, or local, {local!r:.80}")
            local = LocalSteps(local_steps)
        if local is None:
            local = getattr(chosen, "local", None)
        if bits is not None:
            if values != "exact" or down_values != "exact":
                raise GradsiftError(f"give either bits, {bits!r}, or values and down_values")
            values, down_values = of_bits(bits)
            others.setdefault("encoded_bytes", True)
        lr = lr.item() if isinstance(lr, np.number) else lr
        return cls(
            local_computation(local) if isinstance(local, str) else local,  # type: ignore[arg-type]  # checked by cls
            chosen,
            value_type(values) if isinstance(values, str) else values,
            control.controller(controller) if isinstance(controller, str) else controller,
            cost_model(cost) if isinstance(cost, str) else NormalizedTime(comm_time=10) if cost is None else cost,
            Constant(lr) if isinstance(lr, int | float) else lr,
            down_values=value_type(down_values) if isinstance(down_values, str) else down_values,
            server=server_optimizer(server) if isinstance(server, str) else server,
            **others,
        )

    @property
    def plain_step(self) -> bool:
        """Whether the weights move by lr times the merged gradient, and nothing else: the paper's equation (1)."""
        return type(self.down_values) is Exact and self.server == PLAIN

    def describe(self) -> dict[str, Any]:
        """The slots and the step size as JSON values; two runs of one method have the same."""
        slots = {name: slot(getattr(self, name)) for name in SLOTS if name != "cost"}
        return slots | {"cost": named(self.cost), "lr": named(self.lr)}


def of_bits(bits: int | tuple[int, int]) -> tuple[ValueType, ValueType]:
    """The value types up and down for numbers of bits; one number is for both."""
    both = tuple(bits) if isinstance(bits, tuple | list) else (bits, bits)
    if len(both) != 2 or not all(type(one) is int and (1 <= one <= 8 or one == EXACT_BITS) for one in both):
        raise GradsiftError(f"bits must be 1 to 8, or 32 for exact values, up and down, got {bits!r:.80}")
    up, down = (Exact() if one == EXACT_BITS else FewBits(one) for one in both)
    return up, down


def check_pair(sparsifier: Sparsifier, controller: Controller[Any]) -> None:
    """Refuse a controller that varies k with a dense sparsifier, whose messages do not depend on k."""
    if not isinstance(sparsifier, Sparsifier):
        raise GradsiftError(f"sparsifier must be a Sparsifier, got {sparsifier!r}")
    if not isinstance(controller, Controller):
        raise GradsiftError(f"controller must be a Controller, got {controller!r}")
    if not sparsifier.dense:
        return
    if controller.varies:
        raise GradsiftError(
            f"sparsifier {sparsifier.name!r} is dense and accepts only a fixed k;"
            f" controller {controller.name!r} varies it"
        )
    fixed = control.unchecked(controller)
    if isinstance(fixed, Fixed) and fixed.k != int(fixed.k):
        # Stochastic rounding would give FedAvg two different periods.
        raise GradsiftError(f"sparsifier {sparsifier.name!r} is dense and accepts only an integer k, got {fixed.k!r}")
