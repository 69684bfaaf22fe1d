"""Equations (10) and (11), when they are unavailable, and which k and k' they divide by."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from gradsift import GradsiftError, Observation, Proposal
from gradsift.control.estimate import derivative, estimated_sign, tau_hat
from tests.examples import examples

PROPOSAL = Proposal(number=3, k=50.0, probe_k=40.0)


def seen(**change: Any) -> Observation:
    """Losses 2.0 -> 1.4 at k and -> 1.6 at k', costs 9 and 5."""
    base = {"cost": 9.0, "probe_cost": 5.0, "loss_before": 2.0, "loss_after": 1.4, "loss_probe": 1.6}
    return Observation(PROPOSAL, **{**base, **change})


def test_equation_10_by_hand() -> None:
    # A k'-element round costs 5 and takes off 0.4; the 0.6 of the k-element round takes 1.5 of them.
    assert tau_hat(5.0, 2.0, 1.4, 1.6) == pytest.approx(7.5)


def test_equation_11_by_hand() -> None:
    assert derivative(seen()) == pytest.approx((9 - 7.5) / 10)
    assert estimated_sign(seen()) == 1
    assert derivative(seen(cost=6.5)) == pytest.approx((6.5 - 7.5) / 10)
    assert estimated_sign(seen(cost=6.5)) == -1
    assert estimated_sign(seen(cost=7.5, loss_before=2.0, loss_after=1.25, loss_probe=1.5)) == 0


def test_the_gap_is_of_the_k_that_were_used() -> None:
    """Rounding and clamping may have moved both; without both of them the proposal's count."""
    assert derivative(seen(used_k=51, used_probe_k=48)) == pytest.approx(1.5 / 3)
    assert derivative(seen(used_k=51)) == pytest.approx(1.5 / 10)
    assert derivative(seen(used_probe_k=48)) == pytest.approx(1.5 / 10)


def test_unavailable_where_a_loss_did_not_fall() -> None:
    for change in (
        {"loss_after": 2.0},
        {"loss_after": 2.5},
        {"loss_probe": 2.0},
        {"loss_probe": 2.5},
        {"loss_before": None, "loss_after": None, "loss_probe": None},
    ):
        assert derivative(seen(**change)) is None
        assert estimated_sign(seen(**change)) is None


def test_unavailable_where_no_client_had_a_smaller_k() -> None:
    """Of clients that have k of their own, those that take part may all send one element, also at k'."""
    several = Proposal(number=3, k=(1.0, 50.0), probe_k=(1.0, 40.0))
    assert derivative(seen(used_k=1, used_probe_k=1)._replace(proposal=several)) is None
    assert derivative(seen(used_k=50, used_probe_k=40)._replace(proposal=several)) == pytest.approx(0.15)


LOSS = st.floats(-1e3, 1e3)
COST = st.floats(0, 1e6)


@examples(500)
@given(cost=COST, probe_cost=COST, before=LOSS, after=LOSS, probe=LOSS)
def test_sign_and_availability(cost: float, probe_cost: float, before: float, after: float, probe: float) -> None:
    """Available exactly where both losses fell; the sign says which of k and k' is the dearer for a unit of loss."""
    observation = Observation(PROPOSAL, cost, probe_cost, before, after, probe)
    sign = estimated_sign(observation)
    if before <= after or before <= probe:
        assert sign is None
        return
    here, there = cost * (before - probe), probe_cost * (before - after)
    if math.isclose(here, there, rel_tol=1e-9, abs_tol=1e-300):
        return  # too near for the floats to tell
    assert sign == (1 if here > there else -1)


@examples(500)
@given(
    costs=st.tuples(*[st.floats(0, allow_infinity=False)] * 2),
    losses=st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 3),
)
def test_the_derivative_is_finite_or_unavailable(
    costs: tuple[float, float], losses: tuple[float, float, float]
) -> None:
    slope = derivative(Observation(PROPOSAL, *costs, *losses))
    assert slope is None or math.isfinite(slope)


def test_numbers_of_any_real_type_give_a_float() -> None:
    slope = derivative(seen(cost=np.float32(9), probe_cost=5, loss_before=np.float64(2), used_k=np.int64(50)))
    assert type(slope) is float
    assert slope == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"used_k": 40, "used_probe_k": 40}, "k' must be below k, got k' = 40.0, k = 40.0"),
        ({"used_k": 40, "used_probe_k": 41}, "k' must be below k"),
        ({"used_k": 40.5, "used_probe_k": 3}, "used_k must be an integer, got 40.5"),
        ({"used_k": 40, "used_probe_k": 0}, "used_probe_k must be at least 1, got 0"),
        ({"loss_probe": None}, "the probe is missing: loss_probe = None"),
        ({"probe_cost": None}, "probe_cost = None"),
        ({"loss_after": None}, "loss_before needs loss_after and vice versa, got 2.0, None"),
        ({"proposal": Proposal(number=3, k=50.0)}, "round 3 has no k'"),
    ],
)
def test_what_a_probing_controller_refuses(change: dict[str, Any], message: str) -> None:
    for name in ("sign", "extended-sign", "value"):
        controller = gradsift.controller(name, k_min=2, k_max=100)
        state = controller.init(dim=100)
        with pytest.raises(GradsiftError, match=message):
            controller.update(state, seen()._replace(**change))
