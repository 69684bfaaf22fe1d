"""What the tables count, on trajectories made up for it, and what a store reads again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradsift.experiments.paper.methods import largest_lead, late_k
from gradsift.experiments.store import Store
from gradsift.experiments.trajectory import Trajectory
from gradsift.experiments.work import carry_out
from tests.experiments.tiny import one, quiet


def made_up(accuracy: list[float], round_cost: float = 1.0, k: Any = 5.0, seed: int = 0) -> Trajectory:
    rounds = len(accuracy) - 1
    ones = np.ones(rounds)
    return Trajectory(
        name="made up",
        config={"settings": {"seed": seed}, "model": {"dim": 100}, "data": {"clients": 2}},
        k=k * ones,
        low=np.nan * ones,
        high=np.nan * ones,
        probe=np.nan * ones,
        up=np.full(rounds, 5),
        down=np.full(rounds, 5),
        round_cost=round_cost * ones,
        sign=np.full(rounds, 2),
        **dict.fromkeys(("c", "waiting", "agreement"), np.nan * ones),
        contribution=np.array([3.0, 4.0]),
        evaluated=np.arange(rounds + 1),
        loss=np.linspace(2.0, 1.0, rounds + 1),
        accuracy=np.array(accuracy),
    )


def test_the_largest_lead_is_taken_at_equal_cost_and_seed_by_seed() -> None:
    fast = made_up([0.0, 0.4, 0.8, 0.8])  # to cost 3
    slow = made_up([0.0, 0.2, 0.6], round_cost=2.0)  # at cost 2: 0.2, at 3: 0.4
    assert largest_lead([fast], [slow]).values == pytest.approx((0.6,))  # 0.8 - 0.2 at cost 2
    assert largest_lead([slow], [fast]).values == (0.0,)  # never ahead: equal at the start
    other = replace(slow, config={**slow.config, "settings": {"seed": 1}})
    spread = largest_lead([fast], [other, slow])
    assert (len(spread.values), spread.seeds) == (1, 2)
    late = replace(made_up([0.0, 0.0, 0.7, 0.7]), loss=np.array([2.0, 2.0, 1.0, 1.0]))  # like FedAvg's first period
    assert largest_lead([fast], [late]).values == pytest.approx((0.1,)), "before, there was nothing to be ahead of"
    still = replace(late, loss=np.full(4, 2.0))
    assert largest_lead([fast], [still]).values == ()


def test_the_unrest_of_k_is_that_of_the_second_half() -> None:
    assert late_k(made_up([0.0] * 7, k=np.array([900.0, 800.0, 700.0, 10.0, 10.0, 10.0]))) == (10.0, 0.0)
    mean, unrest = late_k(made_up([0.0] * 5, k=np.array([1.0, 1.0, 5.0, 15.0])))
    assert (mean, unrest) == (10.0, 0.5)


def test_a_part_of_a_run_has_no_contributions() -> None:
    whole = made_up([0.0] * 7)
    assert (whole.cut(6).rounds, whole.cut(6).contribution.tolist()) == (6, [3.0, 4.0])
    assert (whole.cut(4).rounds, len(whole.cut(4).contribution)) == (4, 0)


def test_a_store_sees_what_was_written_since_it_looked(tmp_path: Path) -> None:
    store = Store(tmp_path, tmp_path / "results", [])
    short, longer = (one(k=20.0, rounds=rounds) for rounds in (3, 5))
    assert store.get(short) is None
    for experiment, rounds in ((short, 3), (longer, 5)):
        assert carry_out(experiment, tmp_path, quiet)
        there = store.get(short)
        assert there is not None
        assert there.rounds == rounds
        assert store.get(short) is there
