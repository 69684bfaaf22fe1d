"""Find the files of the data sets that are not part of the package, in the folder that ``GRADSIFT_DATA`` names."""

import os
from collections.abc import Sequence
from pathlib import Path

from gradsift.errors import GradsiftError

VARIABLE = "GRADSIFT_DATA"


def data_files(data: str, folder: str | os.PathLike[str] | None, files: Sequence[str]) -> list[Path]:
    """Return the paths of ``files`` in ``folder``, by default in the folder that ``GRADSIFT_DATA`` names."""
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise GradsiftError(f"{data!r} needs a folder: folder is {folder!r}, which is not a path")
    given = folder if folder is not None else os.environ.get(VARIABLE)
    if not given:
        raise GradsiftError(
            f"{data!r} is read from a folder: set {VARIABLE} to it, or the option folder (--set data.folder=FOLDER)"
        )
    base = Path(given)
    if not base.is_dir():
        source = "folder" if folder is not None else VARIABLE
        raise GradsiftError(f"{data!r} needs a folder: {source} is {str(base)!r}, which is not a folder")
    for file in files:
        if not (base / file).is_file():
            raise GradsiftError(f"{data!r} needs the file {file}, which is not in {str(base)!r} (folder or {VARIABLE})")
    return [base / file for file in files]
