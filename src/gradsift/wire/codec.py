"""From a ``Sparse`` to bytes, to their number, and to what will arrive.

Shapes: indices and values [k], or [N, k] for N messages of as many clients.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradsift import check
from gradsift.sparse import Sparse
from gradsift.wire.bits import Ints
from gradsift.wire.errors import CodecError
from gradsift.wire.integers import MAX_BITS
from gradsift.wire.message import plan
from gradsift.wire.number_types import Floats, NumberType, Signed, number_type

_OWN_TYPE = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


def encode(sparse: Sparse, *, values: str | None = None) -> bytes:
    """One message [k] as bytes; ``values`` is the type they travel as, by default their own, so that nothing is lost.

    "float32" and "float64" keep a value of theirs bit by bit. "float16", "bfloat16" and "int8" round:
    ``transmitted`` says to what.
    """
    if sparse.indices.dim() != 1:
        raise CodecError(f"a message is one [k], got {list(sparse.indices.shape)}")
    kind, indices, numbers = _ordered(sparse, values)
    return plan(indices, kind.split(numbers), sparse.dim, kind).write()


def encoded_size(sparse: Sparse, *, values: str | None = None) -> NDArray[np.int64]:
    """Bytes of the message that ``encode`` would make, without making it: [] for one, [N] for one a row of [N, k]."""
    kind, indices, numbers = _ordered(sparse, values)
    signed = kind.split(numbers)
    if indices.ndim == 1:
        return np.array(plan(indices, signed, sparse.dim, kind).size)
    scales = np.broadcast_to(signed.scale, (len(indices), 1))[:, 0]
    rows = zip(indices, signed.negative, signed.magnitude, scales, strict=True)
    return np.array([plan(row, Signed(*rest), sparse.dim, kind).size for row, *rest in rows], np.int64)


def transmitted(sparse: Sparse, *, values: str | None = None) -> Sparse:
    """What the receiver of ``encode(sparse, values=values)`` will hold, in the order of ``sparse``; [k] or [N, k].

    This, not ``sparse``, is what a client settles with: then what rounding took stays in its residual.
    """
    kind, numbers = _numbers(sparse, values)
    arrived = torch.from_numpy(kind.join(kind.split(numbers)))
    return Sparse(sparse.indices, arrived.to(sparse.values.device), sparse.dim)


def _numbers(sparse: Sparse, values: str | None) -> tuple[NumberType, Floats]:
    own = _OWN_TYPE.get(sparse.values.dtype)
    if own is None:
        raise CodecError(f"values must be floating-point numbers, got {sparse.values.dtype}")
    kind = number_type(own if values is None else values)
    tensor: Tensor = sparse.values.detach()
    if own in ("float16", "bfloat16"):
        tensor = tensor.float()
    numbers = tensor.cpu().contiguous().numpy()
    if not np.isfinite(numbers).all():
        check.finite("values", sparse.values)
    return kind, numbers


def _ordered(sparse: Sparse, values: str | None) -> tuple[NumberType, Ints, Floats]:
    """The type, and indices and values in ascending order of the index; what is not a set of indices is refused."""
    check.integer("dim", sparse.dim, 1, 2**MAX_BITS - 1)
    shape = sparse.indices.shape
    if shape != sparse.values.shape or len(shape) not in (1, 2) or sparse.indices.dtype != torch.int64:
        check.sparse("message", sparse, rows=True)
    kind, numbers = _numbers(sparse, values)
    indices = sparse.indices.cpu().contiguous().numpy()
    steps = np.diff(indices, axis=-1)
    if (steps <= 0).any():
        order = np.argsort(indices, axis=-1)
        indices, numbers = np.take_along_axis(indices, order, -1), np.take_along_axis(numbers, order, -1)
        steps = np.diff(indices, axis=-1)
    ascending = bool((steps > 0).all())
    if not ascending or (indices.size and not 0 <= indices[..., 0].min() <= indices[..., -1].max() < sparse.dim):
        check.sparse("message", sparse, rows=True)
    return kind, indices, numbers
