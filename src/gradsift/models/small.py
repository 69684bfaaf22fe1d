"""Small models for small images such as the digits, which train in seconds on one CPU core."""

import torch
from torch import nn

from gradsift import check
from gradsift.models.initial import uniform_by_fan_in
from gradsift.models.sizes import image_sides, scaled


def small_mlp(classes: int, inputs: int, *, hidden: int = 64, seed: int = 0) -> nn.Module:
    """One hidden layer of ReLUs, for inputs of any shape with ``inputs`` numbers: 4,810 weights for the digits."""
    check.integer("classes", classes, 1)
    check.integer("inputs", inputs, 1)
    check.integer("hidden", hidden, 1)
    with torch.device("meta"):
        module = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    return uniform_by_fan_in(module, seed)


def small_cnn(
    classes: int, channels: int, image_size: int | tuple[int, int], *, width: float = 1.0, seed: int = 0
) -> nn.Module:
    """Two 3x3 convolutions (16 and 32 channels, times ``width``), each pooled, and a linear layer: 6,090 for digits."""
    check.integer("classes", classes, 1)
    check.integer("channels", channels, 1)
    height, wide = image_sides(image_size, least=4)
    first, second = scaled(16, width), scaled(32, width)
    with torch.device("meta"):
        module = nn.Sequential(
            nn.Conv2d(channels, first, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * (height // 4) * (wide // 4), classes),
        )
    return uniform_by_fan_in(module, seed)
