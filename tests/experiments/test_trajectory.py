"""Trajectories: nothing is lost that a figure needs, and another clock gives what another run would have given."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradsift
from gradsift.experiments import trajectory
from gradsift.experiments.experiment import Experiment
from gradsift.experiments.trajectory import STORED, Trajectory, from_folder
from gradsift.experiments.work import carry_out
from gradsift.records.stop import StopWhen
from gradsift.report.runs import load_run
from tests.experiments.tiny import one, quiet


def made(tmp_path: Path, **options: Any) -> Trajectory:
    experiment = one(**{"k": 20.0, "rounds": 9, **options})
    assert carry_out(experiment, tmp_path, quiet)
    found = from_folder(tmp_path / experiment.name)
    assert found is not None
    return found


def test_a_file_holds_what_the_folder_held(tmp_path: Path) -> None:
    one = made(tmp_path, controller="extended-sign", k=None)
    other = made(tmp_path, sparsifier="fedavg")
    trajectory.save(tmp_path / "new" / "a.npz", [one, other])
    read = trajectory.load(tmp_path / "new" / "a.npz")
    assert list(read) == [one.name, other.name]
    for kept in (one, other):
        again = read[kept.name]
        assert again.config == kept.config
        for name in STORED:
            exact = name not in ("k", "low", "high", "round_cost")
            np.testing.assert_allclose(getattr(again, name), getattr(kept, name), rtol=0 if exact else 1e-7)
    run = load_run(tmp_path / one.name)
    again_run = read[one.name].as_run()
    for name in ("cost", "k", "low", "high", "up", "down", "contribution", "loss", "accuracy"):
        np.testing.assert_allclose(getattr(again_run, name), getattr(run, name), rtol=1e-6)
    assert (again_run.dense, again_run.seed) == (run.dense, 0)
    assert read[other.name].as_run().dense
    assert set(np.unique(one.sign)) <= {-1, 0, 1, trajectory.NO_SIGN}


@pytest.mark.parametrize("sparsifier", gradsift.sparsifiers())
def test_another_clock_is_another_run(tmp_path: Path, sparsifier: str) -> None:
    one = made(tmp_path / "a", sparsifier=sparsifier, comm_time=10.0)
    other = made(tmp_path / "b", sparsifier=sparsifier, comm_time=0.1)
    np.testing.assert_allclose(one.repriced(gradsift.NormalizedTime(0.1)).cost, other.cost, rtol=1e-12)
    np.testing.assert_allclose(one.repriced(gradsift.NormalizedTime(10.0)).cost, one.cost, rtol=1e-12)
    np.testing.assert_array_equal(one.loss, other.loss)
    money = gradsift.Money(up=1e-6, down=1e-7, compute=0.5)
    per_round = 4 * (0.5 + (4 if one.dense else 8) * (1e-6 * one.up + 1e-7 * one.down))
    np.testing.assert_allclose(one.repriced(money).round_cost, per_round, rtol=1e-12)


def test_a_message_charged_as_dense_where_that_is_smaller_is_so_again(tmp_path: Path) -> None:
    experiment = one(k=4000.0, rounds=3)
    cheap = replace(experiment, settings={**experiment.settings, "dense_fallback": True})
    assert carry_out(cheap, tmp_path, quiet)
    found = from_folder(tmp_path / cheap.name)
    assert found is not None
    np.testing.assert_allclose(found.round_cost, 11.0)
    np.testing.assert_allclose(found.repriced(gradsift.NormalizedTime(0.5)).round_cost, 1.5)


def test_a_longer_run_is_cut_where_a_shorter_one_ends(tmp_path: Path) -> None:
    whole = made(tmp_path)
    part = whole.within(StopWhen(rounds=5))
    assert (part.rounds, part.evaluated.tolist()) == (5, [0, 1, 4])
    assert whole.within(StopWhen(rounds=100)) is whole
    budget = float(whole.cost[3])
    assert whole.within(StopWhen(rounds=100, cost_budget=budget)).rounds == 4
    assert whole.within(StopWhen(rounds=100, cost_budget=budget + 0.01)).rounds == 5
    assert whole.within(StopWhen(rounds=100, cost_budget=1e9)).rounds == 9


def test_whether_a_run_came_far_enough(tmp_path: Path) -> None:
    run = made(tmp_path)
    spent = float(run.cost[-1])
    assert run.reached(StopWhen(rounds=9)) == "rounds"
    assert run.reached(StopWhen(rounds=10)) is None
    assert run.reached(StopWhen(rounds=99, cost_budget=spent)) == "cost budget"
    assert run.reached(StopWhen(rounds=99, cost_budget=1.01 * spent)) is None
    summed = replace(run, round_cost=run.round_cost * (1 - 1e-12))
    assert summed.reached(StopWhen(rounds=99, cost_budget=spent)) == "cost budget"
    best = float(run.loss[1:].min())
    assert run.reached(StopWhen(rounds=99, target_loss=best)) == "target loss"
    assert run.reached(StopWhen(rounds=99, target_loss=best - 1e-9)) is None


def test_what_is_no_file_of_results_is_refused(tmp_path: Path) -> None:
    assert trajectory.load(tmp_path / "none.npz") == {}
    (tmp_path / "a.npz").write_bytes(b"no")
    with pytest.raises(gradsift.GradsiftError, match=r"a\.npz is not a file of results"):
        trajectory.load(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.zeros(3))
    with pytest.raises(gradsift.GradsiftError, match=r"b\.npz is not a file of results"):
        trajectory.load(tmp_path / "b.npz")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(gradsift.RunError, match="could not write"):
        trajectory.save(tmp_path / "file" / "a.npz", [])


def test_an_unknown_rule_to_stop_is_refused() -> None:
    with pytest.raises(gradsift.GradsiftError, match="target_los"):
        one(k=2.0, target_los=1.0)
    assert isinstance(one(k=2.0), Experiment)


@pytest.mark.parametrize("options", [{"bits": [2, 4]}, {"encoded_bytes": True}, {"bits": [2, 4], "local_steps": 3}])
def test_encoded_bytes_are_priced_by_another_clock(tmp_path: Path, options: dict[str, Any]) -> None:
    found = []
    for comm_time in (10.0, 0.5):
        experiment = one(k=20.0, rounds=9, comm_time=comm_time)
        experiment = replace(experiment, settings={**experiment.settings, "encoded_bytes": True, **options})
        assert carry_out(experiment, tmp_path / str(comm_time), quiet)
        found.append(from_folder(tmp_path / str(comm_time) / experiment.name))
    first, other = found
    assert first is not None
    assert other is not None
    np.testing.assert_allclose(first.repriced(gradsift.NormalizedTime(0.5)).cost, other.cost, rtol=1e-9)
    np.testing.assert_array_equal(first.loss, other.loss)
    with pytest.raises(gradsift.GradsiftError, match="encoded bytes can be priced by normalised time only"):
        first.repriced(gradsift.Money(up=1e-6, down=1e-7))
