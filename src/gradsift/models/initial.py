"""Initial weights drawn from a seed on the host: the same on every device, torch's global generator left alone."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradsift import check
from gradsift.draws import rng

Floats = NDArray[np.float64]


def built(make: Callable[[], nn.Module], draw: Callable[[nn.Module, int], None], seed: int) -> nn.Module:
    """The module that ``make`` makes, its weights set by ``draw`` alone."""
    check.integer("seed", seed, 0, 2**64 - 1)
    # torch's layers draw weights of their own from the global generator as they are made; on "meta" they draw nothing.
    with torch.device("meta"):
        module = make()
    module.to_empty(device="cpu")
    draw(module, seed)
    return module


def truncated_normal(module: nn.Module, seed: int, std: float = 0.1, bias: float = 0.1) -> None:
    """Weights from a normal distribution cut off at two standard deviations (TensorFlow's truncated_normal)."""
    source = rng(seed, "initial weights")
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.constant_(parameter, bias)
        else:
            _set(parameter, std * _truncated(source, parameter.numel()))


def _truncated(source: np.random.Generator, count: int) -> Floats:
    """Standard normal draws, drawn again while beyond two."""
    values = source.standard_normal(count)
    while (outside := np.flatnonzero(np.abs(values) > 2)).size:
        values[outside] = source.standard_normal(outside.size)
    return values


def uniform_by_fan_in(module: nn.Module, seed: int) -> None:
    """Weights and biases uniform in +-1/sqrt(fan-in): the distribution that torch's own layers use."""
    source = rng(seed, "initial weights")
    bound = 1.0
    for parameter in module.parameters():
        if parameter.dim() > 1:  # a weight; the bias after it has the same fan-in
            bound = 1 / math.sqrt(parameter[0].numel())
        _set(parameter, source.uniform(-bound, bound, parameter.numel()))


def _set(parameter: nn.Parameter, values: Floats) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values).view_as(parameter))
