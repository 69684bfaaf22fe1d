"""The paper's CNN: its size, its layers, its initial weights, and that the simulator can take it."""

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from gradsift import GradsiftError
from gradsift.models import paper_cnn
from tests.examples import examples
from tests.models.vectorised import assert_vmap_agrees


def weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_sizes_of_the_paper() -> None:
    assert weights(paper_cnn(62, 1, 28)) == 444_062
    assert weights(paper_cnn(10, 3, 32)) == 555_178


def literal(module: nn.Module, x: Tensor) -> Tensor:
    """conv, ReLU, pool, LRN; conv, ReLU, LRN, pool; 256 ReLU; logits: the architecture in functions of torch alone."""
    w1, b1, w2, b2, w3, b3, w4, b4 = module.parameters()

    def pooled(maps: Tensor) -> Tensor:
        # TensorFlow's "same": an odd side is padded at its end, and padding never wins.
        odd_rows, odd_columns = maps.shape[2] % 2, maps.shape[3] % 2
        return F.max_pool2d(F.pad(maps, (0, odd_columns, 0, odd_rows), value=-math.inf), 2)

    def normed(maps: Tensor) -> Tensor:
        return F.local_response_norm(maps, 9, alpha=0.001, beta=0.75, k=1)

    x = normed(pooled(F.relu(F.conv2d(x, w1, b1, padding="same"))))
    x = pooled(normed(F.relu(F.conv2d(x, w2, b2, padding="same"))))
    x = F.relu(x.flatten(1) @ w3.T + b3)
    return x @ w4.T + b4


@examples(25)
@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.tuples(st.integers(1, 13), st.integers(1, 13)),
    st.sampled_from([1 / 16, 1 / 8, 0.5]),
    st.integers(0, 99),
)
def test_the_layers_are_those_of_the_design(
    classes: int, channels: int, sides: tuple[int, int], width: float, seed: int
) -> None:
    module = paper_cnn(classes, channels, sides, width=width, seed=seed)
    x = torch.rand(3, channels, *sides, generator=torch.Generator().manual_seed(seed))
    out = module(x)
    assert list(out.shape) == [3, classes]
    torch.testing.assert_close(out, literal(module, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("classes", "channels", "side"), [(62, 1, 28), (10, 3, 32)])
def test_the_full_models_too(classes: int, channels: int, side: int) -> None:
    module = paper_cnn(classes, channels, side)
    x = torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(module(x), literal(module, x), rtol=1e-5, atol=1e-4)
    assert [list(parameter.shape) for parameter in module.parameters()] == [
        [32, channels, 5, 5],
        [32],
        [32, 32, 5, 5],
        [32],
        [256, 32 * (side // 4) ** 2],
        [256],
        [classes, 256],
        [classes],
    ]


def test_width_scales_channels_and_hidden_units() -> None:
    shapes = [list(parameter.shape) for parameter in paper_cnn(62, 1, 28, width=1 / 8).parameters()]
    assert shapes == [[4, 1, 5, 5], [4], [4, 4, 5, 5], [4], [32, 4 * 49], [32], [62, 32], [62]]
    narrow = [list(parameter.shape) for parameter in paper_cnn(2, 1, 4, width=1e-6).parameters()]
    assert narrow == [[1, 1, 5, 5], [1], [1, 1, 5, 5], [1], [1, 1], [1], [2, 1], [2]]


def test_weights_are_truncated_normal_and_biases_a_tenth() -> None:
    module = paper_cnn(62, 1, 28, seed=5)
    values = (
        torch.cat([p.detach().flatten() for p in module.parameters() if p.dim() > 1]).double().sort().values.numpy()
    )
    assert abs(values).max() <= 0.2 + 1e-8
    # Kolmogorov-Smirnov: the distance of the empirical distribution from the normal one cut off at two deviations.
    inside = math.erf(math.sqrt(2))
    cdf = np.array([(math.erf(v / 0.1 / math.sqrt(2)) + inside) / (2 * inside) for v in values[::50]])
    distance = abs(cdf - np.arange(len(values))[::50] / len(values)).max()
    assert distance < 1.95 / math.sqrt(len(values))  # exceeded once in a thousand seeds
    assert values.std() == pytest.approx(0.1 * 0.87963, rel=0.01)
    for parameter in module.parameters():
        if parameter.dim() == 1:
            assert (parameter == 0.1).all()
    assert values[0] < -0.199 < 0.199 < values[-1]


def test_every_layer_has_draws_of_its_own() -> None:
    first, _, second, *_ = paper_cnn(62, 1, 28).parameters()
    assert not torch.equal(first.flatten()[:200], second.flatten()[:200])
    assert abs(np.corrcoef(first.detach().flatten()[:800], second.detach().flatten()[:800])[0, 1]) < 0.15


FIRST_WEIGHTS = [-0.095081203, 0.023622796, 0.026276851, -0.06032043]


def test_the_seed_is_all_that_matters() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    module = paper_cnn(62, 1, 28, width=0.25, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = paper_cnn(62, 1, 28, width=0.25, seed=7), paper_cnn(62, 1, 28, width=0.25, seed=8)
    for a, b, c in zip(module.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c) == (a.dim() == 1)
    # Pinned: a run's first weights are part of the experiment.
    first = next(module.parameters()).flatten()[:4].tolist()
    assert first == pytest.approx(FIRST_WEIGHTS, abs=1e-7)


def test_gradients_under_vmap() -> None:
    module = paper_cnn(5, 2, 9, width=1 / 8).double()
    source = torch.Generator().manual_seed(0)
    x = torch.rand(4, 3, 2, 9, 9, generator=source, dtype=torch.float64)
    assert_vmap_agrees(module, x, torch.randint(0, 5, (4, 3), generator=source), atol=1e-12)
    single = paper_cnn(62, 1, 28)
    x = torch.rand(2, 4, 1, 28, 28, generator=source)
    assert_vmap_agrees(single, x, torch.randint(0, 62, (2, 4), generator=source), atol=1e-4)


def test_every_parameter_trains_and_there_is_no_other_state() -> None:
    module = paper_cnn(10, 3, 32, width=1 / 8)
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in module.parameters())
    assert not list(module.buffers())
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    F.cross_entropy(module(x), torch.tensor([1, 2])).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in module.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paper_cnn(0, 1, 28), "classes must be at least 1, got 0"),
        (lambda: paper_cnn(10, 0, 28), "channels must be at least 1, got 0"),
        (lambda: paper_cnn(10, 1, 0), "image_size must be at least 1, got 0"),
        (lambda: paper_cnn(10, 1, (28, 28, 1)), "image_size must be one number or (height, width), got (28, 28, 1)"),  # type: ignore[arg-type]
        (lambda: paper_cnn(10, 1, 28, width=0), "width must be above 0, got 0"),
        (lambda: paper_cnn(10, 1, 28, width=math.nan), "width must be a finite number, got nan"),
        (lambda: paper_cnn(10, 1, 28, seed=-1), "seed must be in [0, 18446744073709551615], got -1"),
        (lambda: paper_cnn(10, 1, 28, seed=1.5), "seed must be an integer, got 1.5"),  # type: ignore[arg-type]
    ],
)
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(message)):
        call()
