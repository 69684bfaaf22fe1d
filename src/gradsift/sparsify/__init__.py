"""The sparsifiers, one module for each, and their names."""

from typing import Any

from gradsift.check import unchecked
from gradsift.registry import Registry
from gradsift.sparsify.base import Round, Sparsifier
from gradsift.sparsify.checked import CheckedSparsifier
from gradsift.sparsify.fab_top_k import FabTopK
from gradsift.sparsify.fedavg import FedAvg
from gradsift.sparsify.fub_top_k import FubTopK
from gradsift.sparsify.periodic_k import PeriodicK
from gradsift.sparsify.send_all import SendAll
from gradsift.sparsify.unidirectional_top_k import UnidirectionalTopK

__all__ = [
    "Round",
    "Sparsifier",
    "describe",
    "register_sparsifier",
    "registered",
    "sparsifier",
    "sparsifiers",
    "unchecked",
]

_REGISTRY: Registry[Sparsifier] = Registry("sparsifier", Sparsifier)  # type: ignore[type-abstract]
register_sparsifier = _REGISTRY.register
describe = _REGISTRY.describe
registered = _REGISTRY.registered
sparsifiers = _REGISTRY.names

register_sparsifier("fab-top-k")(FabTopK)
register_sparsifier("fub-top-k")(FubTopK)
register_sparsifier("unidirectional-top-k")(UnidirectionalTopK)
register_sparsifier("periodic-k")(PeriodicK)
register_sparsifier("fedavg")(FedAvg)
register_sparsifier("send-all")(SendAll)


def sparsifier(name: str, **options: Any) -> Sparsifier:
    """The sparsifier called ``name``, such as ``"fab-top-k"``, with checked calls; ``sparsifiers()`` lists them."""
    return CheckedSparsifier(_REGISTRY.make(name, **options))
