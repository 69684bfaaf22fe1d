"""Where the data sets that are not embedded lie: the folder named by ``GRADSIFT_DATA``."""

import os
from pathlib import Path

from gradsift.errors import GradsiftError

VARIABLE = "GRADSIFT_DATA"


def data_folder(data: str, folder: str | os.PathLike[str] | None) -> Path:
    """The given folder, or else the one of the environment."""
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise GradsiftError(f"{data!r} needs a folder: folder is {folder!r}, which is no path")
    given = folder if folder is not None else os.environ.get(VARIABLE)
    if not given:
        raise GradsiftError(
            f"{data!r} is read from a folder: set {VARIABLE} to it, or the option folder (--set data.folder=FOLDER)"
        )
    path = Path(given)
    if not path.is_dir():
        source = "folder" if folder is not None else VARIABLE
        raise GradsiftError(f"{data!r} needs a folder: {source} is {str(path)!r}, which is none")
    return path


def data_file(data: str, folder: Path, file: str) -> Path:
    """A file of that folder."""
    path = folder / file
    if not path.is_file():
        raise GradsiftError(f"{data!r} needs the file {file}, which is not in {str(folder)!r} (folder or {VARIABLE})")
    return path
