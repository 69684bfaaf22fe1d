"""Whether a module may go the one-pass way: tried on a batch against the general way, before a run trusts it.

Shapes: n clients, b samples each.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gradsift.simulation.memory import free_bytes

if TYPE_CHECKING:
    from gradsift.simulation.flat import FlatModel

_DOUBLE_COPIES = 20  # of the weights, in double precision, that a trial makes


def agreement(flat: "FlatModel", x: Tensor, y: Tensor) -> tuple[bool | None, bool]:
    """In which order of images the ways agree (channels last or not; None: in neither), and if on own weights too.

    x and y are [n, b, ...]. They are compared in double precision, where rounding does not turn a ReLU or a maximum
    around, and what agrees must also run in the model's own. Where double precision does not work, or takes too much
    memory, they are compared in the model's own.
    """
    judges = [(flat, x, y)]
    exact = _in_double(flat, x.device)
    if exact is not None:
        judges.insert(0, (exact, _wide(x), _wide(y)))
    for judge, *trial in judges:

        def holds(channels_last: bool, own: bool, judge: "FlatModel" = judge, trial: list[Tensor] = trial) -> bool:
            runs = judge is flat or _works(flat, channels_last, own, x, y, compare=False)
            return runs and _works(judge, channels_last, own, *trial, compare=True)

        for channels_last in (True, False):  # some modules view what only the plain order lets them
            if holds(channels_last, False):
                return channels_last, holds(channels_last, True)
    return None, False


def _in_double(flat: "FlatModel", device: torch.device) -> "FlatModel | None":
    needed = _DOUBLE_COPIES * flat.dim * torch.float64.itemsize
    if flat.dtype == torch.float64 or needed > free_bytes(device):
        return None
    try:
        return type(flat)(flat.module, flat.loss, device, torch.float64)
    except Exception:  # a module may refuse it
        return None


def _wide(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values


def _works(flat: "FlatModel", channels_last: bool, own: bool, x: Tensor, y: Tensor, *, compare: bool) -> bool:
    """Whether the one-pass way runs, and gives what the general way does if they are to be compared."""
    if x.is_floating_point():  # clients that differ in scale, to show statistics taken over all samples together
        x = x * torch.linspace(1, 0.5, len(x), device=x.device, dtype=x.dtype).view(-1, *[1] * (x.dim() - 1))
    try:
        flat.share(channels_last, own)
        with _no_dropout(flat):
            for point in _points(flat, len(x), own):
                gradients = point.new_zeros(len(x), flat.dim)
                if compare and not _agree(flat, gradients, point, x, y):
                    return False
                if not compare:
                    flat.in_one_pass(gradients, point, x, y)
    except Exception:  # whatever it is: the general way will say what is wrong, if anything is
        return False
    finally:
        flat.unshare()
    return True


def _points(flat: "FlatModel", clients: int, own: bool) -> list[Tensor]:
    """Not the first weights alone: a head that starts at zero would hide every gradient below it."""
    first = flat.weights()
    source = torch.Generator(first.device).manual_seed(0)
    apart = first.new_empty(clients, flat.dim).normal_(0, 0.1, generator=source).add_(first)
    return [apart] if own else [first, apart[0]]


def _agree(flat: "FlatModel", gradients: Tensor, point: Tensor, x: Tensor, y: Tensor) -> bool:
    """Whether both ways give the same gradients at ``point``, parameter by parameter."""
    with _whole_precision():
        flat.in_one_pass(gradients, point, x, y)
        sizes = [_largest(gradients[:, span]) for span in flat.spans.values()]
        flat.batched(gradients.neg_(), point, {}, x, y)  # which leaves how far they are apart
    close = math.sqrt(torch.finfo(point.dtype).eps)
    apart = [_largest(gradients[:, span]) for span in flat.spans.values()]
    return all(far <= close * size for far, size in zip(apart, sizes, strict=True))


def _largest(values: Tensor) -> float:
    """The largest absolute value, without a copy."""
    return float(torch.maximum(values.max(), -values.min()))


@contextlib.contextmanager
def _no_dropout(flat: "FlatModel") -> Iterator[None]:
    """Two ways would draw differently."""
    drops = [part for part in flat.parts() if isinstance(part, nn.modules.dropout._DropoutNd) and part.training]
    for part in drops:
        part.training = False
    try:
        yield
    finally:
        for part in drops:
            part.training = True


@contextlib.contextmanager
def _whole_precision() -> Iterator[None]:
    """Convolutions on CUDA in float32, not in the shorter type that they may use there: ways are to be compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to rename the switch
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32 = before
