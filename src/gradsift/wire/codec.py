"""From a ``Sparse`` to bytes, to their number, and to what will arrive.

Shapes: indices and values [k], or [N, k] for N messages of as many clients.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from gradsift import check, check_tensors
from gradsift.sparse import Ragged, Sparse
from gradsift.wire.bits import Ints
from gradsift.wire.errors import CodecError
from gradsift.wire.huffman import Part
from gradsift.wire.integers import MAX_BITS
from gradsift.wire.message import plan
from gradsift.wire.number_types import Floats, NumberType, number_type

_OWN_TYPE = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
_SPREAD = 100  # up to so many dimensions an element, scattering over all of them is faster than sorting


def encode(sparse: Sparse, *, values: str | None = None) -> bytes:
    """One message [k] as bytes; ``values`` is the type they travel as, by default their own, so that nothing is lost.

    "float32" and "float64" keep a value of theirs bit by bit. "float16", "bfloat16" and "int8" round:
    ``transmitted`` says to what.
    """
    if sparse.indices.dim() != 1:
        raise CodecError(f"a message is one [k], got {list(sparse.indices.shape)}")
    return _plans(sparse, values)[0].write()


def encoded_size(sparse: Sparse, *, values: str | None = None) -> NDArray[np.int64]:
    """Bytes of the message that ``encode`` would make, without making it: [] for one, [N] for one a row of [N, k]."""
    sizes = np.array([part.size for part in _plans(sparse, values)], np.int64)
    return sizes.reshape(sparse.indices.shape[:-1])


def transmitted(sparse: Sparse, *, values: str | None = None) -> Sparse:
    """What the receiver of ``encode(sparse, values=values)`` will hold, in the order of ``sparse``; [k] or [N, k].

    This, not ``sparse``, is what a client settles with: then what rounding took stays in its residual.
    """
    kind, numbers = _numbers(sparse, values)
    arrived = torch.from_numpy(kind.join(kind.split(numbers)))
    return sparse.with_values(arrived.to(sparse.values.device))


def _numbers(sparse: Sparse, values: str | None) -> tuple[NumberType, Floats]:
    shape = sparse.indices.shape
    if shape != sparse.values.shape or len(shape) not in (1, 2) or sparse.indices.dtype != torch.int64:
        check_tensors.sparse("message", sparse, rows=True)
    own = _OWN_TYPE.get(sparse.values.dtype)
    if own is None:
        raise CodecError(f"values must be floating-point numbers, got {sparse.values.dtype}")
    kind = number_type(own if values is None else values)
    tensor = sparse.values.detach().cpu()
    if own in ("float16", "bfloat16"):
        tensor = tensor.float()  # numpy has no bfloat16
    numbers = tensor.contiguous().numpy()
    if not np.isfinite(numbers).all():
        check_tensors.finite("values", sparse.values)
    return kind, numbers


def _plans(sparse: Sparse, values: str | None) -> list[Part]:
    """The message of each row, or of the one there is; what is not a set of indices is refused."""
    check.integer("dim", sparse.dim, 1, 2**MAX_BITS - 1)
    kind, numbers = _numbers(sparse, values)
    indices = sparse.indices.cpu().contiguous().numpy()
    if indices.size and not 0 <= indices.min() <= indices.max() < sparse.span:
        check_tensors.sparse("message", sparse, rows=True)
    if indices.ndim == 1:
        indices, numbers = indices[None], numbers[None]
    made = []
    for row, row_numbers in zip(indices, numbers, strict=True):
        if isinstance(sparse, Ragged):
            used = row < sparse.dim
            row, row_numbers = row[used], row_numbers[used]
        ascending, ordered = _ascending(row, row_numbers, sparse.dim)
        if len(ascending) < len(row):
            check_tensors.sparse("message", sparse, rows=True)
        made.append(plan(ascending, kind.split(ordered), sparse.dim, kind))
    return made


def _ascending(indices: Ints, numbers: Floats, dim: int) -> tuple[Ints, Floats]:
    """The pairs in ascending order of the index; fewer of them if an index is there twice."""
    if (indices[1:] > indices[:-1]).all():
        return indices, numbers
    if dim <= _SPREAD * len(indices):
        there = np.zeros(dim, np.bool_)
        there[indices] = True
        full = np.empty(dim, numbers.dtype)
        full[indices] = numbers
        ascending = there.nonzero()[0]
        return ascending, full.take(ascending)
    ascending, places = np.unique(indices, return_index=True)
    return ascending, numbers.take(places)
