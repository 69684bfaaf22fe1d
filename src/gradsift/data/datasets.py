"""Read map-style torch datasets of (x, y) pairs into tensors, because a round takes samples of all clients at once."""

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gradsift.data.convert import tensor
from gradsift.errors import GradsiftError


class Samples(Protocol):
    """A map-style dataset: ``len(dataset)`` and ``dataset[i]``, a pair (x, y)."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """Return one pair (x, y)."""


def read(dataset: Samples, name: str) -> tuple[Tensor, Tensor]:
    """Read all samples, x [n, ...] and y [n, ...]; integer labels become int64."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise GradsiftError(f"{name} is not a map-style dataset (len() and [i]): {type(dataset).__name__}")
    pairs = [_pair(dataset[index], f"{name}[{index}]") for index in range(len(dataset))]
    if not pairs:
        raise GradsiftError(f"{name} has no samples")
    x, y = _column([x for x, _ in pairs], f"x of {name}"), _column([y for _, y in pairs], f"y of {name}")
    return x, y if y.is_floating_point() else y.long()


def _pair(sample: Any, where: str) -> tuple[Tensor, Tensor]:
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise GradsiftError(f"{where} is not a pair (x, y) but {type(sample).__name__}")
    for which, value in zip("xy", sample, strict=True):
        # An image object would become bytes [H, W, C], which no model takes; only the caller knows the right transform.
        if not isinstance(value, Tensor | np.ndarray | np.generic | int | float | list | tuple):
            problem = f"is a {type(value).__name__}, not numbers: give the dataset a transform to tensors"
            raise GradsiftError(f"{which} of {where} {problem}")
    return tensor(f"x of {where}", sample[0]), tensor(f"y of {where}", sample[1])


def _column(values: list[Tensor], name: str) -> Tensor:
    for index, value in enumerate(values):
        if value.shape != values[0].shape or value.dtype != values[0].dtype:
            raise GradsiftError(
                f"{name}: sample {index} is {value.dtype} {list(value.shape)},"
                f" sample 0 is {values[0].dtype} {list(values[0].shape)}"
            )
    return torch.stack(values).cpu()
