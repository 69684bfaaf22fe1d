"""The settings of the simulator, as opposed to those of the method it runs."""

import operator
from dataclasses import dataclass
from typing import Literal

from gradsift import check
from gradsift.errors import GradsiftError


@dataclass(frozen=True)
class Settings:
    """How the rounds are simulated. All settings affect the course of a run; ``StopWhen`` says when it stops."""

    batch_size: int = 32  # a client with fewer samples takes all it has
    clients_per_round: int | None = None  # all of them if None
    delay: int = 0  # rounds by which the controller's observation is late: 0, or 1 as with one exchange per round
    probe_samples: int = 1  # samples of each client's minibatch that the three losses are taken on
    buffers: Literal["refuse", "average"] = "refuse"  # what to do with buffers that change in training (BatchNorm)
    eval_every: int = 10  # rounds from one evaluation to the next; the first and the last round have one too
    eval_batch: int = 1024
    clients_per_chunk: int | None = None  # clients whose gradients are computed together; as many as fit if None

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        for name in ("batch_size", "eval_every", "eval_batch", "clients_per_round", "clients_per_chunk"):
            self._check_integer(name, 1)
        self._check_integer("delay", 0, 1)
        self._check_integer("probe_samples", 1, self.batch_size)
        if self.buffers not in ("refuse", "average"):
            raise GradsiftError(f"buffers must be 'refuse' or 'average', got {self.buffers!r}")

    def _check_integer(self, name: str, low: int, high: int | None = None) -> None:
        value = getattr(self, name)
        if value is None and name in ("clients_per_round", "clients_per_chunk"):
            return
        check.integer(name, value, low, high)
        object.__setattr__(self, name, operator.index(value))  # numpy's integers overflow and are not JSON
