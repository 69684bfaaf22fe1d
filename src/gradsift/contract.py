"""Checks of what the classes in the slots of a method return.

Only messages of a user's own classes are checked, in the first round, because a GPU waits for every check of values.
"""

import torch
from torch import Tensor

from gradsift import check_tensors
from gradsift.errors import GradsiftError
from gradsift.method import Method
from gradsift.sparse import Sparse
from gradsift.sparsify.base import Round


def check_upload(method: Method, rnd: Round, residual: Tensor, upload: Sparse) -> None:
    """Refuse an upload that is not one row of at most k elements for each row of ``residual``."""
    if not _to_check(method.sparsifier, rnd):
        return
    name = f"the upload of sparsifier {method.sparsifier.name!r}"
    _check_message(name, upload, residual.shape[-1])
    if upload.indices.shape[:-1] != residual.shape[:-1]:
        raise GradsiftError(f"{name} is {list(upload.indices.shape)} for residuals {list(residual.shape)}")
    if upload.size > rnd.k and not method.sparsifier.dense:
        raise GradsiftError(f"{name} has {upload.size} elements, but k is {rnd.k}")


def check_rounded(method: Method, rnd: Round, upload: Sparse, rounded: Sparse) -> None:
    """Refuse a rounded message that has other indices than the upload."""
    if _to_check(method.values, rnd):
        name = f"the result of value type {method.values.name!r}"
        _check_message(name, rounded, upload.dim)
        if not torch.equal(rounded.indices, upload.indices):
            raise GradsiftError(f"{name} has other indices than the upload")


def check_merged(method: Method, rnd: Round, uploads: Sparse, merged: Sparse) -> None:
    """Refuse an aggregate that has elements which no client sent."""
    if not _to_check(method.sparsifier, rnd):
        return
    name = f"the merged gradient of sparsifier {method.sparsifier.name!r}"
    _check_message(name, merged, uploads.dim)
    unknown = merged.indices[~torch.isin(merged.indices, uploads.indices)]
    if merged.indices.dim() != 1 or len(unknown):
        raise GradsiftError(f"{name} must be [k] of indices that were sent, got {merged.indices.tolist()!r:.80}")


def check_count(method: Method, gradients: int) -> None:
    """Refuse a local computation that took more or fewer gradients than a round is charged for."""
    local = method.local
    if gradients != local.computations:
        raise GradsiftError(
            f"local computation {local.name!r} took {gradients} gradients, its computations are {local.computations}"
        )


def _to_check(part: object, rnd: Round) -> bool:
    return rnd.number == 1 and not type(part).__module__.startswith("gradsift.")


def _check_message(name: str, message: Sparse, dim: int) -> None:
    if not isinstance(message, Sparse):
        raise GradsiftError(f"{name} must be a Sparse, got {message!r:.80}")
    check_tensors.sparse(name, message, rows=True)
    if message.dim != dim:
        raise GradsiftError(f"{name} is of {message.dim} elements, but the model has {dim}")
