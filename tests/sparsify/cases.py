"""The table of sparsifiers that the contract tests run, and what those tests are made of.

A new sparsifier is tested by adding a line to ``TABLE``.

Shapes: residual [N, D], upload [N, k], share [N], merged [k].
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import gradsift
from gradsift import Round, Sparse, Sparsifier, sparse
from gradsift.sparse import Ragged
from tests.reference import literal


class Contract(NamedTuple):
    """What the tests expect of a sparsifier beyond what they expect of every one."""

    dense: bool
    down_limited: bool  # the downlink has k elements at most; else it is the whole union
    options: dict[str, Any] = {}  # noqa: RUF012
    twin: type[literal.Procedure] | None = None  # where there is one, both must agree to the bit


TABLE = {
    "fab-top-k": Contract(dense=False, down_limited=True, twin=literal.FabTopK),
    "fub-top-k": Contract(dense=False, down_limited=True, twin=literal.FubTopK),
    "unidirectional-top-k": Contract(dense=False, down_limited=False, twin=literal.UnidirectionalTopK),
    "periodic-k": Contract(dense=False, down_limited=True, twin=literal.PeriodicK),
    "fedavg": Contract(dense=True, down_limited=False, twin=literal.SendAll),
    "send-all": Contract(dense=True, down_limited=False, twin=literal.SendAll),
}
ALL = sorted(TABLE)
SPARSE = [name for name in ALL if not TABLE[name].dense]
DENSE = [name for name in ALL if TABLE[name].dense]
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


WAYS = ("plain", "queued", "queued, long rows")


@contextmanager
def going(way: str) -> Iterator[None]:
    """The code as it goes on the CPU, or as it is queued on CUDA, where rows may be too long to make dense."""
    with pytest.MonkeyPatch.context() as patch:
        if way != "plain":
            patch.setattr(sparse, "queued", lambda _: True)
        if way == "queued, long rows":
            patch.setattr(sparse, "_LONG_ROW", 0)
        yield


def make(name: str) -> Sparsifier:
    return gradsift.sparsifier(name, **TABLE[name].options)


class Instance(NamedTuple):
    """The clients of one round."""

    residual: Tensor  # float64 [N, D]
    share: Tensor  # float64 [N]
    rnd: Round


def values(kind: str, clients: int, dim: int, source: np.random.Generator) -> Tensor:
    """[N, D] of one kind; "ties" and "dyadic" are exact in every sum with dyadic shares."""
    shape = (clients, dim)
    if kind == "ties":
        drawn = source.integers(-3, 4, shape).astype(np.float64)
    elif kind == "zeros":
        drawn = np.zeros(shape)
    elif kind == "equal":
        drawn = np.repeat(source.normal(size=(1, dim)), clients, axis=0)
    elif kind == "wild":
        drawn = source.normal(size=shape) * 10.0 ** source.integers(-300, 300, shape)
    elif kind == "dyadic":
        drawn = source.integers(-4096, 4097, shape) / 64
    else:
        drawn = source.normal(size=shape)
    return torch.from_numpy(drawn)


def shares(kind: str, clients: int, source: np.random.Generator) -> Tensor:
    """[N], summing to 1: equal, some of them zero, any, or multiples of 1/64."""
    if kind == "equal":
        drawn = np.full(clients, 1 / clients)
    elif kind == "dyadic":
        drawn = source.multinomial(64, np.full(clients, 1 / clients)) / 64
    else:
        drawn = source.random(clients)
        if kind == "zeros":
            drawn[source.permutation(clients)[: clients // 2]] = 0.0
        drawn /= drawn.sum()
    return torch.from_numpy(drawn)


@st.composite
def instances(
    draw: st.DrawFn,
    kind: str | None = None,
    share: str | None = None,
    max_clients: int = 6,
    max_dim: int = 12,
    client_k: bool = False,
) -> Instance:
    """The clients of a round that all send k elements; ``client_k``: each as many as it has a k of its own."""
    clients = draw(st.integers(1, max_clients))
    dim = draw(st.integers(1, max_dim))
    k = draw(st.one_of(st.sampled_from([1, dim]), st.integers(1, dim)))
    source = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = kind or draw(st.sampled_from(["ties", "normal", "zeros", "equal", "wild", "dyadic"]))
    share = share or draw(st.sampled_from(["equal", "any", "zeros", "dyadic"]))
    rnd = Round(
        number=draw(st.integers(1, 12)),
        k=k,
        seed=draw(st.sampled_from([0, 1, 2**64 - 1])),
        offset=draw(st.integers(0, 3 * dim)),
    )
    if client_k:
        low = draw(st.sampled_from([1, k]))  # now and then all of them are k
        rnd = rnd.at([draw(st.integers(low, k)) for _ in range(clients)])
    return Instance(values(kind, clients, dim, source), shares(share, clients, source), rnd)


def as_dict(message: Sparse) -> dict[int, float]:
    """One message [k] as the twins write it; of rows of different lengths without the places that are not used."""
    pairs = list(zip(message.indices.tolist(), message.values.tolist(), strict=True))
    if isinstance(message, Ragged):
        assert all(value == 0 for index, value in pairs if index == message.dim)
        pairs = [(index, value) for index, value in pairs if index < message.dim]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def as_dicts(messages: Sparse) -> list[dict[int, float]]:
    """N messages [N, k]."""
    kind = Ragged if isinstance(messages, Ragged) else Sparse
    rows = zip(messages.indices, messages.values, strict=True)
    return [as_dict(kind(indices, values, messages.dim)) for indices, values in rows]


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor: 0.0 and -0.0 differ."""
    flat = tensor.detach().cpu().reshape(-1)
    return flat.new_empty(flat.shape).copy_(flat).view(torch.uint8)  # whatever its strides are, those of none too


def assert_same(left: Tensor, right: Tensor) -> None:
    """Bit for bit."""
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert torch.equal(bits(left), bits(right)), f"{left} is not {right}"


def assert_same_set(left: Sparse, right: Sparse) -> None:
    """The same elements, bit for bit, in whatever order."""
    assert left.dim == right.dim
    by_left, by_right = left.indices.argsort(dim=-1), right.indices.argsort(dim=-1)
    assert_same(left.indices.gather(-1, by_left), right.indices.gather(-1, by_right))
    assert_same(left.values.gather(-1, by_left), right.values.gather(-1, by_right))


def shuffled(messages: Sparse, seed: int) -> Sparse:
    """The same sets, each row in an order of its own."""
    source = torch.Generator().manual_seed(seed)
    order = torch.rand(messages.indices.shape, generator=source).argsort(dim=-1).to(messages.indices.device)
    kind = Ragged if isinstance(messages, Ragged) else Sparse
    return kind(messages.indices.gather(-1, order), messages.values.gather(-1, order), messages.dim)


def tensors(arguments: object) -> list[Tensor]:
    """Every tensor in (nested tuples of) arguments."""
    if isinstance(arguments, Tensor):
        return [arguments]
    return [t for part in arguments for t in tensors(part)] if isinstance(arguments, tuple | list) else []


@contextmanager
def unchanged(*arguments: object) -> Iterator[None]:
    """Inside, nothing may write to the tensors in ``arguments``."""
    held = tensors(arguments)
    before = [tensor.clone() for tensor in held]
    yield
    for tensor, copy in zip(held, before, strict=True):
        assert_same(tensor, copy)
