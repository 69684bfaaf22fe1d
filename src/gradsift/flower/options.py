"""Checks the arguments of ``SparseStrategy``: those that all Flower strategies take, and those of the method."""

from dataclasses import dataclass
from logging import INFO
from typing import Any

import torch
from flwr.app import ArrayRecord
from flwr.supercore import log
from torch import nn

from gradsift import check, check_tensors, local, round, server_step, sparsify, values
from gradsift.control.fixed import Fixed
from gradsift.describe import plain, qualified_name, text
from gradsift.errors import GradsiftError
from gradsift.flower.layout import Layout
from gradsift.flower.metrics import Aggregate
from gradsift.flower.protocol import BUFFERS, FULL, GRADIENT, RECORD, Order, client_slots
from gradsift.flower.rounds import Rounds
from gradsift.method import COUNTING, Method

REGISTERED = {
    "sparsifier": sparsify.registered,
    "local": local.registered,
    "values": values.registered,
    "server": server_step.registered,
}


@dataclass(eq=False, repr=False, kw_only=True)
class FlowerArguments:
    """The arguments that Flower's own strategies take too, with the same meaning."""

    fraction_train: float = 1.0
    fraction_evaluate: float = 1.0
    min_train_nodes: int = 2
    min_evaluate_nodes: int = 2
    min_available_nodes: int = 2
    weighted_by_key: str = "num-examples"
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    train_metrics_aggr_fn: Aggregate | None = None
    evaluate_metrics_aggr_fn: Aggregate | None = None

    def __post_init__(self) -> None:
        """Refuse bad values by name."""
        for name in FlowerArguments.__annotations__:
            value = getattr(self, name)
            if name.startswith("fraction_"):
                check.real(name, value, 0, 1)
            elif name.startswith("min_"):
                check.integer(name, value, 0)
            elif name.endswith("_fn"):
                if value is not None and not callable(value):
                    raise GradsiftError(f"{name} must be a function, got {value!r:.80}")
            elif not isinstance(value, str) or not value or value in (RECORD, FULL, BUFFERS, GRADIENT):
                raise GradsiftError(f"{name} must be a name that gradsift does not use itself, got {value!r:.80}")
        if self.arrayrecord_key == self.configrecord_key:
            raise GradsiftError(f"arrayrecord_key and configrecord_key must differ, got {self.arrayrecord_key!r}")


@dataclass(frozen=True)
class Options:
    """The other arguments of a strategy: the method, and how Flower runs it."""

    model: str  # the name of the model's class
    layout: Layout
    method: Method
    fallback: Method  # with a fixed k, for a run in which no client has a probe
    exchanges: int
    buffers: str

    @classmethod
    def of(
        cls, model: nn.Module, *, controller: Any, k: float | None, exchanges: int, buffers: str, **slots: Any
    ) -> "Options":
        """Options from names or objects; ``slots`` are further arguments of ``Method.of``."""
        if not isinstance(model, nn.Module):
            raise GradsiftError(f"model must be a torch.nn.Module, got {model!r:.80}")
        layout = Layout.of(model)
        fallback = Method.of(**slots, controller=Fixed(max(1, layout.dim // 100) if k is None else k))
        if controller is None:
            controller = "fixed" if fallback.sparsifier.dense or k is not None else "planned"
        method = fallback if controller == "fixed" else Method.of(**slots, controller=controller)
        _check_client_slots(method)
        _check_measured(method, exchanges)
        check.integer("seed", method.seed, 0, 2**63 - 1)
        check.integer("exchanges", exchanges, 1, 2)
        if buffers not in ("refuse", "average"):
            raise GradsiftError(f"buffers must be 'refuse' or 'average', got {buffers!r}")
        for candidate in (method, fallback):
            candidate.controller.init(layout.dim, candidate.seed)  # refuses a k that is out of range
        return cls(qualified_name(type(model)), layout, method, fallback, exchanges, buffers)

    @property
    def unchanging(self) -> dict[str, str]:
        """The options that a continued run must have in common with its checkpoint."""
        names = ("seed", "sparsifier", "controller", "local", "values", "down_values", "server")
        parts = {name: getattr(self.method, name) for name in names} | {"exchanges": self.exchanges}
        return {name: text(part) for name, part in parts.items()}

    @property
    def changeable(self) -> dict[str, str]:
        """The options that may differ in a continued run."""
        return {name: text(getattr(self.method, name)) for name in ("lr", "cost", *COUNTING)}

    def start(self, arrays: ArrayRecord, can_probe: bool) -> Rounds:
        """The rounds of a new run; k is fixed unless some client can report losses."""
        state_dict = dict(arrays.to_torch_state_dict())
        weights = self.layout.flatten(state_dict, "the initial arrays")
        check_tensors.finite("the initial weights", weights)
        method = self.method if can_probe or not self.method.controller.learns else self.fallback
        self.log_controller(method)
        non_trainable = {name: value.clone() for name, value in self.layout.non_trainable(state_dict).items()}
        changed = torch.zeros(len(weights), dtype=torch.int32)
        return Rounds(method, round.start(method, weights), non_trainable, changed)

    def log_controller(self, method: Method) -> None:
        """Log how the k of a run is chosen."""
        dim, controller = self.layout.dim, method.controller
        if controller.learns or controller.weighs:
            log(INFO, "gradsift: k, at most %d, is chosen by %r to lower %r", dim, controller, method.cost)
        else:
            why = ": no client has a probe" if self.method.controller.learns else ""
            log(INFO, "gradsift: k, at most %d, is set by %r%s", dim, controller, why)


def _check_measured(method: Method, exchanges: int) -> None:
    """Refuse a measured cost where the time that it needs cannot be measured."""
    if not method.cost.measured:
        return
    if method.controller.probes:
        raise GradsiftError(
            f"controller {method.controller.name!r} compares each round with one at a smaller k, which is not made: its"
            f" time cannot be measured, as {method.cost!r} needs; use controller 'planned', or cost 'link-time'"
        )
    if exchanges == 2:
        raise GradsiftError(f"{method.cost!r} needs exchanges=1: a second exchange takes its time after the merge")


def _check_client_slots(method: Method) -> None:
    """Refuse a method whose parts the clients cannot make from the names and options that they receive."""
    for slot, registered in REGISTERED.items():
        part = getattr(method, slot)
        if not registered(part):
            raise GradsiftError(f"{part!r} is not registered: the clients find the {slot} by its name")
    try:
        theirs = Order("hello", "", "", 1, slots=client_slots(method)).method()
    except (TypeError, ValueError) as problem:  # an option that is not JSON, or not the name of a field
        raise GradsiftError(f"the clients cannot make the parts of this method: {problem}") from problem
    for slot in REGISTERED:
        part = getattr(method, slot)
        if plain(vars(part)) != plain(vars(getattr(theirs, slot))):
            raise GradsiftError(f"the clients would make {part!r} without its options: make them fields of a dataclass")
