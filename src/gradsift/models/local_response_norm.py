"""Local response normalisation (Krizhevsky et al. 2012, Section 3.3), in a form that is quick under vmap."""

import torch
from torch import Tensor, nn


class LocalResponseNorm(nn.Module):
    """The same function as ``torch.nn.LocalResponseNorm(size, alpha, beta, k)`` on [n, C, H, W], for an odd size.

    Each value is divided by (k + alpha * mean over the ``size`` channels around it of their squares) ** beta, channels
    that do not exist counting as zero. torch's own pools over a fifth dimension, which takes several times longer,
    most of all with per-client gradients; here the sum is one product with a band matrix.
    """

    def __init__(self, size: int = 9, alpha: float = 0.001, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        """[n, C, H, W], the same shape out."""
        channels, reach = x.shape[-3], self.size // 2
        # Made here, not kept as a buffer: a model's buffers are state that clients would have to exchange.
        band = torch.ones(channels, channels, dtype=x.dtype, device=x.device).tril(reach).triu(-reach)
        if x.is_contiguous():
            nearby = torch.einsum("dc,nchw->ndhw", band, x * x)
        else:  # channels last, and so it stays
            nearby = ((x * x).permute(0, 2, 3, 1) @ band).permute(0, 3, 1, 2)
        return x * (self.k + (self.alpha / self.size) * nearby) ** -self.beta

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"size={self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
