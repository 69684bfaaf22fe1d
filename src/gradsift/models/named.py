"""Make a model by its name, with the sizes that the data needs."""

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from gradsift.data.federated import FederatedData
from gradsift.errors import GradsiftError
from gradsift.models.paper_cnn import paper_cnn
from gradsift.models.small import small_cnn, small_mlp
from gradsift.registry import check_options, first_line, nearest

_NAMED: dict[str, Callable[..., nn.Module]] = {"mlp": small_mlp, "paper-cnn": paper_cnn, "small-cnn": small_cnn}


def models() -> list[str]:
    """Return the names of all models; any other ``torch.nn.Module`` can be trained as well."""
    return sorted(_NAMED)


def about(name: str) -> str:
    """Describe a named model in one line."""
    return first_line(_NAMED[name])


def model(name: str, data: FederatedData, /, *, seed: int = 0, **options: Any) -> nn.Module:
    """Make a model with fresh weights for this data: ``model("paper-cnn", load("femnist"))``.

    Sizes come from the data unless an option of the same name is given, such as ``classes=1`` for targets that are not
    classes.
    """
    if name not in _NAMED:
        raise GradsiftError(f"unknown model {name!r}{nearest(name, models())}")
    function = _NAMED[name]
    check_options(f"model {name!r}", function, options)
    sizes: dict[str, Any] = {}
    if "classes" not in options:
        if not data.labelled:
            raise GradsiftError(
                f"{data.name!r} has no class labels: set the model's option classes to its number of outputs"
                " (--set model.classes=N)"
            )
        sizes["classes"] = data.classes
    shape = list(data.x.shape[1:])
    if name == "mlp":
        sizes["inputs"] = math.prod(shape)
    elif len(shape) != 3:
        sides = ", ".join(map(str, shape))
        raise GradsiftError(f"model {name!r} takes images [n, channels, H, W], x of {data.name!r} is [n, {sides}]")
    else:
        sizes |= {"channels": shape[0], "image_size": (shape[1], shape[2])}
    return function(**{**sizes, **options}, seed=seed)
