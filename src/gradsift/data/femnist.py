"""Read FEMNIST (LEAF, Caldas et al. 2018), one client for each writer, from ``femnist.npz`` in the data folder."""

import os

import numpy as np

from gradsift.data.federated import FederatedData
from gradsift.data.folder import data_files
from gradsift.data.npz import load_npz, read_arrays
from gradsift.errors import GradsiftError

FILE = "femnist.npz"


def femnist(*, clients: int = 156, folder: str | os.PathLike[str] | None = None) -> FederatedData:
    """Handwritten characters of 28x28 by writer, 62 classes; from GRADSIFT_DATA. By default 156 writers.

    x is [n, 1, 28, 28] as LEAF stores it (paper is 1, ink is 0). A client is a writer; the first ``clients`` are taken.
    The paper has 156 clients, too; which writers they are is not published.
    """
    (path,) = data_files("femnist", folder, [FILE])
    arrays = read_arrays(path)
    for needed in ("x", "y", "client", "split"):
        if needed not in arrays:
            raise GradsiftError(f"{path} does not have the layout of FEMNIST: it has no array {needed!r}")
    x = arrays["x"]
    if x.dtype != np.uint8 or x.shape[1:] != (28, 28):
        raise GradsiftError(f"{path} does not have the layout of FEMNIST: x is {x.dtype} {list(x.shape)}")
    arrays["x"] = 255 - x  # the file stores ink as 255
    return load_npz(arrays, name="femnist", clients=clients, classes=62)
