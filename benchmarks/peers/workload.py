"""What every contestant computes: the same clients, the same network, the same start.

The paper's CNN for FEMNIST without local response normalisation, which not every framework has. A client has exactly
one minibatch, so all take the same gradients whatever they draw, and after a dense round all hold the same weights.
Only numpy here: not every environment has torch.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

BATCH, CLASSES, LR, TOP_K = 32, 62, 0.01, 1000
SHAPES = ((32, 1, 5, 5), (32, 32, 5, 5), (256, 1568), (CLASSES, 256))  # of the weights; each has a bias too
DIM = sum(int(np.prod(shape)) + shape[0] for shape in SHAPES)
Floats = NDArray[np.float32]


def client(number: int) -> tuple[Floats, NDArray[np.int64]]:
    """The pixels [b, 1, 28, 28] and labels [b] of one client: random, which does not change the time."""
    source = np.random.default_rng((1, number))
    return source.random((BATCH, 1, 28, 28), dtype=np.float32), source.integers(0, CLASSES, BATCH)


def start() -> list[Floats]:
    """The first weights and biases, layer by layer, in torch's shapes and of its size."""
    source, parameters = np.random.default_rng(0), []
    for shape in SHAPES:
        bound = 1 / np.sqrt(np.prod(shape[1:]))
        parameters += [source.uniform(-bound, bound, size).astype(np.float32) for size in (shape, shape[:1])]
    return parameters


def torch_client(number: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """One client's data as tensors."""
    import torch

    x, y = client(number)
    return torch.from_numpy(x), torch.from_numpy(y)


def torch_net() -> "torch.nn.Sequential":
    """The network in torch."""
    import torch
    from torch import nn

    net = nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1568, 256), nn.ReLU(), nn.Linear(256, CLASSES)),
    )
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), start(), strict=True):
            parameter.copy_(torch.from_numpy(value))
    return net


def flat(parameters: Any) -> Floats:
    """[D] the weights of torch parameters or of arrays in torch's shapes."""
    arrays = [p.detach().numpy() if hasattr(p, "detach") else np.asarray(p) for p in parameters]
    return np.concatenate([array.reshape(-1) for array in arrays])
