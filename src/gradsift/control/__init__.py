"""The controllers, one module for each, and their names. This package does not import torch."""

from typing import Any

from gradsift.check import unchecked
from gradsift.control.base import Controller, K, Observation, Proposal, Search
from gradsift.control.checked import CheckedController
from gradsift.control.continuous_bandit import ContinuousBandit
from gradsift.control.exp3 import Exp3
from gradsift.control.extended_sign import ExtendedSign
from gradsift.control.fixed import Fixed
from gradsift.control.planned import Planned
from gradsift.control.replay import Replay
from gradsift.control.rounding import round_k, round_probe_k
from gradsift.control.sign import Sign
from gradsift.control.value import Value
from gradsift.registry import Registry

__all__ = [
    "Controller",
    "K",
    "Observation",
    "Proposal",
    "Search",
    "controller",
    "controllers",
    "describe",
    "register_controller",
    "round_k",
    "round_probe_k",
    "unchecked",
]

_REGISTRY: Registry[Controller[Any]] = Registry("controller", Controller)  # type: ignore[type-abstract]
register_controller = _REGISTRY.register
describe = _REGISTRY.describe
controllers = _REGISTRY.names

register_controller("planned")(Planned)
register_controller("fixed")(Fixed)
register_controller("replay")(Replay)
register_controller("sign")(Sign)
register_controller("extended-sign")(ExtendedSign)
register_controller("value")(Value)
register_controller("exp3")(Exp3)
register_controller("continuous-bandit")(ContinuousBandit)


def controller(name: str, **options: Any) -> Controller[Any]:
    """The controller called ``name``, such as ``"planned"``, with checked calls; ``controllers()`` lists them."""
    return CheckedController(_REGISTRY.make(name, **options))
