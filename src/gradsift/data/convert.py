"""Convert arrays, images of any layout, client ids and split marks to the form that ``FederatedData`` needs."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gradsift.errors import GradsiftError
from gradsift.registry import nearest

LAYOUTS = ["auto", "channels-first", "channels-last", "as-is"]
CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency


def tensor(name: str, values: ArrayLike | Tensor) -> Tensor:
    """Convert numbers of any byte order and strides to a tensor; anything but numbers is refused."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as problem:
        raise GradsiftError(f"{name} is not one array of numbers: {problem}") from None
    if array.dtype.kind not in "biuf":
        raise GradsiftError(f"{name} must hold numbers, got dtype {array.dtype}")
    dtype = array.dtype.newbyteorder("=")
    if array.dtype.kind == "u" and array.itemsize > 1:  # torch supports hardly any operation on these types
        if array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise GradsiftError(f"{name} holds {int(array.max())}, too large for int64")
        dtype = np.dtype(np.int64)
    elif array.dtype.kind == "f" and array.itemsize > 8:
        dtype = np.dtype(np.float64)
    array = array.astype(dtype, copy=False)
    if not array.flags.writeable or not array.flags.c_contiguous or min(array.strides, default=0) < 0:
        array = array.copy(order="C")  # torch refuses negative strides and warns about read-only arrays
    return torch.from_numpy(array)


def inputs(values: Tensor, layout: str = "auto", name: str = "x") -> Tensor:
    """Convert samples [n, ...] to model inputs.

    ``"as-is"`` changes nothing. Otherwise bytes become value / 255, floats float32, and other integers int64: those are
    token ids, and keep their shape. Bytes and floats of three and four dimensions are images: [n, H, W] gets one
    channel, and [n, H, W, C] becomes [n, C, H, W] if the layout is ``"channels-last"``, or if it is ``"auto"`` and C is
    1, 3 or 4.
    """
    if layout not in LAYOUTS:
        raise GradsiftError(f"unknown layout {layout!r}{nearest(layout, LAYOUTS)}")
    if layout == "as-is":
        return values
    if _are_token_ids(values):
        return numbers(values)
    if layout == "channels-last" and values.dim() != 4:
        raise GradsiftError(f"layout 'channels-last' is for [n, H, W, C], {name} is {list(values.shape)}")
    if values.dim() == 3:
        values = values.unsqueeze(1)
    elif values.dim() == 4 and (layout == "channels-last" or (layout == "auto" and _is_channels_last(values, name))):
        values = values.permute(0, 3, 1, 2)
    return numbers(values)


def numbers(values: Tensor) -> Tensor:
    """Convert bytes to value / 255, floats to float32 and other integers to int64, without a change of shape."""
    if _are_token_ids(values):
        return values.long()
    floats = values.to(torch.float32, memory_format=torch.contiguous_format).contiguous()
    return floats.div_(255) if values.dtype == torch.uint8 else floats  # in place, because floats is a copy of bytes


def _are_token_ids(values: Tensor) -> bool:
    return not values.is_floating_point() and values.dtype not in (torch.uint8, torch.bool)


def _is_channels_last(images: Tensor, name: str) -> bool:
    _, first, _, last = images.shape
    if first in CHANNELS and last in CHANNELS and images.numel():
        raise GradsiftError(
            f"{name} of shape {list(images.shape)} may have its channels first or last:"
            " choose layout='channels-first' or layout='channels-last'"
        )
    return last in CHANNELS


def targets(values: Tensor) -> Tensor:
    """Convert class labels (integers) to int64, and targets (floats) to float32."""
    return values.float() if values.is_floating_point() else values.long()


def client_ids(values: ArrayLike | Tensor, samples: int) -> NDArray[Any]:
    """Check the client of each row, an integer or a name; returns them as int64 or as text."""
    ids = np.asarray(values)
    if ids.shape != (samples,):
        raise GradsiftError(f"client must name the owner of each of {samples} rows, got shape {list(ids.shape)}")
    if ids.dtype.kind == "O" and all(isinstance(name, str) for name in ids):  # names in pandas
        ids = ids.astype(str)
    if ids.dtype.kind == "U":
        return ids
    if ids.dtype.kind not in "iu" and len(ids):
        raise GradsiftError(f"client must hold integers or names, got dtype {ids.dtype}")
    return ids.astype(np.int64)


def split_mask(name: str, values: ArrayLike, samples: int) -> NDArray[np.bool_]:
    """Check the split of each row, 0 (train) or 1 (test); returns True for the test rows."""
    marks = np.asarray(values)
    if marks.shape != (samples,):
        raise GradsiftError(f"{name} must mark each of {samples} rows, got shape {list(marks.shape)}")
    if marks.dtype.kind not in "biuf":
        raise GradsiftError(f"{name} must hold 0 (train) or 1 (test), got dtype {marks.dtype}")
    bad = np.flatnonzero((marks != 0) & (marks != 1))
    if len(bad):
        raise GradsiftError(f"{name} must hold 0 (train) or 1 (test), got {marks[bad[0]]} in row {bad[0]}")
    return marks.astype(bool)
