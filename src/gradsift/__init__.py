"""Federated learning that sends only the gradient elements that matter, and learns how many that is.

The core of Han, Wang, Leung, *Adaptive Gradient Sparsification for Efficient Federated Learning* (ICDCS 2020): a
sparsifier (upload, merge, settle) says what is sent, a controller says how much, a cost model says what it costs.

Names are imported when they are first used: ``gradsift --help`` should not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gradsift.version import __version__

if TYPE_CHECKING:
    from gradsift.checked import densify, difference, stack, top_k, weighted_sum
    from gradsift.control import (
        Controller,
        Observation,
        Proposal,
        Search,
        controller,
        controllers,
        register_controller,
        round_k,
        round_probe_k,
    )
    from gradsift.cost import CostModel, Energy, LinkTime, Money, NormalizedTime, Traffic, WeightedSum
    from gradsift.data.federated import FederatedData
    from gradsift.errors import GradsiftError, RunError
    from gradsift.pairing import check_pair
    from gradsift.round import Round, apply
    from gradsift.simulation.run import Result, simulate
    from gradsift.simulation.schedule import Constant, Cosine, StepDecay
    from gradsift.simulation.settings import Settings
    from gradsift.sparse import Sparse
    from gradsift.sparsify import Sparsifier, register_sparsifier, sparsifier, sparsifiers

_WHERE = {
    "checked": ("densify", "difference", "stack", "top_k", "weighted_sum"),
    "control": ("Controller", "Observation", "Proposal", "Search", "controller", "controllers", "register_controller"),
    "control.rounding": ("round_k", "round_probe_k"),
    "cost": ("CostModel", "Energy", "LinkTime", "Money", "NormalizedTime", "Traffic", "WeightedSum"),
    "data.federated": ("FederatedData",),
    "errors": ("GradsiftError", "RunError"),
    "pairing": ("check_pair",),
    "round": ("Round", "apply"),
    "simulation.run": ("Result", "simulate"),
    "simulation.schedule": ("Constant", "Cosine", "StepDecay"),
    "simulation.settings": ("Settings",),
    "sparse": ("Sparse",),
    "sparsify": ("Sparsifier", "register_sparsifier", "sparsifier", "sparsifiers"),
}
_MODULE = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "Constant",
    "Controller",
    "Cosine",
    "CostModel",
    "Energy",
    "FederatedData",
    "GradsiftError",
    "LinkTime",
    "Money",
    "NormalizedTime",
    "Observation",
    "Proposal",
    "Result",
    "Round",
    "RunError",
    "Search",
    "Settings",
    "Sparse",
    "Sparsifier",
    "StepDecay",
    "Traffic",
    "WeightedSum",
    "__version__",
    "apply",
    "check_pair",
    "controller",
    "controllers",
    "densify",
    "difference",
    "register_controller",
    "register_sparsifier",
    "round_k",
    "round_probe_k",
    "simulate",
    "sparsifier",
    "sparsifiers",
    "stack",
    "top_k",
    "weighted_sum",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'gradsift' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gradsift.{_MODULE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
