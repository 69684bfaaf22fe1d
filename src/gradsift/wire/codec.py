"""Encode a ``Sparse``, or compute how many bytes it needs and which values the receiver will decode.

Shapes: indices and values [k], or [N, k] for the messages of N clients.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from gradsift import check, check_tensors
from gradsift.sparse import Ragged, Sparse, queued
from gradsift.wire import batch
from gradsift.wire.bits import CodecError, Ints, Part
from gradsift.wire.integers import MAX_BITS
from gradsift.wire.message import plan
from gradsift.wire.number_types import TYPES, Floats, NumberType, number_type

_DENSE = 100  # up to this many dimensions for each element, scattering over all dimensions is faster than sorting


def encode(sparse: Sparse, *, values: str | None = None) -> bytes:
    """Encode one message [k]; ``values`` names the type in which its values are sent, by default their own (lossless).

    "float32" and "float64" keep values of that type bit for bit. "float16", "bfloat16" and "int8" round the values:
    ``transmitted`` returns the result.
    """
    if sparse.indices.dim() != 1:
        raise CodecError(f"a message must have shape [k], got {list(sparse.indices.shape)}")
    return _plans(sparse, values)[0].write()


def encoded_size(sparse: Sparse, *, values: str | None = None) -> NDArray[np.int64]:
    """Return the length of ``encode(sparse)`` without encoding: shape [] for a message [k], [N] for [N, k]."""
    # On the CPU, one row after the other is quicker: each stays in the cache.
    sizes = batch.sizes(sparse, _kind(sparse, values)) if queued(sparse.values) else None
    if sizes is None:
        return _sizes(sparse, values).reshape(sparse.indices.shape[:-1])
    left = np.flatnonzero(sizes == 0)
    if len(left):
        sizes[left] = _sizes(sparse.rows(torch.from_numpy(left).to(sparse.indices.device)), values)
    return sizes


def _sizes(sparse: Sparse, values: str | None) -> NDArray[np.int64]:
    return np.array([part.size for part in _plans(sparse, values)], np.int64)


def transmitted(sparse: Sparse, *, values: str | None = None) -> Sparse:
    """Return what ``decode(encode(sparse, values=values))`` holds, in the order of ``sparse``; [k] or [N, k].

    A client must settle with this and not with ``sparse``, so that the rounding error stays in its residual.
    """
    kind, numbers = _kind(sparse, values), _numbers(sparse)
    rounded = torch.from_numpy(kind.join(kind.split(numbers)))
    return sparse.with_values(rounded.to(sparse.values.device))


def _kind(sparse: Sparse, values: str | None) -> NumberType:
    """Return the type in which to send the values; a malformed message is refused."""
    check.integer("dim", sparse.dim, 1, 2**MAX_BITS - 1)
    shape = sparse.indices.shape
    if shape != sparse.values.shape or len(shape) not in (1, 2) or sparse.indices.dtype != torch.int64:
        check_tensors.sparse("message", sparse, rows=True)
    own_type = str(sparse.values.dtype).removeprefix("torch.")
    if not sparse.values.is_floating_point() or own_type not in TYPES:
        raise CodecError(f"values must be floating-point numbers, got {sparse.values.dtype}")
    return number_type(own_type if values is None else values)


def _numbers(sparse: Sparse) -> Floats:
    """Return the values as a numpy array; only finite ones are accepted."""
    tensor = sparse.values.detach().cpu()
    if tensor.element_size() < 4:
        tensor = tensor.float()  # numpy has no bfloat16
    numbers = tensor.contiguous().numpy()
    if not np.isfinite(numbers).all():
        check_tensors.finite("values", sparse.values)
    return numbers


def _plans(sparse: Sparse, values: str | None) -> list[Part]:
    """Return the message of each row, of one row for [k]; indices that are out of range or repeated are refused."""
    kind, numbers = _kind(sparse, values), _numbers(sparse)
    indices = sparse.indices.cpu().contiguous().numpy()
    if indices.size and not 0 <= indices.min() <= indices.max() < sparse.span:
        check_tensors.sparse("message", sparse, rows=True)
    messages = []
    for row, row_numbers in zip(np.atleast_2d(indices), np.atleast_2d(numbers), strict=True):
        if isinstance(sparse, Ragged):
            used = row < sparse.dim
            row, row_numbers = row[used], row_numbers[used]
        ascending, ordered = _ascending(row, row_numbers, sparse.dim)
        if len(ascending) < len(row):
            check_tensors.sparse("message", sparse, rows=True)
        messages.append(plan(ascending, kind.split(ordered), sparse.dim, kind))
    return messages


def _ascending(indices: Ints, numbers: Floats, dim: int) -> tuple[Ints, Floats]:
    """Sort the pairs by index; an index that occurs twice is returned once."""
    if (indices[1:] > indices[:-1]).all():
        return indices, numbers
    if dim <= _DENSE * len(indices):
        present = np.zeros(dim, np.bool_)
        present[indices] = True
        full = np.empty(dim, numbers.dtype)
        full[indices] = numbers
        ascending = present.nonzero()[0]
        return ascending, full.take(ascending)
    ascending, places = np.unique(indices, return_index=True)
    return ascending, numbers.take(places)
