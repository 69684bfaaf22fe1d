"""CIFAR-10 as its author publishes it: the unpacked "binary version" archive."""

import os
from pathlib import Path

import numpy as np

from gradsift.data.cifar10 import CLASSES, share_out
from gradsift.data.federated import FederatedData
from gradsift.errors import GradsiftError

BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the pixels


def is_cifar10_folder(folder: Path) -> bool:
    """Whether this looks like the unpacked archive, in the binary version or the python one."""
    return any((folder / f"{BATCHES[0]}{suffix}").exists() for suffix in (".bin", ""))


def import_cifar10(
    folder: str | os.PathLike[str],
    *,
    clients: int = 100,
    partition: str = "one-class",
    alpha: float | None = None,
    at_least: int | None = None,
    seed: int = 0,
) -> FederatedData:
    """CIFAR-10 from ``cifar-10-batches-bin``; the options are those of ``cifar10``."""
    base = Path(folder)
    if not (base / f"{BATCHES[0]}.bin").exists():
        why = f"it has no {BATCHES[0]}.bin"
        if is_cifar10_folder(base):
            why = "its batches are Python pickles, which are never read; use the binary version, cifar-10-binary.tar.gz"
        raise GradsiftError(f"{str(base)!r} is not a folder of CIFAR-10's binary batches: {why}")
    images, labels = [], []
    for batch in BATCHES:
        path = base / f"{batch}.bin"
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise GradsiftError(f"CIFAR-10 needs the file {path}: {problem.strerror}") from None
        if not content or len(content) % RECORD:
            raise GradsiftError(f"{path} is truncated or not a batch: {len(content)} bytes, not records of {RECORD}")
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
        wrong = np.flatnonzero(records[:, 0] >= CLASSES)
        if len(wrong):
            label = records[wrong[0], 0]
            raise GradsiftError(f"{path} is damaged: label {label} of image {wrong[0]} is not in 0 to 9")
        images.append(records[:, 1:].reshape(-1, 3, 32, 32))
        labels.append(records[:, 0])
    return share_out(
        images,
        labels,
        "channels-first",
        clients=clients,
        partition=partition,
        alpha=alpha,
        at_least=at_least,
        seed=seed,
    )
