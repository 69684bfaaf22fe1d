"""Where the real data lies, for the tests that need it."""

import os
from pathlib import Path

import pytest

from gradsift.data import FederatedData, cifar10

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of FEMNIST and CIFAR-10; the test is skipped where there is none."""
    named = os.environ.get("GRADSIFT_DATA")
    folder = Path(named) if named else BESIDE
    if not (folder / "femnist.npz").is_file():
        pytest.skip(f"GRADSIFT_DATA is {named}, which has no femnist.npz" if named else "GRADSIFT_DATA is not set")
    return folder


@pytest.fixture(scope="session")
def real_cifar10(real_data: Path) -> FederatedData:
    """All of CIFAR-10, read once."""
    return cifar10(folder=real_data)
