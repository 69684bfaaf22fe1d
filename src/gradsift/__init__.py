"""Federated learning that sends only the most important gradient elements, and learns how many to send.

A method has seven slots: what a client computes (``local``), which elements travel (``sparsifier``), how their values
are rounded up and down (``values``, ``down_values``), what step is made of them (``server``), how many travel
(``controller``) and what a round costs (``cost``). ``simulate`` trains with a
method over simulated clients, ``gradsift.flower`` over real ones; both run the round in ``gradsift.round``. The methods
are those of Han, Wang, Leung, *Adaptive Gradient Sparsification for Efficient Federated Learning* (ICDCS 2020).

Names are imported on first use, so that ``gradsift --help`` does not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gradsift.version import __version__

if TYPE_CHECKING:
    from gradsift.checked import densify, difference, stack, top_k, weighted_sum
    from gradsift.control import Controller, Observation, Proposal, Search, controller, controllers, register_controller
    from gradsift.control.rounding import round_k, round_probe_k
    from gradsift.cost import (
        CostModel,
        Energy,
        LinkTime,
        MeasuredTime,
        Money,
        NormalizedTime,
        Traffic,
        WeightedSum,
        cost_model,
        cost_models,
        register_cost_model,
    )
    from gradsift.data.federated import FederatedData
    from gradsift.errors import GradsiftError, RunError
    from gradsift.local import (
        LocalComputation,
        LocalSteps,
        OneGradient,
        local_computation,
        local_computations,
        register_local_computation,
    )
    from gradsift.method import Method, check_pair
    from gradsift.planning import Plan, plan
    from gradsift.records.record import Record
    from gradsift.schedule import Constant, Cosine, StepDecay
    from gradsift.server import apply
    from gradsift.server_step import (
        ServerOptimizer,
        register_server_optimizer,
        server_optimizer,
        server_optimizers,
    )
    from gradsift.simulation.run import Result, simulate
    from gradsift.simulation.settings import Settings
    from gradsift.sparse import Sparse
    from gradsift.sparsify import Round, Sparsifier, register_sparsifier, sparsifier, sparsifiers
    from gradsift.values import Exact, FewBits, ValueType, register_value_type, value_type, value_types

_NAMES = {
    "checked": "densify difference stack top_k weighted_sum",
    "control": "Controller Observation Proposal Search controller controllers register_controller",
    "control.rounding": "round_k round_probe_k",
    "cost": "CostModel Energy LinkTime MeasuredTime Money NormalizedTime Traffic WeightedSum cost_model cost_models"
    " register_cost_model",
    "data.federated": "FederatedData",
    "errors": "GradsiftError RunError",
    "local": "LocalComputation LocalSteps OneGradient local_computation local_computations register_local_computation",
    "method": "Method check_pair",
    "planning": "Plan plan",
    "records.record": "Record",
    "schedule": "Constant Cosine StepDecay",
    "server": "apply",
    "server_step": "ServerOptimizer register_server_optimizer server_optimizer server_optimizers",
    "simulation.run": "Result simulate",
    "simulation.settings": "Settings",
    "sparse": "Sparse",
    "sparsify": "Round Sparsifier register_sparsifier sparsifier sparsifiers",
    "values": "Exact FewBits ValueType register_value_type value_type value_types",
}
_MODULE = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Constant",
    "Controller",
    "Cosine",
    "CostModel",
    "Energy",
    "Exact",
    "FederatedData",
    "FewBits",
    "GradsiftError",
    "LinkTime",
    "LocalComputation",
    "LocalSteps",
    "MeasuredTime",
    "Method",
    "Money",
    "NormalizedTime",
    "Observation",
    "OneGradient",
    "Plan",
    "Proposal",
    "Record",
    "Result",
    "Round",
    "RunError",
    "Search",
    "ServerOptimizer",
    "Settings",
    "Sparse",
    "Sparsifier",
    "StepDecay",
    "Traffic",
    "ValueType",
    "WeightedSum",
    "__version__",
    "apply",
    "check_pair",
    "controller",
    "controllers",
    "cost_model",
    "cost_models",
    "densify",
    "difference",
    "local_computation",
    "local_computations",
    "plan",
    "register_controller",
    "register_cost_model",
    "register_local_computation",
    "register_server_optimizer",
    "register_sparsifier",
    "register_value_type",
    "round_k",
    "round_probe_k",
    "server_optimizer",
    "server_optimizers",
    "simulate",
    "sparsifier",
    "sparsifiers",
    "stack",
    "top_k",
    "value_type",
    "value_types",
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
