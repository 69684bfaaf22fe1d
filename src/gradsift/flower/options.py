"""What a strategy was asked for, checked."""

import re
from dataclasses import dataclass
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord
from flwr.supercore import log
from torch import nn

from gradsift import check, check_tensors
from gradsift.control import Controller
from gradsift.control import controller as controller_named
from gradsift.control.fixed import Fixed
from gradsift.cost import CostModel, NormalizedTime
from gradsift.errors import GradsiftError
from gradsift.flower.layout import Layout
from gradsift.flower.protocol import BUFFERS, FULL, GRADIENT, RECORD
from gradsift.flower.rounds import Rounds
from gradsift.pairing import check_pair
from gradsift.simulation.schedule import Constant, Schedule
from gradsift.sparsify import Sparsifier, sparsifiers
from gradsift.sparsify import sparsifier as sparsifier_named
from gradsift.wire import VALUE_TYPES


@dataclass(frozen=True)
class Options:
    """The parts of a run, as objects."""

    layout: Layout
    sparsifier: Sparsifier
    controller: Controller[Any]
    fixed: Fixed  # in charge where no client can probe
    cost: CostModel
    lr: Schedule
    seed: int
    exchanges: int
    values: str
    buffers: str

    @classmethod
    def of(
        cls,
        model: nn.Module,
        sparsifier: str | Sparsifier,
        controller: str | Controller[Any] | None,
        cost: CostModel | None,
        k: float | None,
        lr: float | Schedule,
        seed: int,
        exchanges: int,
        values: str | None,
        buffers: str,
    ) -> "Options":
        """Names become objects; what cannot work is refused now."""
        if not isinstance(model, nn.Module):
            raise GradsiftError(f"model must be a torch.nn.Module, got {model!r:.80}")
        layout = Layout.of(model)
        method = sparsifier_named(sparsifier) if isinstance(sparsifier, str) else sparsifier
        if not isinstance(method, Sparsifier):
            raise GradsiftError(f"sparsifier must be a name or a Sparsifier, got {sparsifier!r:.80}")
        fixed = Fixed(max(1, layout.dim // 100) if k is None else k)
        if controller is None:
            controller = fixed if method.dense else "extended-sign"
        elif controller == "fixed":
            controller = fixed
        control = controller_named(controller) if isinstance(controller, str) else controller
        check_pair(method, control)
        check_pair(method, fixed)
        if method.name not in sparsifiers():
            raise GradsiftError(f"{method!r} is not registered: the clients find a sparsifier by its name")
        check.integer("seed", seed, 0, 2**63 - 1)
        check.integer("exchanges", exchanges, 1, 2)
        if values is not None and values not in VALUE_TYPES:
            raise GradsiftError(f"values must be one of {', '.join(VALUE_TYPES)}, got {values!r}")
        if buffers not in ("refuse", "average"):
            raise GradsiftError(f"buffers must be 'refuse' or 'average', got {buffers!r}")
        if cost is not None and not isinstance(cost, CostModel):
            raise GradsiftError(f"cost must be a CostModel, got {cost!r:.80}")
        if not (callable(lr) or isinstance(lr, int | float)):
            raise GradsiftError(f"lr must be a number or a function of the round, got {lr!r:.80}")
        control.init(dim=layout.dim, seed=seed)
        fixed.init(dim=layout.dim, seed=seed)
        return cls(
            layout,
            method,
            control,
            fixed,
            NormalizedTime(comm_time=10) if cost is None else cost,
            Constant(lr) if isinstance(lr, int | float) else lr,
            seed,
            exchanges,
            values or "",
            buffers,
        )

    @property
    def controllers(self) -> list[Controller[Any]]:
        """Those that may be in charge."""
        return [self.controller, self.fixed]

    @property
    def fixed_for_good(self) -> dict[str, str]:
        """What a run that continues another must have in common with it."""
        parts = {
            "seed": self.seed,
            "exchanges": self.exchanges,
            "values": self.values or None,
            "sparsifier": self.sparsifier,
            "controller": self.controller,
        }
        return {name: said(part) for name, part in parts.items()}

    @property
    def may_change(self) -> dict[str, str]:
        """What such a run may have otherwise."""
        return {"lr": said(self.lr), "cost": said(self.cost)}

    def rounds(self, arrays: ArrayRecord, can_probe: bool, controller: Controller[Any] | None = None) -> Rounds:
        """The run from its initial arrays; the start-up line says how k is chosen."""
        state = dict(arrays.to_torch_state_dict())
        weights = self.layout.flatten(state, "the initial arrays")
        check_tensors.finite("the initial weights", weights)
        if controller is None:
            controller = self.controller if can_probe or not self.controller.learns else self.fixed
        if controller.learns:
            log(INFO, "gradsift: k, of %d, is chosen by %r to lower %r", self.layout.dim, controller, self.cost)
        else:
            why = ": no client was given a probe" if self.controller.learns else ""
            log(INFO, "gradsift: k, of %d, is fixed by %r%s", self.layout.dim, controller, why)
        rest = {name: value.clone() for name, value in self.layout.rest(state).items()}
        return Rounds(weights, rest, self.sparsifier, controller, self.cost, self.lr, self.seed)


def said(part: object) -> str:
    """``part`` in words that are the same in the next process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(part))


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
