"""Compares the gradients of one pass with those of vmap on a trial batch, before a run relies on them.

Shapes: n clients, b samples each.
"""

import contextlib
import itertools
import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gradsift.simulation.memory import free_bytes
from gradsift.simulation.one_pass import OnePass

if TYPE_CHECKING:
    from gradsift.simulation.flat import FlatModel

_DOUBLE_COPIES = 20  # of the weights, in double precision, that a trial makes


def verified(flat: "FlatModel", x: Tensor, y: Tensor) -> OnePass | None:
    """A ``OnePass`` for the model that agrees with vmap on a trial batch [n, b, ...], or None if none does.

    Gradients are compared in double precision, where rounding does not change the side of a ReLU or a maximum; the
    pass must also run in the model's own precision. If double precision fails or takes too much memory, they are
    compared in the model's own precision.
    """
    trials = [[(flat, x, y, True)]]
    double = _in_double(flat, x.device)
    if double is not None:
        trials.insert(0, [(flat, x, y, False), (double, _double(x), _double(y), True)])
    for trial, channels_last in itertools.product(trials, (True, False)):  # some modules need the plain layout
        if all(_works(*batch, channels_last, client_weights=False) for batch in trial):
            client_weights = all(_works(*batch, channels_last, client_weights=True) for batch in trial)
            return _one_pass(flat, channels_last, client_weights)
    return None


def _in_double(flat: "FlatModel", device: torch.device) -> "FlatModel | None":
    needed = _DOUBLE_COPIES * flat.dim * torch.float64.itemsize
    if flat.dtype == torch.float64 or needed > free_bytes(device):
        return None
    try:
        return type(flat)(flat.module, flat.loss.function, device, torch.float64)
    except Exception:  # a module may refuse double precision
        return None


def _double(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values


def _one_pass(flat: "FlatModel", channels_last: bool, client_weights: bool) -> OnePass:
    layout = {"channels_last": channels_last, "takes_client_weights": client_weights}
    return OnePass(flat.module, flat.spans, flat.loss, **layout)


def _works(
    flat: "FlatModel", x: Tensor, y: Tensor, compare: bool, channels_last: bool, *, client_weights: bool
) -> bool:
    """Whether the pass runs and, if ``compare``, gives the same gradients as vmap."""
    if x.is_floating_point():  # clients of different scale expose statistics that are taken over all samples together
        x = x * torch.linspace(1, 0.5, len(x), device=x.device, dtype=x.dtype).view(-1, *[1] * (x.dim() - 1))
    try:
        one_pass = _one_pass(flat, channels_last, client_weights)
        with _no_dropout(flat.module, one_pass.module):
            for point in _points(flat, len(x), client_weights):
                gradients = point.new_zeros(len(x), flat.dim)
                if compare and not _agree(flat, one_pass, gradients, point, x, y):
                    return False
                if not compare:
                    one_pass.add_gradients(gradients, point, x, y)
    except Exception:  # if the module itself is at fault, vmap or the loop over the clients raises its error
        return False
    return True


def _points(flat: "FlatModel", clients: int, client_weights: bool) -> list[Tensor]:
    """Weights to compare at: not only the initial ones, since a last layer of zeros hides every gradient below it."""
    first = flat.weights()
    source = torch.Generator(first.device).manual_seed(0)
    moved = first.new_empty(clients, flat.dim).normal_(0, 0.1, generator=source).add_(first)
    return [moved] if client_weights else [first, moved[0]]


def _agree(flat: "FlatModel", one_pass: OnePass, gradients: Tensor, point: Tensor, x: Tensor, y: Tensor) -> bool:
    """Whether both give the same gradients at ``point``, parameter by parameter."""
    with _without_tf32():
        one_pass.add_gradients(gradients, point, x, y)
        sizes = [_largest(gradients[:, span]) for span in flat.spans.values()]
        flat.add_by_vmap(gradients.neg_(), point, {}, x, y)  # leaves the difference
    tolerance = math.sqrt(torch.finfo(point.dtype).eps)
    distances = [_largest(gradients[:, span]) for span in flat.spans.values()]
    return all(distance <= tolerance * size for distance, size in zip(distances, sizes, strict=True))


def _largest(values: Tensor) -> float:
    """The largest absolute value, without a copy."""
    return float(torch.maximum(values.max(), -values.min()))


@contextlib.contextmanager
def _no_dropout(*modules: nn.Module) -> Iterator[None]:
    """Switch dropout off, which would draw different masks in the two computations."""
    parts = [part for module in modules for part in module.modules()]
    drops = [part for part in parts if isinstance(part, nn.modules.dropout._DropoutNd) and part.training]
    for part in drops:
        part.training = False
    try:
        yield
    finally:
        for part in drops:
            part.training = True


@contextlib.contextmanager
def _without_tf32() -> Iterator[None]:
    """Convolutions on CUDA in full float32, since their results are compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to rename the switch
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32 = before
