"""Federated learning that sends only the gradient elements that matter, and learns how many that is.

The core of Han, Wang, Leung, *Adaptive Gradient Sparsification for Efficient Federated Learning* (ICDCS 2020): a
sparsifier (upload, merge, settle) says what is sent, a controller says how much, a cost model says what it costs.
"""

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
from gradsift.errors import GradsiftError
from gradsift.pairing import check_pair
from gradsift.round import Round, apply
from gradsift.sparse import Sparse, densify, difference, stack, top_k, weighted_sum
from gradsift.sparsify import Sparsifier, register_sparsifier, sparsifier, sparsifiers

__version__ = "0.1.0"

__all__ = [
    "Controller",
    "CostModel",
    "Energy",
    "GradsiftError",
    "LinkTime",
    "Money",
    "NormalizedTime",
    "Observation",
    "Proposal",
    "Round",
    "Search",
    "Sparse",
    "Sparsifier",
    "Traffic",
    "WeightedSum",
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
    "sparsifier",
    "sparsifiers",
    "stack",
    "top_k",
    "weighted_sum",
]
