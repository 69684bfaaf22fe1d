"""What a strategy was asked for, checked."""

from dataclasses import dataclass, replace
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord
from flwr.supercore import log
from torch import nn

from gradsift import check, check_tensors, local, sparsify, values
from gradsift.control import Controller
from gradsift.control.fixed import Fixed
from gradsift.describe import plain, text
from gradsift.errors import GradsiftError
from gradsift.flower.layout import Layout
from gradsift.flower.protocol import BUFFERS, FULL, GRADIENT, RECORD, Order, client_slots
from gradsift.flower.rounds import Rounds
from gradsift.method import COUNTING, Method
from gradsift.sparsify import Sparsifier, sparsifier

FOUND_BY_NAME = {"sparsifier": sparsify.registered, "local": local.registered, "values": values.registered}


@dataclass(frozen=True)
class Options:
    """The parts of a run, as objects."""

    layout: Layout
    method: Method
    fixed: Fixed  # the controller where no client can probe
    exchanges: int
    buffers: str

    @classmethod
    def of(
        cls,
        model: nn.Module,
        *,
        controller: str | Controller[Any] | None,
        k: float | None,
        exchanges: int,
        buffers: str,
        **slots: Any,
    ) -> "Options":
        """Names become objects; what cannot work is refused now. ``slots`` are arguments of ``Method.of``."""
        if not isinstance(model, nn.Module):
            raise GradsiftError(f"model must be a torch.nn.Module, got {model!r:.80}")
        layout = Layout.of(model)
        fixed = Fixed(max(1, layout.dim // 100) if k is None else k)
        named = slots["sparsifier"]
        slots["sparsifier"] = chosen = sparsifier(named) if isinstance(named, str) else named
        dense = isinstance(chosen, Sparsifier) and chosen.dense
        if controller is None:
            controller = fixed if dense else "extended-sign"
        method = Method.of(**slots, controller=fixed if controller == "fixed" else controller)
        replace(method, controller=fixed)  # refused if the sparsifier cannot have it
        _check_clients_slots(method)
        check.integer("seed", method.seed, 0, 2**63 - 1)
        check.integer("exchanges", exchanges, 1, 2)
        if buffers not in ("refuse", "average"):
            raise GradsiftError(f"buffers must be 'refuse' or 'average', got {buffers!r}")
        method.controller.init(layout.dim, method.seed)
        fixed.init(layout.dim, method.seed)
        return cls(layout, method, fixed, exchanges, buffers)

    @property
    def controllers(self) -> list[Controller[Any]]:
        """Those that may choose k."""
        return [self.method.controller, self.fixed]

    @property
    def unchanging(self) -> dict[str, str]:
        """What a run that continues another must have in common with it."""
        names = ("seed", "sparsifier", "controller", "local", "values")
        parts = {name: getattr(self.method, name) for name in names} | {"exchanges": self.exchanges}
        return {name: text(part) for name, part in parts.items()}

    @property
    def changeable(self) -> dict[str, str]:
        """What may be different in such a run."""
        return {name: text(getattr(self.method, name)) for name in ("lr", "cost", *COUNTING)}

    def rounds(self, arrays: ArrayRecord, can_probe: bool, controller: Controller[Any] | None = None) -> Rounds:
        """The run from its initial arrays; the start-up line says how k is chosen."""
        state = dict(arrays.to_torch_state_dict())
        weights = self.layout.flatten(state, "the initial arrays")
        check_tensors.finite("the initial weights", weights)
        learns = self.method.controller.learns
        if controller is None:
            controller = self.method.controller if can_probe or not learns else self.fixed
        if controller.learns:
            log(INFO, "gradsift: k, of %d, is chosen by %r to lower %r", len(weights), controller, self.method.cost)
        else:
            why = ": no client was given a probe" if learns else ""
            log(INFO, "gradsift: k, of %d, is fixed by %r%s", len(weights), controller, why)
        rest = {name: value.clone() for name, value in self.layout.rest(state).items()}
        return Rounds(replace(self.method, controller=controller), weights, rest)


def _check_clients_slots(method: Method) -> None:
    """Refuse parts that the clients, who are told names and options, could not make, or would make otherwise."""
    for slot, registered in FOUND_BY_NAME.items():
        part = getattr(method, slot)
        if not registered(part):
            raise GradsiftError(f"{part!r} is not registered: the clients find the {slot} by its name")
    try:
        theirs = Order("hello", "", "", 1, slots=client_slots(method)).method()
    except (TypeError, ValueError) as problem:  # an option that is not JSON, or is not the name of a field
        raise GradsiftError(f"the clients cannot make the parts of this method: {problem}") from problem
    for slot in FOUND_BY_NAME:
        part = getattr(method, slot)
        if plain(vars(part)) != plain(vars(getattr(theirs, slot))):
            raise GradsiftError(f"the clients would make {part!r} without its options: make them fields of a dataclass")


def check_flowers(fractions: dict[str, float], counts: dict[str, int], keys: dict[str, str], **functions: Any) -> None:
    """The arguments that Flower's own strategies take too."""
    for name, fraction in fractions.items():
        check.real(name, fraction, 0, 1)
    for name, count in counts.items():
        check.integer(name, count, 0)
    for name, key in keys.items():
        if not isinstance(key, str) or not key or key in (RECORD, FULL, BUFFERS, GRADIENT):
            raise GradsiftError(f"{name} must be a name that gradsift does not use itself, got {key!r:.80}")
    if keys["arrayrecord_key"] == keys["configrecord_key"]:
        raise GradsiftError(f"arrayrecord_key and configrecord_key must differ, got {keys['arrayrecord_key']!r}")
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise GradsiftError(f"{name} must be a function, got {function!r:.80}")
