"""Our local response normalisation is torch's, to rounding, in value and gradient."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradsift.models import LocalResponseNorm


@given(
    st.integers(1, 40),
    st.sampled_from([1, 3, 5, 9]),
    st.floats(1e-4, 1.0),
    st.floats(0.1, 2.0),
    st.floats(0.5, 4.0),
    st.sampled_from([1e-3, 1.0, 30.0, 1e3]),
    st.integers(0, 1000),
    st.sampled_from([torch.contiguous_format, torch.channels_last]),
)
def test_equal_to_torch(
    channels: int,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    scale: float,
    seed: int,
    layout: torch.memory_format,
) -> None:
    x = scale * torch.randn(2, channels, 3, 4, generator=torch.Generator().manual_seed(seed))
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-14)):
        results = []
        for norm in (LocalResponseNorm(size, alpha, beta, k), nn.LocalResponseNorm(size, alpha, beta, k)):
            leaf = x.to(dtype, copy=True, memory_format=layout).requires_grad_()
            out = norm(leaf)
            (out * torch.linspace(1, 2, 4, dtype=dtype)).sum().backward()
            assert leaf.grad is not None
            results.append((out.detach(), leaf.grad))
        (ours, our_grad), (theirs, their_grad) = results
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=0)
        # A gradient is a difference of terms up to beta times larger: rounding is relative to those.
        torch.testing.assert_close(our_grad, their_grad, rtol=10 * tolerance, atol=20 * tolerance)


def test_the_default_is_the_papers() -> None:
    assert str(LocalResponseNorm()) == "LocalResponseNorm(size=9, alpha=0.001, beta=0.75, k=1.0)"
    x = torch.full((1, 32, 1, 1), 10.0)
    # radius 4, bias 1, alpha 0.001/9, beta 0.75, as TensorFlow writes it; in the middle nine channels of 100 each.
    middle = 10 / (1 + 0.001 / 9 * 900) ** 0.75
    edge = 10 / (1 + 0.001 / 9 * 500) ** 0.75
    assert LocalResponseNorm()(x)[0, 16].item() == pytest.approx(middle, rel=1e-6)
    assert LocalResponseNorm()(x)[0, 0].item() == pytest.approx(edge, rel=1e-6)


def test_it_holds_no_state() -> None:
    assert not LocalResponseNorm().state_dict()
    assert not list(LocalResponseNorm().buffers())
