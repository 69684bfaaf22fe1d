"""How a model's state_dict maps to the flat weight vector [D] and to its non-trainable entries.

The vector holds the trainable parameters in their order; a tied parameter counts once, under its first name. Frozen
parameters and buffers are the non-trainable entries: they are sent whole.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from gradsift.errors import GradsiftError

Named = dict[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """The names, shapes and types of a model's trainable parameters, in their order."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    tied: dict[str, str]  # a further name of a parameter -> its name in ``shapes``

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """The layout of a module's trainable parameters."""
        first_names: dict[int, str] = {}
        shapes, dtypes, tied = {}, {}, {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if not parameter.requires_grad:
                continue
            first = first_names.setdefault(id(parameter), name)
            if first != name:
                tied[name] = first
                continue
            if parameter.dtype not in (torch.float16, torch.float32, torch.float64):
                raise GradsiftError(f"parameter {name!r} is {parameter.dtype}: only float16, 32 and 64 are sent")
            shapes[name] = tuple(parameter.shape)
            dtypes[name] = str(parameter.dtype).removeprefix("torch.")
        if not shapes:
            raise GradsiftError(f"{type(module).__name__} has no trainable parameters")
        return cls(shapes, dtypes, tied)

    @classmethod
    def read(cls, text: str) -> "Layout":
        """The layout that ``text`` describes."""
        parts = json.loads(text)
        return cls({name: tuple(shape) for name, shape in parts["shapes"].items()}, parts["dtypes"], parts["tied"])

    @property
    def text(self) -> str:
        """The layout as JSON."""
        return json.dumps(asdict(self))

    @property
    def dim(self) -> int:
        """D, the number of trainable weights."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def dtype(self) -> torch.dtype:
        """The type of the flat vector: float64 if any parameter is, else float32."""
        return torch.float64 if "float64" in self.dtypes.values() else torch.float32

    def flatten(self, state: Mapping[str, Tensor], what: str = "arrays") -> Tensor:
        """[D] the parameters in ``state``; a missing one, or one of another shape, is refused by name."""
        parts = []
        for name, shape in self.shapes.items():
            if name not in state:
                raise GradsiftError(f"{what}: parameter {name!r} is missing")
            if tuple(state[name].shape) != shape:
                raise GradsiftError(f"{what}: {name!r} has shape {list(state[name].shape)}, expected {list(shape)}")
            parts.append(state[name].detach().to("cpu", self.dtype).reshape(-1))
        return torch.cat(parts)

    def unflatten(self, flat: Tensor) -> Named:
        """The parameters under all their names, each in its own type."""
        parts = torch.split(flat, [math.prod(shape) for shape in self.shapes.values()])
        state = {
            name: part.reshape(shape).to(getattr(torch, self.dtypes[name]))
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }
        return state | {name: state[first] for name, first in self.tied.items()}

    def non_trainable(self, state: Mapping[str, Tensor]) -> Named:
        """The entries of ``state`` that are not trainable parameters."""
        return {name: value for name, value in state.items() if name not in self.shapes and name not in self.tied}


def with_prefix(prefix: str, named: Named) -> Named:
    """The same tensors under names that start with ``prefix``."""
    return {prefix + name: value for name, value in named.items()}


def under_prefix(prefix: str, named: Mapping[str, Tensor]) -> Named:
    """The tensors whose names start with ``prefix``, under their names without it."""
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
