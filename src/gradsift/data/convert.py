"""From what people have (arrays, images of any layout) to the tensors a model takes."""

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
    """Numbers as a tensor, whatever their byte order and strides; anything but numbers is refused."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as problem:
        raise GradsiftError(f"{name} is not one array of numbers: {problem}") from None
    if array.dtype.kind not in "biuf":
        raise GradsiftError(f"{name} must hold numbers, got dtype {array.dtype}")
    wide: type[np.generic] | None = None
    if array.dtype.kind == "u" and array.itemsize > 1:  # torch has hardly an operation for these
        if array.itemsize == 8 and array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise GradsiftError(f"{name} holds {int(array.max())}, more than an int64 can")
        wide = np.int64
    elif array.dtype.kind == "f" and array.itemsize > 8:
        wide = np.float64
    array = array.astype(wide if wide is not None else array.dtype.newbyteorder("="), copy=False)
    if not array.flags.writeable or not array.flags.c_contiguous or min(array.strides, default=0) < 0:
        array = array.copy(order="C")  # torch takes no negative strides, and warns of what it must not write to
    return torch.from_numpy(array)


def inputs(values: Tensor, layout: str = "auto", name: str = "x") -> Tensor:
    """Samples [n, ...] as model inputs.

    ``"as-is"`` changes nothing. Otherwise bytes become value / 255, floats float32, and other integers int64: those are
    token ids, and keep their shape. Bytes and floats of three and four dimensions are images: [n, H, W] gets one
    channel, and [n, H, W, C] becomes [n, C, H, W] under ``"channels-last"``, or under ``"auto"`` where C is 1, 3 or 4.
    """
    check_layout(layout)
    if layout == "as-is":
        return values
    if not _is_image(values):
        return numbers(values)
    if layout == "channels-last" and values.dim() != 4:
        raise GradsiftError(f"layout 'channels-last' is for [n, H, W, C], {name} is {list(values.shape)}")
    if values.dim() == 3:
        values = values.unsqueeze(1)
    elif values.dim() == 4 and (layout == "channels-last" or (layout == "auto" and _is_channels_last(values, name))):
        values = values.permute(0, 3, 1, 2)
    return numbers(values)


def numbers(values: Tensor) -> Tensor:
    """Bytes as value / 255, floats as float32, other integers as int64; the shape stays."""
    if not _is_image(values):
        return values.long()
    single = values.to(torch.float32, memory_format=torch.contiguous_format).contiguous()
    return single.div_(255) if values.dtype == torch.uint8 else single  # in place: single is a copy of bytes


def _is_image(values: Tensor) -> bool:
    return values.is_floating_point() or values.dtype in (torch.uint8, torch.bool)


def check_layout(layout: str) -> None:
    """Refuse a layout that does not exist."""
    if layout not in LAYOUTS:
        raise GradsiftError(f"unknown layout {layout!r}{nearest(layout, LAYOUTS)}")


def _is_channels_last(images: Tensor, name: str) -> bool:
    _, first, _, last = images.shape
    if first in CHANNELS and last in CHANNELS and images.numel():
        raise GradsiftError(
            f"{name} of shape {list(images.shape)} may have its channels first or last:"
            " say layout='channels-first' or layout='channels-last'"
        )
    return last in CHANNELS


def targets(values: Tensor) -> Tensor:
    """Integers are class labels, int64; floats are targets, float32."""
    return values.float() if values.is_floating_point() else values.long()


def client_ids(values: ArrayLike | Tensor, samples: int) -> NDArray[Any]:
    """Who owns each row: integers or names, one a row."""
    ids = np.asarray(values)
    if ids.ndim != 1 or len(ids) != samples:
        raise GradsiftError(f"client must name the owner of each of {samples} rows, got shape {list(ids.shape)}")
    if ids.dtype.kind == "O" and all(isinstance(name, str) for name in ids):  # as pandas holds names
        ids = ids.astype(str)
    if ids.dtype.kind == "U":
        return ids
    if ids.dtype.kind not in "iu" and len(ids):
        raise GradsiftError(f"client must hold integers or names, got dtype {ids.dtype}")
    return ids.astype(np.int64)
