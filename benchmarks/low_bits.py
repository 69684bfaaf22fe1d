"""Values rounded to a few bits, in a plain way, and what such a message needs at least."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from gradsift import Sparse


def rounded(sparse: Sparse, bits: int) -> Sparse:
    """A sign and one of 2**(bits - 1) levels: bins equal in log |value|, each level the mean of its bin; [k] or [N, k].

    Values must not be zero.
    """
    if sparse.values.dim() == 2:
        rows = [rounded(Sparse(i, v, sparse.dim), bits) for i, v in zip(sparse.indices, sparse.values, strict=True)]
        return Sparse(sparse.indices, torch.stack([row.values for row in rows]), sparse.dim)
    bins = 2 ** (bits - 1)
    size = sparse.values.abs().double()
    height = (size / size.min()).log()
    place = (bins * height / height.max().clamp(min=1e-300)).long().clamp(max=bins - 1)
    total = torch.zeros(bins, dtype=torch.float64).index_add(0, place, size)
    mean = total / torch.bincount(place, minlength=bins).clamp(min=1)
    return Sparse(sparse.indices, (mean[place] * sparse.values.sign()).to(sparse.values.dtype), sparse.dim)


def bound(sparse: Sparse) -> float:
    """log2 C(dim, k), the entropy of the levels and of the signs one by one, and the table, in bits."""
    dim, k = sparse.dim, sparse.size
    choose = (math.lgamma(dim + 1) - math.lgamma(k + 1) - math.lgamma(dim - k + 1)) / math.log(2)
    levels, often = np.unique(sparse.values.abs().numpy(), return_counts=True)
    signs = np.bincount(sparse.values.numpy() < 0)
    return choose + entropy(often) + entropy(signs) + 8 * levels.nbytes


def entropy(counts: NDArray[np.int64]) -> float:
    """In bits, of all that was counted."""
    used = counts[counts > 0]
    return float(-(used * np.log2(used / used.sum())).sum())
