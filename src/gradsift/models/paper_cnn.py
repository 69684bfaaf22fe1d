"""The CNN of the paper's experiments, with the architecture of Wang et al. (JSAC 2019), cited as [WangJSAC2019]."""

import torch
from torch import nn

from gradsift import check
from gradsift.models.initial import truncated_normal
from gradsift.models.local_response_norm import LocalResponseNorm
from gradsift.models.sizes import image_sides, scaled


def paper_cnn(
    classes: int, channels: int, image_size: int | tuple[int, int], *, width: float = 1.0, seed: int = 0
) -> nn.Module:
    """Two 5x5 convolutions of 32 channels, 256 hidden units: 444,062 weights for FEMNIST.

    It maps images [n, channels, H, W] to logits [n, classes]; ``image_size`` is H = W, or (H, W). For CIFAR-10 it has
    555,178 weights. ``width`` scales the 32 channels of both convolutions and the 256 hidden units. Initial weights are
    truncated normal (0.1), biases 0.1.
    """
    check.integer("classes", classes, 1)
    check.integer("channels", channels, 1)
    height, wide = image_sides(image_size, least=1)
    maps, hidden = scaled(32, width), scaled(256, width)
    # Rounding up is TensorFlow's padding "same": a pool keeps the last row of an odd side.
    quarter_height, quarter_width = -(-height // 4), -(-wide // 4)
    with torch.device("meta"):
        module = nn.Sequential(
            nn.Conv2d(channels, maps, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
            LocalResponseNorm(),
            nn.Conv2d(maps, maps, 5, padding=2),
            nn.ReLU(),
            LocalResponseNorm(),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Flatten(),
            nn.Linear(maps * quarter_height * quarter_width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
    return truncated_normal(module, seed)
