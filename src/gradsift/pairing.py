"""Which sparsifier goes with which controller."""

from typing import Any

from gradsift.control.base import Controller
from gradsift.control.fixed import Fixed
from gradsift.errors import GradsiftError
from gradsift.sparsify.base import Sparsifier


def check_pair(sparsifier: Sparsifier, controller: Controller[Any]) -> None:
    """Refuse, by name, a controller that varies k over a dense sparsifier, whose messages do not depend on it."""
    if not isinstance(sparsifier, Sparsifier):
        raise GradsiftError(f"not a sparsifier: {sparsifier!r}")
    if not isinstance(controller, Controller):
        raise GradsiftError(f"not a controller: {controller!r}")
    if sparsifier.dense and controller.varies:
        raise GradsiftError(
            f"sparsifier {sparsifier.name!r} is dense and accepts only a fixed k;"
            f" controller {controller.name!r} varies it"
        )
    if sparsifier.dense and isinstance(controller, Fixed) and controller.k != int(controller.k):
        # Rounding would give it two neighbours in turn, and FedAvg two periods.
        raise GradsiftError(
            f"sparsifier {sparsifier.name!r} is dense and accepts only an integer k, got {controller.k!r}"
        )
