"""Which entries of a state_dict make up the flat weight vector [D], in which order; the others are the rest.

Trainable parameters are sparsified. A tied one counts once, under its first name. Frozen parameters and buffers are the
rest: they travel whole.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradsift.errors import GradsiftError

Named = dict[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """The parameters in their order, and every name under which each is found in a state_dict."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    tied: dict[str, str]  # another name -> the name in ``shapes``

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """The trainable parameters of a module."""
        first: dict[int, str] = {}
        shapes, dtypes, tied = {}, {}, {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if not parameter.requires_grad:
                continue
            if id(parameter) in first:
                tied[name] = first[id(parameter)]
                continue
            first[id(parameter)] = name
            if parameter.dtype not in (torch.float16, torch.float32, torch.float64):
                raise GradsiftError(f"parameter {name!r} is {parameter.dtype}: only float16, 32 and 64 are sent")
            shapes[name] = tuple(parameter.shape)
            dtypes[name] = str(parameter.dtype).removeprefix("torch.")
        if not shapes:
            raise GradsiftError(f"{type(module).__name__} has no trainable parameters")
        return cls(shapes, dtypes, tied)

    @classmethod
    def read(cls, text: str) -> "Layout":
        """What ``text`` made."""
        parts = json.loads(text)
        return cls({name: tuple(shape) for name, shape in parts["shapes"].items()}, parts["dtypes"], parts["tied"])

    @property
    def text(self) -> str:
        """The layout as JSON."""
        return json.dumps({"shapes": self.shapes, "dtypes": self.dtypes, "tied": self.tied})

    @property
    def dim(self) -> int:
        """D."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    @property
    def dtype(self) -> torch.dtype:
        """Of the flat vector: float64 if any parameter is, else float32."""
        return torch.float64 if "float64" in self.dtypes.values() else torch.float32

    def flatten(self, state: Mapping[str, Tensor], what: str = "arrays") -> Tensor:
        """[D] the parameters in ``state``; one that is missing or of another shape is refused by name."""
        parts = []
        for name, shape in self.shapes.items():
            if name not in state:
                raise GradsiftError(f"{what}: parameter {name!r} is missing")
            if tuple(state[name].shape) != shape:
                raise GradsiftError(f"{what}: {name!r} has shape {list(state[name].shape)}, expected {list(shape)}")
            parts.append(state[name].detach().to("cpu", self.dtype).reshape(-1))
        return torch.cat(parts)

    def unflatten(self, flat: Tensor) -> Named:
        """The parameters under all their names, each of its own type."""
        state, start = {}, 0
        for name, shape in self.shapes.items():
            stop = start + torch.Size(shape).numel()
            state[name] = flat[start:stop].reshape(shape).to(getattr(torch, self.dtypes[name]))
            start = stop
        return state | {name: state[first] for name, first in self.tied.items()}

    def rest(self, state: Mapping[str, Tensor]) -> Named:
        """What of ``state`` is no trainable parameter."""
        return {name: value for name, value in state.items() if name not in self.shapes and name not in self.tied}
