"""Messages to test the codec with: every shape of index set and every kind of value, from a seed."""

from collections.abc import Callable

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradsift import Sparse

Source = np.random.Generator
Indices = NDArray[np.int64]
Values = NDArray[np.float64]


def scattered(source: Source, dim: int, k: int) -> Indices:
    return source.choice(dim, k, replace=False)


def clustered(source: Source, dim: int, k: int) -> Indices:
    """Runs of neighbours, as the rows of a layer make them."""
    steps = np.where(source.random(dim) < 0.1, source.pareto(1.0, dim) * 20, 0.0)
    return np.argsort(np.cumsum(steps + 1) % dim, kind="stable")[:k]


def block(source: Source, dim: int, k: int) -> Indices:
    return np.arange(k) + source.integers(0, dim - k + 1)


def ends(source: Source, dim: int, k: int) -> Indices:
    """As many at the start as at the end."""
    del source
    return np.concatenate([np.arange(k - k // 2), np.arange(dim - k // 2, dim)])


def normal(source: Source, k: int) -> Values:
    return source.standard_normal(k)


def top(source: Source, k: int) -> Values:
    """The k largest of many, so that there is a threshold; signs in runs."""
    large = np.sort(np.abs(source.standard_normal(20 * k + 1)))[-k:] * 1e-3 if k else np.zeros(0)
    return source.permutation(large) * np.where(np.cumsum(source.random(k) < 0.05) % 2, 1, -1)


def any_bits(source: Source, k: int) -> Values:
    """Every finite float32 alike: all exponents, subnormals."""
    bits = source.integers(0, 2**32, k, dtype=np.uint32)
    bits[bits & 0x7F800000 == 0x7F800000] &= 0x807FFFFF
    return bits.view(np.float32).astype(np.float64)


def corners(source: Source, k: int) -> Values:
    tiny, huge = 2.0**-149, float(np.finfo(np.float32).max)
    return source.choice([0.0, -0.0, tiny, -tiny, 2.0**-126, 1.0, -1.0, huge, -huge, 65504.0, 65520.0], k)


def zeros(source: Source, k: int) -> Values:
    return source.choice([0.0, -0.0], k)


def sparse_zeros(source: Source, k: int) -> Values:
    return np.where(source.random(k) < 0.6, 0.0, source.standard_normal(k))


def constant(source: Source, k: int) -> Values:
    return np.full(k, source.choice([0.0, -0.0, 1.5, -3.0, 2.0**-149]))


def few(source: Source, k: int) -> Values:
    """A few magnitudes, the smaller the more often, as rounding to few bits leaves them; sometimes zero is one."""
    levels: Values = np.sort(np.abs(source.standard_normal(source.choice([1, 2, 3, 4, 8, 16, 17, 60]))))
    levels[0] *= source.random() < 0.7
    places = np.minimum(source.geometric(source.choice([0.1, 0.5, 0.9, 0.98]), k) - 1, len(levels) - 1)
    values: Values = np.copysign(levels[places], source.choice([-1.0, 1.0], k))
    return values


INDICES: list[Callable[[Source, int, int], Indices]] = [scattered, clustered, block, ends]
VALUES: list[Callable[[Source, int], Values]] = [
    normal,
    top,
    any_bits,
    corners,
    zeros,
    sparse_zeros,
    constant,
    few,
]


def message(
    seed: int,
    dim: int,
    k: int,
    indices: Callable[[Source, int, int], Indices] = scattered,
    values: Callable[[Source, int], Values] = normal,
    dtype: torch.dtype = torch.float32,
) -> Sparse:
    source = np.random.default_rng(seed)
    order = source.permutation(k)
    places = torch.from_numpy(np.ascontiguousarray(indices(source, dim, k)[order]))
    return Sparse(places, torch.from_numpy(values(source, k)).to(dtype), dim)


@st.composite
def messages(draw: st.DrawFn, dtype: torch.dtype = torch.float32, most: int = 600) -> Sparse:
    """Any message; small ones, the empty and the full one more often than chance would have it."""
    dim = draw(st.one_of(st.integers(1, 20), st.integers(1, most)))
    k = draw(st.one_of(st.integers(0, dim), st.sampled_from([0, 1, dim // 2, dim - 1, dim]), st.integers(0, dim // 10)))
    return message(
        draw(st.integers(0, 2**32)),
        dim,
        k,
        draw(st.sampled_from(INDICES)),
        draw(st.sampled_from(VALUES)),
        dtype,
    )


def ordered(sparse: Sparse) -> Sparse:
    """The same set, ascending by index."""
    order = sparse.indices.argsort(dim=-1)
    return Sparse(sparse.indices.gather(-1, order), sparse.values.gather(-1, order), sparse.dim)


def bits_of(values: torch.Tensor) -> list[int]:
    """Equal only for the same bits: tells 0.0 from -0.0."""
    numbers: list[int] = values.view(torch.int64 if values.dtype == torch.float64 else torch.int32).tolist()
    return numbers
