"""Value-based derivative descent: Algorithm 2 with the estimated derivative instead of its sign.

Online gradient descent (Hazan 2016), as in the paper's comparison (Section V-B, item 1).
"""

from dataclasses import dataclass

from gradsift.check import real
from gradsift.control.base import Interval, Observation, project
from gradsift.control.estimate import derivative
from gradsift.control.sign import Sign, step_size


@dataclass(frozen=True)
class Value(Sign):
    """Like sign, but with steps of delta_m times ``scale`` (1 in the paper) times the estimated derivative."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        real("scale", self.scale, above=0)

    def update(self, state: Interval, seen: Observation) -> Interval:
        """k <- P_K(k - delta_m d_m); unchanged if the derivative is unavailable."""
        slope = derivative(seen)
        if slope is None:
            return state
        step = step_size(state, seen.proposal.number) * self.scale * slope
        return {**state, "k": project(state["k"] - step, state["low"], state["high"])}
