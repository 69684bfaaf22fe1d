"""The least time that memory allows for a round, by the bytes that must pass through it.

Each layer reads its input and writes its output once, forward, and once for each gradient that it gives; ReLUs are
free, as part of the layer before them, and so are weights, which stay in the cache. Residuals [N, D] are read and
written once while gradients are added, and top-k reads them once more; what is sent is small while k is. For layers as
in the plain CNN.
"""

import torch
from torch import nn

BYTES = 4  # of a float32
RATE = {"NVIDIA H200": 4.8e12}  # bytes a second, by the data sheet
PASSES = 3  # through the residuals: a gradient added (2), the largest found (1)


def activation_bytes(model: nn.Sequential, sample: torch.Tensor) -> int:
    """Of one sample, forward and backward; the first layer needs no gradient of its input."""
    total, first = 0, True
    for layer in model:
        with torch.no_grad():
            out = layer(sample)
        both = sample.numel() + out.numel()
        if isinstance(layer, nn.Conv2d | nn.Linear):
            total += both * (2 if first else 3)  # forward, the weight's gradient, the input's
            first = False
        elif isinstance(layer, nn.MaxPool2d):
            total += both * 2
        sample = out
    return BYTES * total


def milliseconds(machine: str, activations: int, samples: int, residuals: int) -> float | None:
    """For ``samples`` of so many bytes each, and so many elements of residuals; None: the rate is not known."""
    rate = RATE.get(machine)
    return None if rate is None else 1e3 * (activations * samples + BYTES * PASSES * residuals) / rate
