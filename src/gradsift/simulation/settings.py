"""How the simulator runs a method, apart from the method itself."""

import operator
from dataclasses import dataclass
from typing import Literal

from gradsift import check
from gradsift.errors import GradsiftError

COUNTS = (
    "batch_size",
    "clients_per_round",
    "delay",
    "probe_samples",
    "eval_every",
    "eval_batch",
    "clients_per_chunk",
)


@dataclass(frozen=True)
class Settings:
    """How the rounds are simulated. Everything here decides the course of a run; when it stops is ``StopWhen``."""

    batch_size: int = 32  # a client with fewer samples takes all it has
    clients_per_round: int | None = None  # None: all of them
    delay: int = 0  # rounds by which the controller's observation is late: 0, or 1 as with one exchange a round
    probe_samples: int = 1  # samples of each client's minibatch that the three losses are taken on
    buffers: Literal["refuse", "average"] = "refuse"  # what to do with buffers that change in training (BatchNorm)
    eval_every: int = 10  # rounds from one evaluation to the next; the first and the last round have one too
    eval_batch: int = 1024
    clients_per_chunk: int | None = None  # clients whose gradients are computed together; None: as many as fit

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check.integer("batch_size", self.batch_size, 1)
        check.integer("delay", self.delay, 0, 1)
        check.integer("probe_samples", self.probe_samples, 1, self.batch_size)
        check.integer("eval_every", self.eval_every, 1)
        check.integer("eval_batch", self.eval_batch, 1)
        for name in ("clients_per_round", "clients_per_chunk"):
            if getattr(self, name) is not None:
                check.integer(name, getattr(self, name), 1)
        for name in COUNTS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, operator.index(getattr(self, name)))  # numpy's overflow and are not JSON
        if self.buffers not in ("refuse", "average"):
            raise GradsiftError(f"buffers must be 'refuse' or 'average', got {self.buffers!r}")
