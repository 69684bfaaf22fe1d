"""Checks of the tensors and messages that a user passes in; each error quotes the bad value."""

import torch
from torch import Tensor

from gradsift.check import integer
from gradsift.errors import GradsiftError
from gradsift.sparse import Ragged, Sparse

SHARE_TOLERANCE = 1e-6


def tensor(name: str, values: object) -> None:
    """Require a tensor, not a list or an array."""
    if not isinstance(values, Tensor):
        raise GradsiftError(f"{name} must be a tensor, got {values!r}")


def finite(name: str, values: Tensor) -> None:
    """Require floating-point numbers without NaN and infinity; the error quotes the first bad one and its index."""
    tensor(name, values)
    if not values.is_floating_point():
        raise GradsiftError(f"{name} must hold floating-point numbers, got {values.dtype}")
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        place = bad.nonzero()[0].tolist()
        raise GradsiftError(f"{name} must be finite, got {values[tuple(place)].item()} at {place}")


def residual(values: Tensor) -> None:
    """Require the residual [D] of one client or [N, D] of N clients, finite and not empty."""
    tensor("residual", values)
    if values.dim() not in (1, 2):
        raise GradsiftError(f"residual must be [D] or [N, D], got shape {list(values.shape)}")
    if values.shape[-1] == 0:
        raise GradsiftError(f"residual must have at least one element, got shape {list(values.shape)}")
    if values.shape[0] == 0:
        raise GradsiftError(f"residual must have at least one client, got shape {list(values.shape)}")
    finite("residual", values)


def sparse(name: str, message: Sparse, rows: bool) -> None:
    """Require equal shapes, indices in range and distinct within a row, and finite values; ``rows`` allows [N, k]."""
    indices, values, dim = message
    tensor(f"{name}.indices", indices)
    tensor(f"{name}.values", values)
    integer(f"{name}.dim", dim, 1)
    if indices.shape != values.shape:
        raise GradsiftError(f"{name}: indices {list(indices.shape)} and values {list(values.shape)} differ in shape")
    if indices.dim() not in ((1, 2) if rows else (1,)):
        raise GradsiftError(f"{name} must be {'[k] or [N, k]' if rows else '[k]'}, got {list(indices.shape)}")
    if indices.dtype != torch.int64:
        raise GradsiftError(f"{name}.indices must be int64, got {indices.dtype}")
    if indices.device != values.device:
        raise GradsiftError(f"{name}: indices are on {indices.device}, values on {values.device}")
    if indices.dim() == 2 and indices.shape[0] == 0:
        raise GradsiftError(f"{name} must have at least one client, got shape {list(indices.shape)}")
    finite(f"{name}.values", values)
    outside = (indices < 0) | (indices >= message.span)
    if isinstance(message, Ragged) and bool((values[indices == dim] != 0).any()):
        raise GradsiftError(f"{name} has padding (index {dim}) with a value other than 0")
    if bool(outside.any()):
        place = outside.nonzero()[0].tolist()
        raise GradsiftError(f"{name} holds index {indices[tuple(place)].item()}, outside [0, {dim}), at {place}")
    ordered = indices.sort(dim=-1).values
    twice = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] < dim)
    if bool(twice.any()):
        place = twice.nonzero()[0].tolist()
        row = f" in row {place[0]}" if indices.dim() == 2 else ""
        raise GradsiftError(f"{name} holds index {ordered[tuple(place)].item()} twice{row}")


def share(values: Tensor, clients: int) -> None:
    """Require one non-negative share per client, summing to 1."""
    tensor("share", values)
    if values.dim() != 1 or values.shape[0] != clients:
        raise GradsiftError(f"share must have shape [{clients}], one for each upload, got {list(values.shape)}")
    finite("share", values)
    lowest = values.min().item()
    if lowest < 0:
        raise GradsiftError(f"share must not be negative, got {lowest} for client {int(values.argmin())}")
    total = values.double().sum().item()
    if abs(total - 1) > SHARE_TOLERANCE:
        raise GradsiftError(f"shares must sum to 1, got {total!r}")
