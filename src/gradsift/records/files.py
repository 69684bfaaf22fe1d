"""Writing files so that a crash leaves the old file or the whole new one, and arrays with a few facts in one file."""

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
ABOUT = "about"  # the member of the archive that holds the facts


def write(path: Path, content: Callable[[IO[bytes]], object] | bytes) -> None:
    """Write a file atomically and durably; whoever reads finds the file as it was, or the whole new one."""
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
        with contextlib.suppress(OSError):  # it is there only if writing was cut short
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power failure, where the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def as_json(facts: Mapping[str, Any], **options: Any) -> bytes:
    """JSON text; NaN and infinity, which JSON does not have, are refused."""
    return json.dumps(facts, allow_nan=False, **options).encode()


def save(
    path: Path, form: str, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], *, small: bool = False
) -> None:
    """Arrays and facts as one .npz file, whose members carry checksums; ``form`` says what the file is.

    ``small`` compresses it. Nothing is pickled.
    """
    about = np.frombuffer(as_json({"format": form, **facts}), np.uint8)
    members: dict[str, Any] = {ABOUT: about, **arrays}
    write(path, lambda file: (np.savez_compressed if small else np.savez)(file, **members))


def load(path: Path, form: str) -> tuple[Arrays, Facts]:
    """What ``save`` wrote. A file that is damaged or something else is refused; nothing is unpickled."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays: Arrays = {name: archive[name] for name in archive.files}
        facts: Facts = json.loads(arrays.pop(ABOUT).tobytes())
        found = facts.pop("format")
    except FileNotFoundError:
        raise
    except Exception as problem:  # whatever a parser does with bytes that it does not expect
        raise GradsiftError(f"{path} cannot be read: {type(problem).__name__}: {problem}") from problem
    if found != form:
        raise GradsiftError(f"{path} is {found!r}, this version of gradsift reads {form!r}")
    return arrays, facts
