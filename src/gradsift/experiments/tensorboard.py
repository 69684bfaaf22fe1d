"""Logs of a run for TensorBoard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradsift.errors import UsageError, install
from gradsift.records.record import Record


def tensorboard(folder: Path) -> Callable[[Record], None]:
    """Return a function that logs records for TensorBoard in ``folder``."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as problem:
        raise UsageError(f"--tensorboard needs: {install('tensorboard')}") from problem
    writer: Any = None

    def write(record: Record) -> None:
        nonlocal writer
        if writer is None:  # the run makes its folder before its first round
            writer = SummaryWriter(str(folder))
        for key in ("cost", "k", "train_loss", "global_loss", "accuracy", "up_bytes", "down_bytes"):
            if record[key] is not None:
                writer.add_scalar(key, record[key], record["round"])
        writer.flush()

    return write
