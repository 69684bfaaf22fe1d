"""Every server optimizer of the package, for the tests that run them all: a new one gets its line here."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Row(NamedTuple):
    """How to build a server optimizer, and the optimizer of torch that it is."""

    options: dict[str, Any]
    torch: Callable[[list[Tensor]], torch.optim.Optimizer]
    memory: tuple[str, ...] = ()


TABLE: dict[str, list[Row]] = {
    "sgd": [
        Row({}, lambda weights: torch.optim.SGD(weights, lr=1.0)),
        Row({"rate": 0.25}, lambda weights: torch.optim.SGD(weights, lr=0.25)),
    ],
    "momentum": [
        Row({}, lambda weights: torch.optim.SGD(weights, lr=1.0, momentum=0.9), ("velocity",)),
        Row(
            {"momentum": 0.5, "rate": 0.7},
            lambda weights: torch.optim.SGD(weights, lr=0.7, momentum=0.5),
            ("velocity",),
        ),
        Row(
            {"momentum": 0.9, "nesterov": True, "rate": 0.7},  # DiLoCo's
            lambda weights: torch.optim.SGD(weights, lr=0.7, momentum=0.9, nesterov=True),
            ("velocity",),
        ),
        Row({"momentum": 0.0}, lambda weights: torch.optim.SGD(weights, lr=1.0), ("velocity",)),
    ],
}
