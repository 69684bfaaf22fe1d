"""Arrays and a few facts in one file: numpy's .npz, whose members carry checksums, without pickle, replaced atomically.

A reader finds the file as it was or as it is now, whenever the writer was killed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradsift.errors import GradsiftError, RunError
from gradsift.simulation.checkpoint import write_members

Facts = dict[str, Any]


def as_path(name: str, value: object) -> Path:
    """The path that an option names."""
    if not isinstance(value, str | Path) or not str(value):
        raise GradsiftError(f"{name} must be a path, got {value!r:.80}")
    return Path(value)


def save(path: Path, kind: str, arrays: Mapping[str, Tensor], facts: Facts) -> None:
    """Write, or leave what is there."""
    members: dict[str, Any] = {f"array/{name}": value.detach().cpu().numpy() for name, value in arrays.items()}
    about = json.dumps({"kind": kind, **facts}, allow_nan=False).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_members(path, {"about": np.frombuffer(about, np.uint8), **members})
    except OSError as problem:
        raise RunError(f"could not write {path}: {problem}; what was there before is untouched") from problem


def load(path: Path, kind: str) -> tuple[dict[str, Tensor], Facts] | None:
    """What ``save`` wrote; None if there is nothing. A file that is not whole or not of this kind is refused."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            members = {name: archive[name] for name in archive.files}
        facts: Facts = json.loads(members.pop("about").tobytes())
        found = facts.pop("kind")
        arrays = {name.removeprefix("array/"): torch.from_numpy(value) for name, value in members.items()}
    except FileNotFoundError:
        return None
    except Exception as problem:  # whatever a parser does with bytes that are not what it expects
        raise GradsiftError(f"{path} cannot be read: {type(problem).__name__}: {problem}") from problem
    if found != kind:
        raise GradsiftError(f"{path} is a {found!r}, not a {kind!r}")
    return arrays, facts
