"""The sizes of many messages at once are those of each by itself."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.low_bits import rounded
from gradsift import GradsiftError, Sparse, top_k
from gradsift.sparse import Ragged
from gradsift.wire import VALUE_TYPES, batch, codec, encode, encoded_size
from gradsift.wire.number_types import number_type
from tests.examples import examples
from tests.wire.messages import INDICES, VALUES, Source, Values, few, message, normal, top


def stacked(rows: list[Sparse]) -> Sparse:
    return Sparse(torch.stack([row.indices for row in rows]), torch.stack([row.values for row in rows]), rows[0].dim)


def one_by_one(sparse: Sparse, values: str | None = None) -> list[int]:
    return [len(encode(Sparse(i, v, sparse.dim), values=values)) for i, v in zip(*sparse[:2], strict=True)]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are computed on the device, as they are on CUDA."""
    monkeypatch.setattr(codec, "queued", torch.is_tensor)


@given(
    seed=st.integers(0, 2**32),
    dim=st.one_of(st.integers(1, 40), st.integers(1, 2000)),
    share=st.floats(0, 1),
    rows=st.lists(st.tuples(st.sampled_from(INDICES), st.sampled_from(VALUES)), min_size=1, max_size=5),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@examples(300)
def test_any_rows(
    seed: int,
    dim: int,
    share: float,
    rows: list[tuple[Callable[[Source, int, int], np.ndarray], Callable[[Source, int], Values]]],
    dtype: torch.dtype,
) -> None:
    k = round(share * dim)
    sparse = stacked([message(seed + i, dim, k, indices, make, dtype) for i, (indices, make) in enumerate(rows)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "queued", torch.is_tensor)
        assert encoded_size(sparse).tolist() == one_by_one(sparse)


@pytest.mark.parametrize("bits", [None, 1, 2, 3, 4, 8])
@pytest.mark.parametrize("k", [1, 2, 300, 1_000, 10_000, 24_000])
def test_top_k_messages_are_counted_without_a_look_at_each(bits: int | None, k: int) -> None:
    torch.manual_seed(k)
    sparse = top_k(torch.distributions.Laplace(0.0, 1.0).sample(torch.Size([6, 50_000])), k)
    if bits is not None:
        sparse = rounded(sparse, bits)
    sizes = batch.sizes(sparse, number_type("float32"))
    assert sizes is not None
    assert sizes.tolist() == one_by_one(sparse)


@pytest.mark.parametrize("indices", INDICES)
@pytest.mark.parametrize("make", [normal, top, few])
def test_clusters_blocks_and_runs_of_signs(
    indices: Callable[[Source, int, int], np.ndarray], make: Callable[[Source, int], Values]
) -> None:
    """Rows of every kind together, some with zeros, which are sent for by themselves."""
    sparse = stacked([message(seed, 9000, 2000, indices, make) for seed in range(8)])
    sizes = batch.sizes(sparse, number_type("float32"))
    assert sizes is not None
    without_zeros = (sparse.values != 0).all(-1).numpy()
    assert (sizes > 0).tolist() == without_zeros.tolist()
    assert sizes[without_zeros].tolist() == np.array(one_by_one(sparse))[without_zeros].tolist()


@pytest.mark.parametrize("dim", [2**30 - 1, 2**30, 2**31, 2**32 + 7, 2**48 - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dimensions_beyond_short_integers(dim: int, dtype: torch.dtype) -> None:
    last = torch.tensor([0, 1, dim // 2 - 1, dim // 2, dim - 2, dim - 1])
    first = torch.tensor([0, 2, 2**29, 2**29 + 1, 2**30 - 3, 2**30 - 2])
    sparse = Sparse(
        torch.stack([last, first]), torch.tensor([[1.0, -1, 2, 2, 1, 3], [1, 2, 3, 4, 5, 6]]).to(dtype), dim
    )
    sizes = batch.sizes(sparse, number_type(str(dtype).removeprefix("torch.")))
    assert sizes is not None
    assert sizes.tolist() == one_by_one(sparse)


def test_very_many_levels_beside_few() -> None:
    """The joined places of the one row would overflow."""
    sparse = stacked([message(0, 200_000, 70_000), message(1, 200_000, 70_000)])
    sparse.values[1] = sparse.values[1].sign()
    sizes = batch.sizes(sparse, number_type("float32"))
    assert sizes is not None
    assert sizes.tolist() == one_by_one(sparse)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("values", [None, *VALUE_TYPES])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_every_value_type_of_every_dtype(values: str | None, dtype: torch.dtype) -> None:
    sparse = stacked([message(seed, 500, 90, values=few, dtype=dtype) for seed in range(6)])
    assert encoded_size(sparse, values=values).tolist() == one_by_one(sparse, values)


@pytest.mark.usefixtures("at_once")
def test_one_message_no_message_padded_ones_and_whole_vectors() -> None:
    one = message(0, 500, 20)
    assert encoded_size(one) == len(encode(one))
    assert encoded_size(Sparse(one.indices[:0], one.values[:0], 500)) > 0
    assert encoded_size(Sparse(one.indices[None, :0], one.values[None, :0], 500)).shape == (1,)
    padded = Ragged(torch.tensor([[1, 2, 9], [4, 9, 9]]), torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]]), 9)
    short = Sparse(padded.indices[1, :1], padded.values[1, :1], 9)
    assert encoded_size(padded).tolist()[1] == len(encode(short))
    whole = stacked([message(seed, 60, 60) for seed in range(3)])
    assert encoded_size(whole).tolist() == one_by_one(whole)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("indices", "value", "reason"),
    [
        ([3, 1, 3], 1.0, "index 3 twice in row 1"),
        ([3, 1, -1], 1.0, "index -1, outside"),
        ([3, 1, 90], 1.0, "index 90, outside"),
        ([3, 1, 2**32 + 2], 1.0, "index 4294967298, outside"),
        ([3, 1, 2], float("nan"), "must be finite, got nan"),
    ],
)
def test_what_is_not_a_message_is_refused_as_ever(indices: list[int], value: float, reason: str) -> None:
    rows = Sparse(torch.tensor([[1, 2, 3], indices]), torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, value]]), 90)
    with pytest.raises(GradsiftError, match=reason):
        encoded_size(rows)
