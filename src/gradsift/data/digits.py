"""Read the default data set, scikit-learn's handwritten digits (UCI ML, 1,797 images of 8x8), without a download."""

import importlib
from typing import Any

import numpy as np

from gradsift.data.federated import FederatedData
from gradsift.data.npz import load_npz
from gradsift.data.partition import holdout
from gradsift.errors import GradsiftError, install

LARGEST_PIXEL = 16
TEST_FRACTION = 0.2


def digits(
    *,
    clients: int = 20,
    partition: str = "dirichlet",
    alpha: float | None = None,
    at_least: int | None = None,
    seed: int = 0,
) -> FederatedData:
    """Real handwritten digits, 1,797 of 8x8, ten classes; from scikit-learn. By default 20 clients, Dirichlet(0.5).

    x is [n, 1, 8, 8] in [0, 1]; a client of the default partition has at least 32 samples. The test split (359 of
    1,797, the same fraction of each class) is the same for all options.
    """
    try:
        loaded = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise GradsiftError(f"'digits' comes with scikit-learn: {install('data')}") from None
    if partition == "dirichlet" and at_least is None:
        at_least = 32
    arrays = {
        "x": (loaded.images / LARGEST_PIXEL).astype(np.float32),
        "y": loaded.target,
        "split": holdout(loaded.target, TEST_FRACTION, seed=0),
    }
    options: dict[str, Any] = {"partition": partition, "alpha": alpha, "at_least": at_least, "seed": seed}
    return load_npz(arrays, name="digits", classes=10, clients=clients, **options)
