"""A run's state as one file: numpy's .npz, whose members carry checksums, without pickle, replaced atomically."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradsift.control import Observation, Proposal
from gradsift.errors import GradsiftError, RunError
from gradsift.simulate.engine import Pending, State

FORMAT = "gradsift checkpoint 1"


def save(path: Path, state: State, run: str, records_bytes: int) -> None:
    """Write ``state`` of the run with this identity; the file is either the old one or the whole new one."""
    arrays: dict[str, Tensor] = {"weights": state.weights, "residual": state.residual}
    arrays |= {f"buffers/{name}": value for name, value in state.buffers.items()}
    arrays |= {f"local_buffers/{name}": value for name, value in state.local_buffers.items()}
    pending = state.pending
    if pending is not None:
        arrays |= {"pending/before": pending.before, "pending/after": pending.after}
        arrays |= {} if pending.probe is None else {"pending/probe": pending.probe}
    about = {
        "format": FORMAT,
        "run": run,
        "records_bytes": records_bytes,
        "number": state.number,
        "control": state.control,
        "spent": state.spent,
        "offset": state.offset,
        "pending": None if pending is None else [list(pending.seen.proposal), *pending.seen[1:]],
    }
    members: dict[str, Any] = {name: value.detach().cpu().numpy() for name, value in arrays.items()}
    members["about"] = np.frombuffer(json.dumps(about, allow_nan=False).encode(), dtype=np.uint8)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **members)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise RunError(f"could not write checkpoint {path}: {problem}; earlier checkpoints are untouched") from problem
    sync_folder(path.parent)


def load(path: Path, run: str, like: State) -> tuple[State, int]:
    """The state in ``path``, on the device of ``like``, and how many bytes of records belong to it."""
    try:
        with np.load(path, allow_pickle=False) as file:
            members = {name: file[name] for name in file.files}
        about = json.loads(members.pop("about").tobytes())
        if about["format"] != FORMAT:
            raise GradsiftError(f"{path} is of another version: {about['format']!r}, this is {FORMAT!r}")
    except FileNotFoundError:
        raise
    except GradsiftError:
        raise
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as problem:
        raise GradsiftError(
            f"checkpoint {path} is damaged or not a checkpoint ({type(problem).__name__}: {problem});"
            " move it away to resume from the one before it"
        ) from problem
    if about["run"] != run:
        raise GradsiftError(f"checkpoint {path} belongs to another run: {about['run']!r}, not {run!r}")
    device = like.weights.device
    tensors = {name: torch.from_numpy(value.copy()).to(device) for name, value in members.items()}
    for name in ("weights", "residual"):
        have, want = tensors[name], getattr(like, name)
        if have.shape != want.shape or have.dtype != want.dtype:
            raise GradsiftError(
                f"{name} in {path} is {have.dtype} {list(have.shape)}, this run needs {want.dtype} {list(want.shape)}"
            )

    def group(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    pending = None
    if about["pending"] is not None:
        seen = Observation(Proposal(*about["pending"][0]), *about["pending"][1:])
        trial = group("pending/")
        pending = Pending(seen, trial["before"], trial["after"], trial.get("probe"))
    state = State(
        number=about["number"],
        weights=tensors["weights"],
        residual=tensors["residual"],
        control=about["control"],
        spent=about["spent"],
        offset=about["offset"],
        buffers=group("buffers/"),
        local_buffers=group("local_buffers/"),
        pending=pending,
    )
    return state, about["records_bytes"]


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
