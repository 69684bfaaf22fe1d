"""Registries that forget what a test puts into them: other tests look at every registered name."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from gradsift import control, cost, local, server_step, sparsify, values
from gradsift.registry import Registry

REGISTRIES: dict[str, Registry[Any]] = {
    "sparsifier": sparsify._REGISTRY,
    "controller": control._REGISTRY,
    "local": local._REGISTRY,
    "values": values._REGISTRY,
    "server": server_step._REGISTRY,
    "cost": cost._REGISTRY,
}


@contextlib.contextmanager
def own_names() -> Iterator[None]:
    """What is registered inside is forgotten outside."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in REGISTRIES.values():
            patch.setattr(registry, "_classes", dict(registry._classes))
        yield
