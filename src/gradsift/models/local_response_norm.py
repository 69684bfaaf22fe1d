"""Local response normalisation (Krizhevsky et al. 2012, Section 3.3), fast, and able to run under vmap.

y = x * s ** -beta, where s = k + alpha * (the mean square of the ``size`` nearest channels, with zeros outside).
The sum over channels is one product with a band matrix, which is symmetric. With g the gradient of y and
c = 2 * alpha * beta / size, the gradient of x is g * s ** -beta - c * x * (band @ (g * y / s)).
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn


class LocalResponseNorm(nn.Module):
    """A faster ``torch.nn.LocalResponseNorm(size, alpha, beta, k)`` for inputs [n, C, H, W] and an odd size.

    torch's version pools over a fifth dimension, which takes several times longer, above all with per-client gradients.
    """

    def __init__(self, size: int = 9, alpha: float = 0.001, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [n, C, H, W]; the result has the same shape."""
        band = _band(x.shape[-3], self.size // 2, x.dtype, x.device)
        weight = self.alpha / self.size
        if not torch.is_grad_enabled():
            return _normalise(x, band, weight, self.beta, self.k)[0]
        normalised: Tensor = _Normalise.apply(x, band, weight, self.beta, self.k)[0]  # type: ignore[no-untyped-call]
        return normalised

    def extra_repr(self) -> str:
        """Return the options, for ``print``."""
        return f"size={self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class _Normalise(torch.autograd.Function):
    """Forward and backward pass written by hand, with half the memory traffic of autograd."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, band: Tensor, weight: float, beta: float, k: float) -> tuple[Tensor, Tensor]:
        return _normalise(x, band, weight, beta, k)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, float, float, float], output: tuple[Tensor, Tensor]
    ) -> None:
        x, band, ctx.weight, ctx.beta, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, band, *output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (g, _), (x, band, y, scale) = gradients, ctx.saved_tensors
        nearby = _across(band * (2 * ctx.weight * ctx.beta), g * y / scale)
        return g * scale**-ctx.beta - x * nearby, None, None, None, None


def _normalise(x: Tensor, band: Tensor, weight: float, beta: float, k: float) -> tuple[Tensor, Tensor]:
    scale = _across(band * weight, x * x) + k
    return x * scale**-beta, scale


@functools.lru_cache(maxsize=16)
def _band(channels: int, reach: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the matrix of neighbouring channels; it is no buffer of the model, because clients exchange buffers."""
    return torch.ones(channels, channels, dtype=dtype, device=device).tril(reach).triu(-reach)


def _across(band: Tensor, values: Tensor) -> Tensor:
    """Multiply the symmetric band matrix with the channels of [n, C, H, W], without a change of memory format."""
    if values.is_contiguous():
        return torch.einsum("dc,nchw->ndhw", band, values)
    return (values.permute(0, 2, 3, 1) @ band).permute(0, 3, 1, 2)  # channels last
