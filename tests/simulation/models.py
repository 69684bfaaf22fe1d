"""Modules of many kinds, for [b, 5] inputs and three classes unless they say otherwise."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


class Tied(nn.Module):
    """Two layers that share one weight, as an embedding and its decoder do, and a third that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 5), nn.Linear(5, 5)
        self.decoder.weight = self.encoder.weight
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.decoder(torch.tanh(self.encoder(torch.tanh(self.encoder(x))))))
        return out


class Unused(nn.Module):
    """A parameter that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.layer = nn.Linear(2, 2), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class Image(nn.Module):
    """The layers of the paper's network, on 5 inputs spread over a 4 x 4 image."""

    def __init__(self) -> None:
        super().__init__()
        self.grow, self.first = nn.Linear(5, 16), nn.Conv2d(1, 4, 3, padding=1)
        self.norm, self.head = nn.LocalResponseNorm(3), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        image = self.grow(x).reshape(-1, 1, 4, 4)
        pooled = self.norm(nn.functional.max_pool2d(torch.relu(self.first(image)), 2))
        out: Tensor = self.head(pooled.flatten(1))
        return out


class Convolutions(nn.Module):
    """Strides, dilations, groups, paddings, no bias, and a convolution that sees one channel."""

    def __init__(self, padding: int | str) -> None:
        super().__init__()
        self.grow = nn.Linear(5, 2 * 36)
        self.first = nn.Conv2d(2, 6, 3, stride=2, padding=1, groups=2, bias=False)
        self.second = nn.Conv2d(6, 8, (2, 3), dilation=(1, 2), padding=(1, 2))
        self.third, self.head = nn.Conv2d(8, 2, 3, padding=padding), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        image = torch.tanh(self.first(self.grow(x).reshape(-1, 2, 6, 6)))
        out: Tensor = self.head(torch.tanh(self.third(self.second(image))).mean(dim=(2, 3)))
        return out


class Meeting(nn.Module):
    """Samples of a minibatch that see one another, without BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        out: Tensor = self.second(torch.tanh(hidden - hidden.mean(dim=0)))
        return out


class Sideways(nn.Module):
    """Layers used in other ways than on a batch: their weights taken by hand, on a table, on time before samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.table, self.steps, self.head = (nn.Linear(*s) for s in ((5, 4), (4, 4), (1, 4), (4, 3)))
        self.rows: Tensor
        self.register_buffer("rows", torch.linspace(-1, 1, 8).reshape(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)) @ self.first.weight @ self.first.weight.T
        times = self.steps(x.T.unsqueeze(-1)).mean(dim=0)
        out: Tensor = self.head(hidden + times + self.table(self.rows).sum(dim=0))
        return out


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift, self.attend = nn.Linear(1, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        lifted = self.lift(x.unsqueeze(-1))
        mixed, _ = self.attend(lifted, lifted, lifted, need_weights=False)
        out: Tensor = self.head(self.norm(mixed).mean(dim=1))
        return out


class Branching(nn.Module):
    """Control flow that depends on the data: it cannot be batched over clients."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(5, 4), nn.Linear(4, 3), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.first(x))
        scale = 2.0 if hidden.detach().sum().item() > 0 and self.training else 0.5
        out: Tensor = self.second(torch.tanh(hidden) * scale)
        return out


class Statistics(nn.Module):
    """Running statistics of its own, kept by assignment, as many modules outside torch do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        out: Tensor = self.layer(x - self.mean)
        return out


class Outputs(NamedTuple):
    logits: Tensor
    hidden: Tensor
    note: None = None


class Several(nn.Module):
    """More than one output, as a tuple, a named tuple or a dict."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.second = kind, nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor] | Outputs | dict[str, Tensor]:
        hidden = torch.tanh(self.first(x))
        logits = self.second(hidden)
        if self.kind == "dict":
            return {"logits": logits, "hidden": hidden}
        return Outputs(logits, hidden) if self.kind == "named tuple" else (logits, hidden)


def several_loss(outputs: tuple[Tensor, Tensor] | Outputs | dict[str, Tensor], y: Tensor) -> Tensor:
    if isinstance(outputs, dict):
        logits, hidden = outputs["logits"], outputs["hidden"]
    elif isinstance(outputs, Outputs):
        logits, hidden = outputs.logits, outputs.hidden
    else:
        logits, hidden = outputs
    return nn.functional.cross_entropy(logits, y) + 0.01 * hidden.square().mean()


def normed(momentum: float | None = 0.1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, momentum=momentum), nn.Tanh(), nn.Linear(6, 3))


def frozen_layer() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def resting_norm() -> nn.Module:
    """A BatchNorm that its owner put in evaluation mode, in a model that trains."""
    model = normed()
    model[1].load_state_dict({"running_mean": torch.randn(6), "running_var": 0.5 + torch.rand(6)}, strict=False)
    model[1].eval()
    return model


def constant_buffers() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    model.register_buffer("scale", torch.tensor([2.0]))
    model.register_buffer("count", torch.tensor(7))
    return model


def weight_normed() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 3))


def grouped() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.GroupNorm(2, 6), nn.PReLU(), nn.Linear(6, 3))


KINDS: dict[str, Callable[[], nn.Module]] = {
    "frozen": frozen_layer,
    "tied": Tied,
    "unused": Unused,
    "image": Image,
    "convolutions": lambda: Convolutions(1),
    "convolutions, padded the same": lambda: Convolutions("same"),
    "samples that meet": Meeting,
    "layers used sideways": Sideways,
    "attention": Attention,
    "group norm": grouped,
    "weight norm": weight_normed,
    "BatchNorm at rest": resting_norm,
    "constant buffers": constant_buffers,
}
