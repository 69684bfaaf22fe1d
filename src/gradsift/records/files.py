"""Atomic writing of files, and .npz archives of arrays and JSON values (facts)."""

import contextlib
import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gradsift.errors import GradsiftError

Arrays = dict[str, NDArray[Any]]
Facts = dict[str, Any]  # JSON values
ABOUT = "about"  # the name of the archive member with the facts


def write(path: Path, content: Callable[[IO[bytes]], object] | bytes) -> None:
    """Write a file atomically and durably: after a crash it is the old file or the complete new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # another process may be writing the same file
    try:
        with open(temporary, "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):  # it exists only if writing failed
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power failure, if the file system supports it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def as_json(facts: Mapping[str, Any], **options: Any) -> bytes:
    """JSON text; NaN and infinity, which JSON does not have, raise an error."""
    return json.dumps(facts, allow_nan=False, **options).encode()


def save(
    path: Path, form: str, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], *, small: bool = False
) -> None:
    """Write arrays and facts as one .npz file, whose members have checksums; ``form`` identifies the file format.

    ``small`` compresses the file. Nothing is pickled.
    """
    about = np.frombuffer(as_json({"format": form, **facts}), np.uint8)
    members: dict[str, Any] = {ABOUT: about, **arrays}
    write(path, lambda file: (np.savez_compressed if small else np.savez)(file, **members))


def load(path: Path, form: str) -> tuple[Arrays, Facts]:
    """The arrays and facts that ``save`` wrote; a damaged file or another format is refused. Nothing is unpickled."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays: Arrays = {name: archive[name] for name in archive.files}
        facts: Facts = json.loads(arrays.pop(ABOUT).tobytes())
        file_form = facts.pop("format")
    except FileNotFoundError:
        raise
    except Exception as problem:  # the parsers raise many kinds of errors for damaged files
        raise GradsiftError(f"{path} cannot be read: {type(problem).__name__}: {problem}") from problem
    if file_form != form:
        raise GradsiftError(f"{path} is {file_form!r}, this version of gradsift reads {form!r}")
    return arrays, facts
