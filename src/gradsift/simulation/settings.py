"""What a run is, apart from its model, data, sparsifier, controller and cost."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradsift import check
from gradsift.errors import GradsiftError

COUNTS = (
    "batch_size",
    "seed",
    "clients_per_round",
    "delay",
    "probe_samples",
    "eval_every",
    "eval_batch",
    "clients_per_chunk",
)


@dataclass(frozen=True)
class Settings:
    """How the rounds are run. Everything here decides the course of a run; when it stops is ``StopWhen``."""

    batch_size: int = 32
    seed: int = 0
    clients_per_round: int | None = None  # None: all of them
    delay: int = 0  # rounds by which the controller's observation is late: 0, or 1 as with one exchange a round
    probe_samples: int = 1  # samples of each client's minibatch that the three losses are taken on
    charge_probe: bool = False  # whether the probe's message counts in the cost; it is recorded always
    dense_fallback: bool = False  # charge a message as dense where that is smaller than index-value pairs
    encoded_bytes: bool = False  # count the bytes of the wire format, not 4 for each index and value
    buffers: Literal["refuse", "average"] = "refuse"  # what to do with buffers that change in training (BatchNorm)
    eval_every: int = 10  # rounds from one evaluation to the next; the first and the last round have one too
    eval_batch: int = 1024
    clients_per_chunk: int | None = None  # clients whose gradients are computed together; None: as many as fit

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check.integer("batch_size", self.batch_size, 1)
        check.integer("seed", self.seed, 0, 2**64 - 1)
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
        for name in ("charge_probe", "dense_fallback", "encoded_bytes"):
            check.boolean(name, getattr(self, name))
        if self.buffers not in ("refuse", "average"):
            raise GradsiftError(f"buffers must be 'refuse' or 'average', got {self.buffers!r}")


@dataclass(frozen=True)
class StopWhen:
    """When a run ends: whichever comes first. A resumed run may be given other ones."""

    rounds: int = 500
    cost_budget: float | None = None
    target_loss: float | None = None  # of the evaluated global loss
    target_accuracy: float | None = None  # of the evaluated test accuracy

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check.integer("rounds", self.rounds, 1)
        if self.cost_budget is not None:
            check.real("cost_budget", self.cost_budget, low=0.0)
        if self.target_loss is not None:
            check.real("target_loss", self.target_loss)
        if self.target_accuracy is not None:
            check.real("target_accuracy", self.target_accuracy, low=0.0, high=1.0)

    def due(self, number: int, spent: float) -> str | None:
        """Why to stop after round ``number``, for what needs no evaluation."""
        if number >= self.rounds:
            return "rounds"
        if self.cost_budget is not None and spent >= self.cost_budget:
            return "cost budget"
        return None

    def reached(self, global_loss: float, accuracy: float | None) -> str | None:
        """Why to stop after an evaluation."""
        if self.target_loss is not None and global_loss <= self.target_loss:
            return "target loss"
        if self.target_accuracy is not None and accuracy is not None and accuracy >= self.target_accuracy:
            return "target accuracy"
        return None

    def finished(self, record: Mapping[str, Any]) -> str | None:
        """Why a run whose last record this is has nothing left to do; None if it has."""
        reached = None
        if record["global_loss"] is not None:
            reached = self.reached(record["global_loss"], record["accuracy"])
        return reached or self.due(record["round"], record["cost"])
