"""The CNN of the paper's experiments: the architecture of Wang et al. (JSAC 2019), its reference [WangJSAC2019]."""

from torch import nn

from gradsift import check
from gradsift.models.initial import built, truncated_normal
from gradsift.models.local_response_norm import LocalResponseNorm
from gradsift.models.sizes import image_sides, scaled


def paper_cnn(
    classes: int, channels: int, image_size: int | tuple[int, int], *, width: float = 1.0, seed: int = 0
) -> nn.Module:
    """Two 5x5 convolutions of 32 channels, 256 hidden units: 444,062 weights for FEMNIST.

    For images [n, channels, H, W]; ``image_size`` is H = W, or (H, W). Returns logits [n, classes].

    444,062 weights for FEMNIST (62, 1, 28), 555,178 for CIFAR-10 (10, 3, 32). ``width`` scales the 32 channels of
    both convolutions and the 256 hidden units: 1/8 makes a toy of it. Weights are truncated normal (0.1), biases 0.1.
    """
    check.integer("classes", classes, 1)
    check.integer("channels", channels, 1)
    height, wide = image_sides(image_size, least=1)
    maps, hidden = scaled(32, width), scaled(256, width)

    def pool() -> nn.Module:
        return nn.MaxPool2d(2, ceil_mode=True)  # TensorFlow's "same": an odd side keeps its last row

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, maps, 5, padding=2),
            nn.ReLU(),
            pool(),
            LocalResponseNorm(),
            nn.Conv2d(maps, maps, 5, padding=2),
            nn.ReLU(),
            LocalResponseNorm(),
            pool(),
            nn.Flatten(),
            nn.Linear(maps * _quarter(height) * _quarter(wide), hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    return built(make, truncated_normal, seed)


def _quarter(side: int) -> int:
    """A side after two poolings."""
    return -(-side // 4)
