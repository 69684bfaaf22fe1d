"""A run's state as one file: numpy's .npz, whose members carry checksums, without pickle, replaced atomically."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradsift.control import Observation, Proposal
from gradsift.errors import GradsiftError, RunError
from gradsift.simulation.state import Pending, State

FORMAT = "gradsift checkpoint 1"


def save(path: Path, state: State, run: str, records_bytes: int) -> None:
    """Write ``state`` of the run with this identity; the file is either the old one or the whole new one."""
    arrays = _arrays(state)
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
    try:
        write_members(path, members)
    except OSError as problem:
        raise RunError(f"could not write checkpoint {path}: {problem}; earlier checkpoints are untouched") from problem


def write_members(path: Path, members: dict[str, Any]) -> None:
    """Arrays as an .npz: whoever reads finds the file as it was or the whole new one, whenever this is cut short."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **members)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)  # still there only if the writing was cut short


def load(path: Path, run: str, like: State) -> tuple[State, int]:
    """The state in ``path``, on the device of ``like``, and how many bytes of records belong to it.

    Nothing is unpickled. A file that is not whole, not ours, of another run or of another model is refused.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            members = {name: archive[name] for name in archive.files}
        about = json.loads(members.pop("about").tobytes())
        version, owner = about["format"], about["run"]
    except Exception as problem:  # whatever a parser does with bytes that are not what it expects
        raise GradsiftError(_unreadable(path, problem)) from problem
    if version != FORMAT:
        raise GradsiftError(f"checkpoint {path} is of another version: {version!r}, this is {FORMAT!r}")
    if owner != run:
        raise GradsiftError(f"checkpoint {path} belongs to another run: {owner!r}, not {run!r}")
    _check_fit(path, members, like)
    try:
        return _state(
            about,
            {
                name: _tensor(value, like.residual.device if name == "residual" else like.weights.device)
                for name, value in members.items()
            },
        )
    except Exception as problem:
        raise GradsiftError(_unreadable(path, problem)) from problem


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power failure, where the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def _arrays(state: State) -> dict[str, Tensor]:
    """What every checkpoint of a run has, in the same shapes."""
    arrays = {"weights": state.weights, "residual": state.residual}
    arrays |= {f"buffers/{name}": value for name, value in state.buffers.items()}
    return arrays | {f"local_buffers/{name}": value for name, value in state.local_buffers.items()}


def _state(about: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[State, int]:
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


def _check_fit(path: Path, members: dict[str, Any], like: State) -> None:
    wanted = {name: _kind(value) for name, value in _arrays(like).items()}
    trial = _kind(like.weights)
    wanted |= {name: trial for name in members if name in ("pending/before", "pending/after", "pending/probe")}
    found = {name: _kind(value) for name, value in members.items()}
    for name in sorted(wanted.keys() | found.keys()):
        have, want = found.get(name, "missing"), wanted.get(name, "nothing of that name")
        if have != want:
            raise GradsiftError(f"{name} in checkpoint {path} is {have}, this run has {want}")


def _kind(value: Any) -> str:
    if not isinstance(value, np.ndarray | Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _tensor(value: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(value).to(device)


def _unreadable(path: Path, problem: Exception) -> str:
    return (
        f"checkpoint {path} cannot be read: it is damaged, or no checkpoint ({type(problem).__name__}: {problem});"
        " move it away to resume from the one before it"
    )
