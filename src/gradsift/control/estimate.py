"""Equations (10) and (11): the derivative of the cost of training with respect to k, estimated from three losses."""

import math

from gradsift.control.base import Observation
from gradsift.errors import GradsiftError


def tau_hat(probe_cost: float, loss_before: float, loss_after: float, loss_probe: float) -> float:
    """Equation (10): the cost of reaching ``loss_after`` with rounds at k', extrapolated from one such round."""
    # The quotient of equal losses must be exactly 1, so that a probe equal to its round has derivative 0.
    return probe_cost * ((loss_before - loss_after) / (loss_before - loss_probe))


def derivative(seen: Observation) -> float | None:
    """The argument of sign() in equation (11), or None if a loss did not decrease, for which (10) is undefined."""
    if seen.loss_before is None or seen.loss_after is None or seen.loss_probe is None or seen.probe_cost is None:
        return None
    if seen.loss_before <= seen.loss_after or seen.loss_before <= seen.loss_probe:
        return None
    if seen.used_k == seen.used_probe_k == 1:  # all clients that took part sent one element, at k' too
        return None
    gap = _gap(seen)
    reached = tau_hat(seen.probe_cost, seen.loss_before, seen.loss_after, seen.loss_probe)
    slope = float((seen.cost - reached) / gap)
    return slope if math.isfinite(slope) else None  # the quotient may overflow


def estimated_sign(seen: Observation) -> int | None:
    """Equation (11): -1, 0 or 1, or None where ``derivative`` is None."""
    slope = derivative(seen)
    return None if slope is None else (slope > 0) - (slope < 0)


def _gap(seen: Observation) -> float:
    """k - k', of the rounded values if the driver gives them, and else of the proposal."""
    if seen.used_k is not None and seen.used_probe_k is not None:
        k, probe_k = float(seen.used_k), float(seen.used_probe_k)
    elif isinstance(seen.proposal.k, int | float) and isinstance(seen.proposal.probe_k, int | float):
        k, probe_k = seen.proposal.k, seen.proposal.probe_k
    else:
        raise GradsiftError(f"round {seen.proposal.number} has no k': neither its proposal nor used_probe_k gives one")
    if not probe_k < k:
        raise GradsiftError(f"k' must be below k, got k' = {probe_k!r}, k = {k!r}")
    return k - probe_k
