"""The real FEMNIST and CIFAR-10, where they are: the numbers of the paper's settings."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gradsift.data import FederatedData, describe, femnist, load_npz
from gradsift.models import model

pytestmark = pytest.mark.slow  # reads much data


def weights(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_femnist_156_writers(real_data: Path) -> None:
    data = femnist(folder=real_data)
    assert (data.num_clients, len(data.x), len(data.test_x), data.classes) == (156, 23_210, 2_637, 62)
    assert list(data.x.shape[1:]) == [1, 28, 28]
    assert (data.x.dtype, float(data.x.min()), float(data.x.max())) == (torch.float32, 0, 1)
    assert float(data.x.mean()) > 0.7  # paper is 1, ink is 0
    assert data.size.min() >= 32
    assert weights(model("paper-cnn", data)) == 444_062
    # Its writers copied the same form: by labels they are more alike than chance, not less.
    said = describe(data)
    assert said.skew is not None
    assert said.chance_skew is not None
    assert said.skew < said.chance_skew


def test_femnist_all_writers_and_few(real_data: Path) -> None:
    data = femnist(folder=real_data, clients=399)
    assert (data.num_clients, len(data.x), len(data.test_x)) == (399, 59_345, 6_745)
    few = femnist(folder=real_data, clients=3)
    assert weights(model("paper-cnn", few)) == 444_062  # 62 classes, whichever occur
    assert torch.equal(few.x, data.x[: len(few.x)])
    assert few.client_names == data.client_names[:3]


def test_femnist_is_an_ordinary_npz_too(real_data: Path) -> None:
    plain = load_npz(real_data / "femnist.npz", clients=20)
    ours = femnist(folder=real_data, clients=20)
    assert torch.equal((plain.x * 255).round(), 255 - (ours.x * 255).round())
    assert torch.equal(plain.y, ours.y)
    assert plain.client_names == ours.client_names


def test_cifar10_100_clients_of_500(real_cifar10: FederatedData) -> None:
    assert (real_cifar10.num_clients, len(real_cifar10.x), len(real_cifar10.test_x), real_cifar10.classes) == (
        100,
        50_000,
        10_000,
        10,
    )
    assert real_cifar10.size.tolist() == [500] * 100
    assert list(real_cifar10.x.shape[1:]) == [3, 32, 32]
    assert (real_cifar10.x.dtype, float(real_cifar10.x.min()), float(real_cifar10.x.max())) == (torch.float32, 0, 1)
    holds = [set(real_cifar10.y[real_cifar10.rows(client)].tolist()) for client in range(100)]
    assert holds == [{client % 10} for client in range(100)]
    assert np.bincount(real_cifar10.test_y.numpy()).tolist() == [1000] * 10
    assert describe(real_cifar10).skew == pytest.approx(0.9)
    assert weights(model("paper-cnn", real_cifar10)) == 555_178


def test_cifar10_has_its_well_known_means(real_cifar10: FederatedData) -> None:
    # Channel means and deviations as published in countless recipes: red, green, blue in this order, pixels in place.
    mean, std = real_cifar10.x.mean(dim=(0, 2, 3)), real_cifar10.x.std(dim=(0, 2, 3))
    np.testing.assert_allclose(mean.numpy(), [0.4914, 0.4822, 0.4465], atol=5e-4)
    np.testing.assert_allclose(std.numpy(), [0.2470, 0.2435, 0.2616], atol=5e-4)
    neighbours = (real_cifar10.x[:2000, :, :, 1:] - real_cifar10.x[:2000, :, :, :-1]).abs().mean()
    assert float(neighbours) < 0.08  # an image is smooth; a wrong layout would not be
