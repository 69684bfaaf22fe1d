"""The conditions that end a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradsift import check

STOPS = ("rounds", "cost_budget", "target_loss", "target_accuracy")


@dataclass(frozen=True)
class StopWhen:
    """The limits and targets of a run, of which the first to be met ends it. A resumed run may have others."""

    rounds: int = 500
    cost_budget: float | None = None
    target_loss: float | None = None  # for the global loss, when it is evaluated
    target_accuracy: float | None = None  # for the test accuracy, when it is evaluated

    def __post_init__(self) -> None:
        check.integer("rounds", self.rounds, 1)
        check.real("cost_budget", self.cost_budget, low=0.0, optional=True)
        check.real("target_loss", self.target_loss, optional=True)
        check.real("target_accuracy", self.target_accuracy, low=0.0, high=1.0, optional=True)

    def due(self, number: int, spent: float) -> str | None:
        """The limit that is met after round ``number``, or None; targets are not considered."""
        if number >= self.rounds:
            return "rounds"
        if self.cost_budget is not None and spent >= self.cost_budget:
            return "cost budget"
        return None

    def reached(self, global_loss: float, accuracy: float | None) -> str | None:
        """The target that is met by the results of an evaluation, or None."""
        if self.target_loss is not None and global_loss <= self.target_loss:
            return "target loss"
        if self.target_accuracy is not None and accuracy is not None and accuracy >= self.target_accuracy:
            return "target accuracy"
        return None

    def finished(self, record: Mapping[str, Any]) -> str | None:
        """The condition that ended a run whose last record this is, or None if the run has not ended."""
        reached = record["global_loss"] is not None and self.reached(record["global_loss"], record["accuracy"])
        return reached or self.due(record["round"], record["cost"])
