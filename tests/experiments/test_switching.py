"""Figure 1's runs: one k until the loss is psi, then another, the same whatever interrupts them."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import gradsift
from gradsift.experiments.build import simulate_arguments
from gradsift.experiments.paper.figures import fig1
from gradsift.experiments.switching import Switching
from gradsift.experiments.trajectory import from_folder
from gradsift.experiments.work import carry_out
from gradsift.records.record import Record
from tests.experiments.tiny import TINY, quiet, records

EXPERIMENT = fig1(TINY, 0)[1]  # k = D until 2.2, then 14


def run_to_the_end(place: Path) -> tuple[list[dict[str, Any]], int]:
    assert carry_out(EXPERIMENT, place, quiet)
    lines = [json.loads(line) for line in records(place / EXPERIMENT.name)]
    done = from_folder(place / EXPERIMENT.name)
    assert done is not None
    assert done.switched_after is not None
    return lines, done.switched_after


def test_k_changes_after_the_first_evaluation_at_psi_and_the_run_ends_so_many_rounds_later(tmp_path: Path) -> None:
    lines, after = run_to_the_end(tmp_path)
    met = [line["round"] for line in lines if line["global_loss"] is not None and line["global_loss"] <= 2.2]
    assert after == met[0]
    assert [line["used_k"] for line in lines] == [4810] * after + [14] * TINY.after
    done = from_folder(tmp_path / EXPERIMENT.name)
    assert EXPERIMENT.remaining(done) is None


def test_it_is_the_run_of_that_sequence_of_k(tmp_path: Path) -> None:
    lines, after = run_to_the_end(tmp_path)
    arguments = simulate_arguments(dict(EXPERIMENT.settings))
    sequence = gradsift.controller("replay", sequence=[4810] * after + [14] * TINY.after)
    arguments |= {"controller": sequence, "rounds": after + TINY.after, "target_loss": None}
    again = gradsift.simulate(**arguments).records
    for key in ("used_k", "train_loss", "cost", "contribution"):
        assert [line[key] for line in lines] == [record[key] for record in again]


@pytest.mark.parametrize("at", ["before", "at", "after"])
def test_interrupted_anywhere_it_comes_to_the_same_end(tmp_path: Path, at: str) -> None:
    whole, after = run_to_the_end(tmp_path / "whole")
    stop_in = {"before": after - 1, "at": after, "after": after + 3}[at]

    def interrupt(record: Record) -> None:
        if record["round"] == stop_in:
            signal.raise_signal(signal.SIGINT)

    finished = carry_out(EXPERIMENT, tmp_path / "cut", interrupt)
    assert finished == (at == "at")  # that round was the last of its part: nothing was left to interrupt
    assert run_to_the_end(tmp_path / "cut") == (whole, after)


def test_killed_between_a_record_and_its_checkpoint_it_comes_to_the_same_end(tmp_path: Path) -> None:
    whole, after = run_to_the_end(tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(record: Record) -> None:
        if record["round"] == after:
            raise Killed

    with pytest.raises(Killed):
        carry_out(EXPERIMENT, tmp_path / "cut", kill)
    assert run_to_the_end(tmp_path / "cut") == (whole, after)


def test_a_k_that_never_gets_there_ends_at_the_limit(tmp_path: Path) -> None:
    from dataclasses import replace

    slow = fig1(replace(TINY, psi=(0.001,), psi_rounds=7), 0)[0]
    assert carry_out(slow, tmp_path, quiet)
    done = from_folder(tmp_path / slow.name)
    assert done is not None
    assert (done.rounds, done.switched_after) == (7, None)
    assert slow.remaining(done) is None


def test_bad_values_are_named() -> None:
    with pytest.raises(gradsift.GradsiftError, match="first"):
        Switching(0.5, 3)
    with pytest.raises(gradsift.GradsiftError, match=r"\[1, 10\], got 11"):
        Switching(3, 11).init(10)
