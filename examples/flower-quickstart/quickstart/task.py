"""The model, the data and ordinary local training: nothing here knows of gradsift."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from gradsift.data import load


class Net(nn.Module):
    """Two layers, for images of 8x8."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ten classes."""
        hidden = functional.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(hidden)
        return logits


def load_data(
    partition_id: int, num_partitions: int, batch_size: int
) -> tuple[DataLoader[tuple[Tensor, ...]], DataLoader[tuple[Tensor, ...]]]:
    """The digits that one client has, four fifths to train on and one to test."""
    digits = load("digits", clients=num_partitions)
    rows = digits.rows(partition_id)
    x, y = digits.x[rows], digits.y[rows]
    cut = len(x) * 4 // 5
    train = TensorDataset(x[:cut], y[:cut])
    test = TensorDataset(x[cut:], y[cut:])
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(test, batch_size=batch_size)


def load_test_data() -> DataLoader[tuple[Tensor, ...]]:
    """The digits that no client has."""
    digits = load("digits")
    return DataLoader(TensorDataset(digits.test_x, digits.test_y), batch_size=128)


def train(net: nn.Module, loader: DataLoader[tuple[Tensor, ...]], epochs: int, lr: float) -> float:
    """Train; the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    total, count = 0.0, 0
    net.train()
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total, count = total + loss.item(), count + 1
    return total / count


def test(net: nn.Module, loader: Iterable[tuple[Tensor, ...]]) -> tuple[float, float]:
    """The mean loss and the accuracy."""
    total, right, count = 0.0, 0, 0
    net.eval()
    with torch.no_grad():
        for x, y in loader:
            outputs = net(x)
            total += functional.cross_entropy(outputs, y, reduction="sum").item()
            right += int((outputs.argmax(dim=1) == y).sum())
            count += len(y)
    return total / count, right / count
