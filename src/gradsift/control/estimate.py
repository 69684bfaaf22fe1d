"""The derivative of the cost of training with respect to k, estimated from three losses: equations (10) and (11)."""

from gradsift.control.base import Observation


def tau_hat(probe_cost: float, loss_before: float, loss_after: float, loss_probe: float) -> float:
    """Equation (10): what it would cost to reach ``loss_after`` by k'-element rounds, from one such round."""
    return probe_cost * (loss_before - loss_after) / (loss_before - loss_probe)


def derivative(seen: Observation) -> float | None:
    """The inside of equation (11), or None where the losses did not fall and (10) has no meaning."""
    if seen.loss_before is None or seen.loss_after is None or seen.loss_probe is None or seen.probe_cost is None:
        return None
    if seen.loss_before <= seen.loss_after or seen.loss_before <= seen.loss_probe:
        return None
    reached = tau_hat(seen.probe_cost, seen.loss_before, seen.loss_after, seen.loss_probe)
    return (seen.cost - reached) / _gap(seen)


def estimated_sign(seen: Observation) -> int | None:
    """Equation (11): -1, 0 or 1, or None where it is unavailable."""
    slope = derivative(seen)
    return None if slope is None else (slope > 0) - (slope < 0)


def _gap(seen: Observation) -> float:
    """k - k', as used if the driver says what it used: rounding and clamping may have moved both."""
    if seen.used_k is not None and seen.used_probe_k is not None:
        return seen.used_k - seen.used_probe_k
    assert seen.proposal.probe_k is not None
    return seen.proposal.k - seen.proposal.probe_k
