"""The embedded default: scikit-learn's real handwritten digits (UCI ML, 1,797 images of 8x8), no download."""

import importlib

import numpy as np

from gradsift.data.federated import FederatedData
from gradsift.data.npz import load_npz
from gradsift.data.partition import holdout
from gradsift.errors import GradsiftError, install

INK = 16  # pixels are 0 to 16
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
    1,797, the same fraction of each class) is fixed: it depends on no option.
    """
    try:
        loaded = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise GradsiftError(f"'digits' comes with scikit-learn: {install('data')}") from None
    if partition == "dirichlet" and at_least is None:
        at_least = 32
    arrays = {
        "x": (loaded.images / INK).astype(np.float32),
        "y": loaded.target,
        "split": holdout(loaded.target, TEST_FRACTION, seed=0),
    }
    return load_npz(
        arrays,
        name="digits",
        clients=clients,
        partition=partition,
        alpha=alpha,
        at_least=at_least,
        classes=10,
        seed=seed,
    )
