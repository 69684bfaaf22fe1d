"""Small federated problems for the tests of the simulator."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from gradsift import FederatedData


def blobs(clients: int = 6, each: int = 20, features: int = 5, classes: int = 3, seed: int = 0) -> FederatedData:
    """Gaussian blobs; client i has 2i samples more than ``each``, and prefers class i mod ``classes``."""
    source = np.random.default_rng(seed)
    xs, ys, owner = [], [], []
    for client in range(clients):
        size = each + 2 * client
        likes = np.full(classes, 0.4 / classes)
        likes[client % classes] += 0.6
        labels = source.choice(classes, size, p=likes)
        xs.append(source.normal(size=(size, features)) + 2 * np.eye(classes, features)[labels])
        ys.append(labels)
        owner += [client] * size
    x, y = np.concatenate(xs), np.concatenate(ys)
    return FederatedData.from_arrays(x, y, owner, test=np.arange(len(y)) % 7 == 0, name="blobs")


def sized(*sizes: int, features: int = 5, classes: int = 3, seed: int = 0) -> FederatedData:
    """Gaussian blobs; client i has ``sizes[i]`` training samples, and prefers class i mod ``classes``."""
    whole = blobs(len(sizes), each=max(sizes) * 2, features=features, classes=classes, seed=seed)
    rows = np.concatenate([np.arange(whole.start[client], whole.start[client] + n) for client, n in enumerate(sizes)])
    return replace(whole, x=whole.x[rows], y=whole.y[rows], size=np.array(sizes))


def mlp(features: int = 5, classes: int = 3, hidden: int = 6, seed: int = 0) -> nn.Module:
    """A perceptron with one hidden layer: 57 weights by default."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes))
