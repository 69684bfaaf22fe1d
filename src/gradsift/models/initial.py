"""Draw initial weights from a seed on the host: the same for every device, and without torch's global generator.

The modules given here must be made on torch's device "meta", on which layers draw no weights of their own.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradsift import check
from gradsift.draws import rng

Floats = NDArray[np.float64]

STD = BIAS = 0.1  # of the paper's CNN


def truncated_normal(module: nn.Module, seed: int) -> nn.Module:
    """Draw weights from N(0, 0.1^2) truncated at two standard deviations, as TensorFlow does; biases are 0.1."""
    source = _allocate(module, seed)
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.constant_(parameter, BIAS)
        else:
            _set(parameter, STD * _standard_truncated(source, parameter.numel()))
    return module


def uniform_by_fan_in(module: nn.Module, seed: int) -> nn.Module:
    """Draw weights and biases uniformly in +-1/sqrt(fan-in), the default distribution of torch's layers."""
    source = _allocate(module, seed)
    bound = 1.0
    for parameter in module.parameters():
        if parameter.dim() > 1:  # a weight; the bias after it has the same fan-in
            bound = 1 / math.sqrt(parameter[0].numel())
        _set(parameter, source.uniform(-bound, bound, parameter.numel()))
    return module


def _allocate(module: nn.Module, seed: int) -> np.random.Generator:
    check.integer("seed", seed, 0, 2**64 - 1)
    module.to_empty(device="cpu")
    return rng(seed, "initial weights")


def _standard_truncated(source: np.random.Generator, count: int) -> Floats:
    """Draw from the standard normal distribution, and again for values beyond 2."""
    values = source.standard_normal(count)
    while (outside := np.flatnonzero(np.abs(values) > 2)).size:
        values[outside] = source.standard_normal(outside.size)
    return values


def _set(parameter: nn.Parameter, values: Floats) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values).view_as(parameter))
