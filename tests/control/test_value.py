"""Value-based descent against its definition: Algorithm 2 with the derivative in place of its sign."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from gradsift import Observation
from tests.control.harness import Training, drive, one
from tests.examples import examples

SEEN = st.tuples(*[st.floats(0, 100)] * 2, *[st.floats(-3, 3)] * 3)


@examples(200)
@given(
    k_min=st.floats(2, 100),
    width=st.floats(1, 1e5),
    scale=st.floats(0.01, 1e4),
    answers=st.lists(SEEN, max_size=40),
)
def test_equals_its_definition(
    k_min: float, width: float, scale: float, answers: list[tuple[float, float, float, float, float]]
) -> None:
    k_max = k_min + width
    controller = gradsift.controller("value", k_min=k_min, k_max=k_max, k_init=k_min, scale=scale)
    state: Any = controller.init(dim=math.ceil(k_max))
    k = k_min
    for m, (cost, probe_cost, before, after, probe) in enumerate(answers, start=1):
        proposal = controller.propose(state, m)
        delta = (k_max - k_min) / math.sqrt(2 * m)
        assert proposal.k == k
        assert proposal.probe_k == max(1.0, k - delta / 2)
        state = controller.update(state, Observation(proposal, cost, probe_cost, before, after, probe))
        if before > after and before > probe:
            reached = probe_cost * (before - after) / (before - probe)
            slope = (cost - reached) / (proposal.k - proposal.probe_k)
            if math.isfinite(slope):
                k = min(max(k - delta * scale * slope, k_min), k_max)
        assert state["k"] == pytest.approx(k, rel=1e-12)
        k = state["k"]


def test_finds_the_optimum_where_the_scale_fits_the_slopes() -> None:
    """The derivative is a cost an element, about 0.003 here: the paper's scale 1 hardly moves k, 1000 does."""
    training = Training(rounding=False)
    for scale, near in ((1000.0, True), (1.0, False)):
        controller = gradsift.controller("value", k_min=20, scale=scale)
        proposals, _ = drive(controller, controller.init(dim=training.dim), training.observe, 3000)
        mean = sum(one(p.k) for p in proposals[-500:]) / 500
        assert (abs(mean - training.best) < 0.1 * training.best) == near, mean
