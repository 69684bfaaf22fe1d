"""When a run ends."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradsift import check

STOPS = ("rounds", "cost_budget", "target_loss", "target_accuracy")


@dataclass(frozen=True)
class StopWhen:
    """The limits and targets of a run; the first that is met ends it. A resumed run may be given other ones."""

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
        """The limit that is met after round ``number``, or None; targets need an evaluation and are not looked at."""
        if number >= self.rounds:
            return "rounds"
        if self.cost_budget is not None and spent >= self.cost_budget:
            return "cost budget"
        return None

    def reached(self, global_loss: float, accuracy: float | None) -> str | None:
        """The target that an evaluation meets, or None."""
        if self.target_loss is not None and global_loss <= self.target_loss:
            return "target loss"
        if self.target_accuracy is not None and accuracy is not None and accuracy >= self.target_accuracy:
            return "target accuracy"
        return None

    def finished(self, record: Mapping[str, Any]) -> str | None:
        """Why a run with this last record has ended; None if it has not."""
        reached = None
        if record["global_loss"] is not None:
            reached = self.reached(record["global_loss"], record["accuracy"])
        return reached or self.due(record["round"], record["cost"])
