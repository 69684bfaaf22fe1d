"""``gradsift paper``, every figure end to end on a tiny scale."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradsift.cli.main import main
from gradsift.experiments import trajectory
from gradsift.experiments.paper import scale
from gradsift.experiments.paper.figures import FIGURES
from tests.experiments.tiny import SETUP, TINY

pytestmark = pytest.mark.slow  # many runs


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scale.SCALES, "smoke", TINY)


RUNS, RESULTS = Path("runs/paper-smoke"), Path("runs/paper-smoke/results")


def paper(*arguments: str) -> int:
    return main(["paper", "--quiet", *arguments])


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_end_to_end(figure: str, capsys: pytest.CaptureFixture[str]) -> None:
    seeds = "2" if figure == "fig4" else "1"
    assert paper(figure, "--seeds", seeds) == 0
    said = capsys.readouterr().out
    runs = trajectory.load(RESULTS / f"{figure}.npz")
    assert f"{len(runs)} of {len(runs)} experiments are finished (done)" in said
    assert {run.seed for run in runs.values()} == set(range(int(seeds)))
    assert all(np.isfinite(run.loss).all() and run.rounds > 0 for run in runs.values())
    drawn = list((RESULTS / "figures").glob(f"{figure}-*.svg"))
    assert drawn
    assert all(path.read_text().startswith("<?xml") for path in drawn)
    assert not any("mathdefault" in path.read_text() for path in drawn), "numbers as people write them"
    table = (RESULTS / f"{figure}.md").read_text().splitlines()
    assert table[1].startswith("| ---")
    assert len(table) > 2


@pytest.mark.parametrize("figure", ["fig1", "fig6"])
def test_again_nothing_is_run_and_the_same_comes_out(figure: str) -> None:
    assert paper(figure) == 0
    before = {path: path.stat().st_mtime_ns for path in RUNS.rglob("records.jsonl")}
    results = (RESULTS / f"{figure}.md").read_text()
    assert paper(figure) == 0
    assert {path: path.stat().st_mtime_ns for path in RUNS.rglob("records.jsonl")} == before
    assert (RESULTS / f"{figure}.md").read_text() == results


def test_several_figures_share_their_runs_and_a_seed_of_all_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "fig4", "sparsifiers", "--seeds", "2", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0][-1] for line in listed] == ["0"] * 14 + ["1"] * 14
    assert all(line.endswith("not started") for line in listed)
    assert not RUNS.exists()
    assert paper("fig4", "sparsifiers", "--only", "fab-top-k,fedavg") == 0
    assert sorted(path.parent.name for path in RUNS.rglob("records.jsonl")) == [
        "digits-fab-top-k-extended-sign-comm10-seed0",
        "digits-fab-top-k-k14-seed0",
        "digits-fedavg-k14-seed0",
    ]
    assert sorted(trajectory.load(RESULTS / "sparsifiers.npz")) == [
        "digits-fab-top-k-extended-sign-comm10-seed0",
        "digits-fab-top-k-k14-seed0",
    ]


def test_results_that_came_from_elsewhere_are_drawn_and_not_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert paper("fig6") == 0
    capsys.readouterr()
    assert paper("fig6", "--out", "other", "--results", str(RESULTS)) == 0
    assert "2 of 2 experiments are finished (done)" in capsys.readouterr().out
    assert not Path("other").exists()
    assert paper("fig6", "--seeds", "2", "--out", "other", "--results", str(RESULTS), "--report") == 0
    assert "2 of 4 experiments are finished" in capsys.readouterr().out


def test_a_larger_budget_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    only = ("fig4", "--only", "fab")
    assert paper(*only) == 0
    records = RUNS / "digits-fab-top-k-k14-seed0" / "records.jsonl"
    before = records.read_text()
    assert paper(*only, "--cost-budget", "20") == 0
    after = records.read_text()
    assert len(after.splitlines()) > len(before.splitlines())
    rounds = [json.loads(line)["round"] for line in after.splitlines()]
    assert rounds == list(range(1, len(rounds) + 1))
    # The smaller budget is still served, by the part of the run that it pays for.
    capsys.readouterr()
    assert paper(*only) == 0
    assert f"Rounds                 {len(before.splitlines())}\n" in capsys.readouterr().out


def test_more_rounds_after_psi_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    only = ("fig1", "--only", "k500-until-loss2.2")
    assert paper(*only) == 0
    records = RUNS / "digits-k500-until-loss2.2-seed0" / "records.jsonl"
    before = records.read_text()
    assert paper(*only, "--rounds", "9") == 0
    assert records.read_text().startswith(before)
    assert len(records.read_text().splitlines()) == len(before.splitlines()) + 3
    assert "1 of 1 experiments are finished (done)" in capsys.readouterr().out


def test_what_is_not_finished_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert paper("fig4", "--only", "fab,fub") == 0
    assert "(not finished)" not in capsys.readouterr().out
    assert paper("fig4", "--report", "--cost-budget", "20") == 0
    said = capsys.readouterr().out
    assert "FAB-top-k (not finished)" in said
    assert "0 of 6 experiments are finished (nothing was run)" in said


@pytest.mark.parametrize("figure", ["fig7", "energy"])
def test_a_seed_that_is_not_finished_is_marked_where_rounds_are_counted(
    figure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paper(figure, "--rounds", "4", "--seeds", "2") == 0
    assert paper(figure, "--rounds", "6") == 0
    assert "(not finished)" not in capsys.readouterr().out
    assert paper(figure, "--rounds", "6", "--seeds", "2", "--report") == 0
    table = (RESULTS / f"{figure}.md").read_text().splitlines()[2:]
    assert all("(not finished)" in line for line in table)


def test_a_namesake_of_another_experiment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert paper("fig4", "--only", "fedavg") == 0
    config = RUNS / "digits-fedavg-k14-seed0" / "config.json"
    config.write_text(config.read_text().replace('"lr": 0.3', '"lr": 0.1'))
    (RESULTS / "fig4.npz").unlink()
    assert paper("fig4", "--only", "fedavg") == 2
    assert "is a run of another experiment: lr was 0.1, not 0.3" in capsys.readouterr().err


def test_a_limit_of_time_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert paper("fig4", "--minutes", "1e-6") == 0
    assert "0 of 6 experiments are finished (time limit)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("fig9",), "unknown 'fig9'"),
        (("fig4", "--seeds", "0"), "--seeds must be above 0, got 0"),
        (("fig4", "--minutes", "-1"), "--minutes must be above 0, got -1.0"),
        (("fig4", "--minutes", "nan"), "--minutes must be above 0, got nan"),
        (("fig4", "--only", "nothing"), "--only nothing: no run has such a name"),
        (("fig4", "--scale", "papr"), "did you mean 'paper'"),
        (("fig4", "--report", "--results", "nope"), "none of these runs is in runs/paper-smoke or nope"),
        (("fig7", "--cost-budget", "5"), "--cost-budget has no meaning for fig7: these runs end after --rounds"),
        (("fig1", "fig8", "energy", "money", "--cost-budget", "5"), "--cost-budget has no meaning for fig1, fig8, "),
        (("fig4", "--rounds", "5"), "--rounds has no meaning for fig4: these runs end at --cost-budget"),
        (("fig4", "--device", "tpu"), "device 'tpu' cannot be used"),
        (("fig4", "--device", "tpu", "--jobs", "2"), "device 'tpu' cannot be used"),
        (("fig4", "--scale", "paper"), "GRADSIFT_DATA is 'gone', which is not a folder"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADSIFT_DATA", "gone")
    assert main(["paper", *arguments]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert list(Path.cwd().iterdir()) == []


def test_a_run_that_fails_makes_the_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wild = replace(SETUP, settings={**SETUP.settings, "lr": 1e30})
    monkeypatch.setitem(scale.SCALES, "smoke", replace(TINY, femnist=wild))
    assert paper("fig6") == 1
    said = capsys.readouterr()
    assert "try a smaller step size" in said.err
    assert "0 of 2 experiments are finished (failed)" in said.out
