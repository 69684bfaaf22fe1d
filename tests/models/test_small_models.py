"""The small models: their sizes, their initial weights, that they learn, and that the simulator can take them."""

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradsift import GradsiftError
from gradsift.data import FederatedData, digits
from gradsift.models import small_cnn, small_mlp
from tests.models.vectorised import assert_vmap_agrees

MAKERS: list[Callable[[int], nn.Module]] = [
    lambda seed: small_mlp(10, 64, seed=seed),
    lambda seed: small_cnn(10, 1, 8, seed=seed),
]


@pytest.fixture(scope="module")
def real_digits() -> FederatedData:
    pytest.importorskip("sklearn")
    return digits()


def test_sizes() -> None:
    assert sum(p.numel() for p in small_mlp(10, 64).parameters()) == 4_810
    assert sum(p.numel() for p in small_cnn(10, 1, 8).parameters()) == 6_090
    shapes = [list(p.shape) for p in small_cnn(3, 2, (9, 14), width=0.25).parameters()]
    assert shapes == [[4, 2, 3, 3], [4], [8, 4, 3, 3], [8], [3, 8 * 2 * 3], [3]]
    assert list(small_cnn(3, 2, (9, 14))(torch.zeros(5, 2, 9, 14)).shape) == [5, 3]
    assert list(small_mlp(3, 24, hidden=7)(torch.zeros(5, 2, 3, 4)).shape) == [5, 3]
    assert next(small_mlp(3, 24, hidden=7).parameters()).shape == (7, 24)


@pytest.mark.parametrize("make", MAKERS)
def test_initial_weights_are_distributed_as_torchs_own(make: Callable[[int], nn.Module]) -> None:
    drawn: dict[str, list[torch.Tensor]] = {}
    for seed in range(20):
        for name, parameter in make(seed).named_parameters():
            drawn.setdefault(name, []).append(parameter.detach().flatten())
    fan_in = 1
    for name, parameter in make(0).named_parameters():
        if parameter.dim() > 1:
            fan_in = math.prod(parameter.shape[1:])
        values, bound = torch.cat(drawn[name]), 1 / math.sqrt(fan_in)
        assert values.abs().max() <= bound
        assert values.abs().max() > 0.98 * bound
        assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=5 / math.sqrt(len(values)))


@pytest.mark.parametrize("make", MAKERS)
def test_the_seed_is_all_that_matters(make: Callable[[int], nn.Module]) -> None:
    before = torch.get_rng_state()
    one, same, other = make(3), make(3), make(4)
    assert torch.equal(torch.get_rng_state(), before)
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


@pytest.mark.parametrize("make", MAKERS)
def test_gradients_under_vmap(make: Callable[[int], nn.Module]) -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.rand(3, 4, 1, 8, 8, generator=source, dtype=torch.float64)
    assert_vmap_agrees(make(0).double(), x, torch.randint(0, 10, (3, 4), generator=source), atol=1e-12)


@pytest.mark.parametrize(("make", "lr"), [(MAKERS[0], 0.5), (MAKERS[1], 0.2)])
def test_they_learn_the_digits(make: Callable[[int], nn.Module], lr: float, real_digits: FederatedData) -> None:
    model, data = make(0), real_digits
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    source = torch.Generator().manual_seed(0)
    for _ in range(300):
        rows = torch.randint(0, len(data.x), (64,), generator=source)
        optimizer.zero_grad()
        F.cross_entropy(model(data.x[rows]), data.y[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    right = (model(data.test_x).argmax(dim=1) == data.test_y).double().mean()
    assert right > 0.93


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: small_mlp(0, 4), "classes must be at least 1, got 0"),
        (lambda: small_mlp(2, 0), "inputs must be at least 1, got 0"),
        (lambda: small_mlp(2, 4, hidden=0), "hidden must be at least 1, got 0"),
        (lambda: small_cnn(2, 1, 3), "image_size must be at least 4, got 3"),
        (lambda: small_cnn(2, 0, 8), "channels must be at least 1, got 0"),
        (lambda: small_cnn(0, 1, 8), "classes must be at least 1, got 0"),
        (lambda: small_cnn(2, 1, 8, width=-1), "width must be above 0, got -1"),
    ],
)
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(message)):
        call()
