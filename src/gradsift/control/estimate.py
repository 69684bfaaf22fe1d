"""The derivative of the cost of training with respect to k, estimated from three losses: equations (10) and (11)."""

import math

from gradsift.control.base import Observation
from gradsift.errors import GradsiftError


def tau_hat(probe_cost: float, loss_before: float, loss_after: float, loss_probe: float) -> float:
    """Equation (10): what it would cost to reach ``loss_after`` by k'-element rounds, from one such round."""
    # The quotient first: equal losses must give exactly 1, so that a probe equal to its round has derivative 0.
    return probe_cost * ((loss_before - loss_after) / (loss_before - loss_probe))


def derivative(seen: Observation) -> float | None:
    """The inside of equation (11), or None where the losses did not fall and (10) has no meaning."""
    if seen.loss_before is None or seen.loss_after is None or seen.loss_probe is None or seen.probe_cost is None:
        return None
    if seen.loss_before <= seen.loss_after or seen.loss_before <= seen.loss_probe:
        return None
    if seen.used_k == seen.used_probe_k == 1:  # of clients with k of their own, all that took part sent one element
        return None
    gap = _gap(seen)
    reached = tau_hat(seen.probe_cost, seen.loss_before, seen.loss_after, seen.loss_probe)
    slope = float((seen.cost - reached) / gap)
    return slope if math.isfinite(slope) else None  # decreases so far apart that the quotient overflows


def estimated_sign(seen: Observation) -> int | None:
    """Equation (11): -1, 0 or 1, or None where it is unavailable."""
    slope = derivative(seen)
    return None if slope is None else (slope > 0) - (slope < 0)


def _gap(seen: Observation) -> float:
    """k - k', as used if the driver says what it used: rounding and clamping may have moved both."""
    if seen.used_k is not None and seen.used_probe_k is not None:
        k, probe_k = float(seen.used_k), float(seen.used_probe_k)
    elif isinstance(seen.proposal.k, int | float) and isinstance(seen.proposal.probe_k, int | float):
        k, probe_k = seen.proposal.k, seen.proposal.probe_k
    else:
        raise GradsiftError(f"no k' was proposed in round {seen.proposal.number}, and none is said to have been used")
    if not probe_k < k:
        raise GradsiftError(f"k' must be below k, got k' = {probe_k!r}, k = {k!r}")
    return k - probe_k
