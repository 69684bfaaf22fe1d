"""Federated learning that sends only the gradient elements that matter, and learns how many that is.

The core of Han, Wang, Leung, *Adaptive Gradient Sparsification for Efficient Federated Learning* (ICDCS 2020): a
sparsifier (upload, merge, settle) says what is sent, a controller says how much, a cost model says what it costs.
"""

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
from gradsift.simulate.run import Result, simulate
from gradsift.simulate.schedule import Constant, Cosine, StepDecay
from gradsift.simulate.settings import Settings
from gradsift.sparse import Sparse
from gradsift.sparsify import Sparsifier, register_sparsifier, sparsifier, sparsifiers
from gradsift.version import __version__

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
