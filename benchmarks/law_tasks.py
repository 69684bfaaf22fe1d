"""The tasks on which the law of docs/theory.md was chosen, checked and judged."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gradsift.data import FederatedData, load, load_npz
from gradsift.data.cifar10 import PARTS
from gradsift.data.folder import data_files
from gradsift.models import model as named_model

Model = str | Callable[[], nn.Module]


class Task(NamedTuple):
    """One task: data, model and how it is trained."""

    about: str
    role: str  # "chosen on", "checked on", "left out" or "judged on"
    data: Callable[[], FederatedData]
    model: Model
    lr: float
    rounds: int  # at the largest k; smaller k have up to three times as many
    settings: dict[str, Any] = {}  # noqa: RUF012  # never changed

    def made(self, seed: int) -> tuple[nn.Module, FederatedData]:
        """The model with its first weights, and the data."""
        data = self.data()
        if isinstance(self.model, str):
            return named_model(self.model, data, seed=seed), data
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.model(), data


class Transformer(nn.Module):
    """A small one over the rows of an image."""

    def __init__(self, classes: int, width: int, rows: int, columns: int, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.heads = nn.Linear(columns, width), heads
        self.position = nn.Parameter(torch.randn(rows, width) * 0.02)
        shapes = {
            "qkv": (width, 3 * width),
            "out": (width, width),
            "up": (width, 4 * width),
            "down": (4 * width, width),
        }
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {name: nn.Linear(*shape) for name, shape in shapes.items()}
                | {"first": nn.LayerNorm(width), "second": nn.LayerNorm(width)}
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Any:
        x = self.embed(x.squeeze(1)) + self.position
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            batch, rows, width = x.shape
            qkv = layer["qkv"](layer["first"](x)).reshape(batch, rows, 3, self.heads, width // self.heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            attended = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(width // self.heads), -1) @ v
            x = x + layer["out"](attended.transpose(1, 2).reshape(batch, rows, width))
            x = x + layer["down"](nn.functional.gelu(layer["up"](layer["second"](x))))
        return self.head(self.norm(x).mean(1))


class Recurrent(nn.Module):
    """A gated recurrent unit over the rows of an image."""

    def __init__(self, classes: int, width: int, columns: int) -> None:
        super().__init__()
        self.width, self.into = width, nn.Linear(columns, 3 * width)
        self.hidden, self.out = nn.Linear(width, 3 * width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Any:
        x = self.into(x.squeeze(1))
        state = x.new_zeros(len(x), self.width)
        for row in x.unbind(1):
            (reset, update, new), (to_reset, to_update, to_new) = row.chunk(3, -1), self.hidden(state).chunk(3, -1)
            gate = torch.sigmoid(update + to_update)
            state = (1 - gate) * torch.tanh(new + torch.sigmoid(reset + to_reset) * to_new) + gate * state
        return self.out(state)


class Rows(nn.Module):
    """A model over rows, for the digits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x.reshape(len(x), 1, 8, 8))


def small_groupnorm() -> nn.Module:
    """Two convolutions with GroupNorm, for the digits."""
    first = [nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, 10))


def digits(clients: int, partition: str, **options: Any) -> Callable[[], FederatedData]:
    return lambda: load("digits", partition=partition, clients=clients, **options)


def groupnorm(channels: int, classes: int, side: int) -> nn.Module:
    """Three convolutions with GroupNorm and one linear layer."""
    layers: list[nn.Module] = []
    for into, out in ((channels, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(8, out), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * (side // 8) ** 2, classes))


def mlp(features: int, hidden: int, classes: int) -> nn.Module:
    """Two hidden layers."""
    sizes = [nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *sizes, nn.Linear(hidden // 2, classes))


def femnist(clients: int) -> Callable[[], FederatedData]:
    return lambda: load("femnist", clients=clients)


def quarter(clients: int, partition: str, alpha: float | None = None) -> Callable[[], FederatedData]:
    """The first quarter of CIFAR-10's training images."""

    def read() -> FederatedData:
        with np.load(data_files("cifar10", None, PARTS[:1])[0]) as file:
            arrays = {"x": file["x"], "y": file["y"], "split": np.zeros(len(file["y"]), np.uint8)}  # no test samples
        options: dict[str, Any] = {"clients": clients, "partition": partition, "alpha": alpha, "classes": 10}
        return load_npz(arrays, name="cifar10", layout="channels-last", **options)

    return read


CNN, CHOSEN, LEFT, JUDGED = "paper-cnn", "chosen on", "left out", "judged on"
SMALL, FEW, UNI = {"batch_size": 8}, {"clients_per_round": 15}, {"sparsifier": "unidirectional-top-k"}
FUB, TENTH = {"sparsifier": "fub-top-k"}, {"batch_size": 8, "clients_per_round": 10}
TASKS = {
    "digits-cnn": Task("small CNN", CHOSEN, lambda: load("digits"), "small-cnn", 0.3, 300),
    "digits-mlp": Task("perceptron", CHOSEN, lambda: load("digits"), lambda: mlp(64, 64, 10), 0.1, 400),
    "femnist-20": Task("paper's CNN", CHOSEN, femnist(20), CNN, 0.01, 900),
    "femnist-fast": Task("paper's CNN, lr 0.03", CHOSEN, femnist(156), CNN, 0.03, 400),
    "femnist-batch-8": Task("paper's CNN, batches of 8", CHOSEN, femnist(40), CNN, 0.01, 900, SMALL),
    "femnist-mlp": Task("perceptron", CHOSEN, femnist(40), lambda: mlp(784, 256, 62), 0.1, 700),
    "femnist-transformer": Task("transformer", CHOSEN, femnist(40), lambda: Transformer(62, 64, 28, 28), 0.1, 800),
    "femnist-groupnorm": Task("CNN with GroupNorm", CHOSEN, femnist(40), lambda: groupnorm(1, 62, 24), 0.05, 500),
    "femnist-unidirectional": Task("paper's CNN, unidirectional top-k", CHOSEN, femnist(40), CNN, 0.01, 900, UNI),
    "cifar10-iid": Task("paper's CNN", CHOSEN, quarter(50, "iid"), CNN, 0.01, 700),
    "cifar10-500-mlp": Task(
        "perceptron, i.i.d., batches of 8", CHOSEN, quarter(500, "iid"), lambda: mlp(3072, 128, 10), 0.03, 500, SMALL
    ),
    "femnist": Task("paper's CNN", "checked on", femnist(156), CNN, 0.01, 900),
    "cifar10": Task("paper's CNN, one class a client", "checked on", quarter(100, "one-class"), CNN, 0.01, 600),
    "cifar10-groupnorm": Task(
        "CNN with GroupNorm, Dirichlet 0.3",
        LEFT,
        quarter(20, "dirichlet", 0.3),
        lambda: groupnorm(3, 10, 32),
        0.05,
        600,
    ),
    "femnist-sampled": Task("paper's CNN, 10 % of clients a round", JUDGED, femnist(150), CNN, 0.01, 900, FEW),
    "femnist-20-mlp": Task("perceptron", JUDGED, femnist(20), lambda: mlp(784, 128, 62), 0.05, 900),
    "cifar10-iid-groupnorm": Task(
        "CNN with GroupNorm", JUDGED, quarter(20, "iid"), lambda: groupnorm(3, 10, 32), 0.02, 500
    ),
    "cifar10-500-cnn": Task("paper's CNN, batches of 8", JUDGED, quarter(500, "iid"), CNN, 0.01, 600, SMALL),
    "cifar10-dirichlet": Task("paper's CNN, Dirichlet 0.3", JUDGED, quarter(50, "dirichlet", 0.3), CNN, 0.01, 600),
    "digits-batch-8": Task("small CNN, batches of 8", JUDGED, lambda: load("digits"), "small-cnn", 0.1, 500, SMALL),
    "digits-gru": Task("recurrent", JUDGED, lambda: load("digits"), lambda: Rows(Recurrent(10, 32, 8)), 1.0, 400),
    "digits-transformer": Task(
        "transformer", JUDGED, lambda: load("digits"), lambda: Rows(Transformer(10, 32, 8, 8)), 0.1, 500
    ),
    "digits-mlp-fast": Task("perceptron, lr 0.3", JUDGED, lambda: load("digits"), lambda: mlp(64, 64, 10), 0.3, 300),
    "digits-mlp-slow": Task(
        "perceptron, lr 0.033", JUDGED, lambda: load("digits"), lambda: mlp(64, 64, 10), 0.033, 1200
    ),
    "digits-groupnorm": Task("CNN with GroupNorm", JUDGED, lambda: load("digits"), small_groupnorm, 0.1, 400),
    "digits-iid": Task("perceptron, i.i.d.", JUDGED, digits(20, "iid"), lambda: mlp(64, 128, 10), 0.1, 400),
    "digits-fub": Task("small CNN, FUB-top-k", JUDGED, lambda: load("digits"), "small-cnn", 0.3, 400, FUB),
    "digits-sampled": Task(
        "small CNN, i.i.d., 10 % of clients a round, batches of 8",
        JUDGED,
        digits(100, "iid"),
        "small-cnn",
        0.3,
        500,
        TENTH,
    ),
    "digits-sampled-mlp": Task(
        "perceptron, Dirichlet 0.5, 20 % of clients a round",
        JUDGED,
        digits(40, "dirichlet", alpha=0.5),
        lambda: mlp(64, 64, 10),
        0.1,
        600,
        {"clients_per_round": 8},
    ),
}
