"""``gradsift regret`` end to end, small."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradsift.cli.main import main
from gradsift.experiments import trajectory
from gradsift.experiments.paper import scale
from tests.experiments.tiny import TINY

pytestmark = pytest.mark.slow  # many runs

SMALL = ["--model", "mlp", "--clients", "4", "--lr", "0.3", "--eval-every", "4", "--quiet"]
FEW = ["--rounds", "16", "--seeds", "2", "--points", "4", "--comm-times", "1,100"]
RUNS, RESULTS = Path("runs/regret-digits"), Path("runs/regret-digits/results")


def regret(*arguments: str) -> int:
    return main(["regret", *arguments])


def cells(page: str, title: str) -> list[list[str]]:
    part = page.split(f"## {title}\n\n")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]


def slow_cost(run: dict[str, Any], comm_time: float, target: float, comp_time: float = 1) -> float:
    """From the records alone: add up the rounds' costs, keep the lowest loss, interpolate the crossing."""
    spent, before, lowest = 0.0, (0.0, run["start"]), run["start"]
    for one in run["rounds"]:
        spent += comp_time + comm_time * (one["up_elements"] + one["down_elements"]) / 4810
        if one["global_loss"] is None:
            continue
        lowest = min(lowest, one["global_loss"])
        if lowest <= target:
            return float(before[0] + (spent - before[0]) * (before[1] - target) / (before[1] - lowest))
        before = (spent, lowest)
    return float("inf")


def read(name: str) -> dict[str, Any]:
    folder = RUNS / name
    start = json.loads((folder / "config.json").read_text())["start"]["global_loss"]
    return {
        "start": start,
        "rounds": [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()],
    }


def test_from_nothing_to_tables_and_figures_and_again_from_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert regret(*SMALL, *FEW, "--controllers", "extended-sign,sign") == 0
    said = capsys.readouterr().out
    runs = trajectory.load(RESULTS / "regret-digits.npz")
    assert f"{len(runs)} of {len(runs)} runs are finished (done)" in said
    page = (RESULTS / "regret-digits.md").read_text()
    names, _, *table = cells(page, "Cost over that of the best fixed k")
    assert names == ["Clock", "Target loss", "Best fixed k", "Its cost", "Algorithm 3", "Algorithm 2"]
    assert [line[0] for line in table] == ["comm_time 1"] * 3 + ["comm_time 100"] * 3
    ks = sorted({int(name.split("-k")[2].split("-")[0]) for name in runs if "top-k-k" in name})
    assert len(ks) > 4, "it looks around the best"
    # Every number of the table, from the records by a slow twin.
    sweep = {(k, seed): read(f"digits-fab-top-k-k{k}-seed{seed}") for k in ks for seed in range(2)}
    for clock, target, best_k, cost, extended, _ in table:
        comm_time, loss = float(clock.split()[1]), float(target)
        means = {k: np.mean([slow_cost(sweep[k, seed], comm_time, loss) for seed in range(2)]) for k in ks}
        found = min(means, key=lambda k: means[k])
        assert int(best_k.split()[0].replace(",", "")) == found
        assert float(cost.split()[0]) == pytest.approx(means[found], rel=2e-3)  # the target is shown rounded
        own = [read(f"digits-fab-top-k-extended-sign-comm{comm_time:g}-seed{seed}") for seed in range(2)]
        costs = [slow_cost(run, comm_time, loss) for run in own]
        if extended != "not reached" and all(np.isfinite(costs)):
            pairs = [c / slow_cost(sweep[found, seed], comm_time, loss) for seed, c in enumerate(costs)]
            assert float(extended.split()[0]) == pytest.approx(float(np.exp(np.mean(np.log(pairs)))), rel=1e-2)
    for title in ("Regret of Definition 4", "Where the cost went", "Assumption 2: t(k, l)"):
        assert len(cells(page, title)) > 2, title
    for *_, whole, first in cells(page, "Regret of Definition 4")[2:]:
        lowest = float(whole.split("(")[-1].split(" to ")[0].replace(",", ""))
        assert (first != "") == (lowest > 0), "a part of no regret means nothing"
    assert len(list((RESULTS / "figures").glob("*.svg"))) == 4
    # Sweep files are reused: with the results alone, nothing is run.
    assert regret(*SMALL, *FEW, "--controllers", "extended-sign,sign", "--out", "other", "--results", str(RESULTS)) == 0
    assert not Path("other").exists()
    assert (RESULTS / "regret-digits.md").read_text() == page


def test_named_targets_end_the_runs_and_another_cost_has_its_own_clock(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--seeds", "1", "--points", "3", "--refine", "0", "--rounds", "40", "--targets", "2.2,2.1"]
    price = ["--cost", "money", "--set", "cost.up=1e-6", "--set", "cost.down=1e-6", "--set", "cost.compute=0.01"]
    assert regret(*SMALL, *more, *price, "--controllers", "value") == 0
    assert "4 of 4 runs are finished" in capsys.readouterr().out
    page = Path("runs/regret-digits-money/results/regret-digits-money.md").read_text()
    table = cells(page, "Cost over that of the best fixed k")[2:]
    assert [line[:2] for line in table] == [["money", "2.2"], ["money", "2.1"]]
    runs = trajectory.load(Path("runs/regret-digits-money/results/regret-digits-money.npz"))
    assert sorted(runs)[-1] == "digits-fab-top-k-value-money-every4-seed0"
    for run in runs.values():
        assert run.config["cost"]["class"] == "Money"
        assert run.rounds == 40 or run.loss[-1] <= 2.1 < run.loss[:-1].min()


def test_an_option_of_the_clock_is_of_the_sweeps_clock_too() -> None:
    few = ["--seeds", "1", "--points", "3", "--refine", "0", "--rounds", "16", "--comm-times", "1"]
    assert regret(*SMALL, *few, "--set", "cost.comp_time=5", "--controllers", "sign") == 0
    page = (RESULTS / "regret-digits.md").read_text()
    for line in cells(page, "Cost over that of the best fixed k")[2:]:
        best = read(f"digits-fab-top-k-k{int(line[2].split(', ')[0].replace(',', ''))}-seed0")
        rounds = [5 + (one["up_elements"] + one["down_elements"]) / 4810 for one in best["rounds"]]
        assert min(rounds) < float(line[3]) < sum(rounds)
        assert float(line[3]) == pytest.approx(slow_cost(best, 1, float(line[1]), 5), rel=0.01)  # of a rounded target


def test_a_controller_with_options_is_told_apart_from_the_one_without() -> None:
    few = ["--seeds", "1", "--points", "3", "--refine", "0", "--rounds", "8", "--comm-times", "1"]
    assert regret(*SMALL, *few, "--controllers", "planned,planned[guess=10;k_max=900]") == 0
    runs = trajectory.load(RESULTS / "regret-digits.npz")
    plain = runs["digits-fab-top-k-planned-comm1-seed0"]
    other = runs["digits-fab-top-k-planned-comm1-guess10-k_max900-seed0"]
    assert plain.k[0] < other.k[0] <= 900
    assert np.isfinite(plain.c).all()
    assert np.isfinite(plain.waiting).all()
    header = cells((RESULTS / "regret-digits.md").read_text(), "Cost over that of the best fixed k")[0]
    assert header[-2:] == ["planned k", "planned k, guess 10, k_max 900"]


def test_like_a_figure_it_shares_the_figures_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(scale.SCALES, "smoke", TINY)
    assert main(["paper", "fig7", "--only", "comm10-", "--quiet"]) == 0
    records = Path("runs/paper-smoke/digits-fab-top-k-extended-sign-comm10-seed0/records.jsonl")
    before = records.stat().st_mtime_ns
    few = ["--seeds", "1", "--points", "2", "--refine", "0", "--comm-times", "10", "--controllers", "extended-sign"]
    assert regret("--like", "femnist", "--quiet", *few) == 0
    assert "3 of 3 runs are finished (done)" in capsys.readouterr().out
    assert records.stat().st_mtime_ns == before


def test_a_limit_of_time_keeps_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert regret(*SMALL, *FEW, "--minutes", "1e-6") == 0
    assert "0 of 16 runs are finished (time limit)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--seed", "3"), "--seeds N runs"),
        (("--k", "3"), "the sweep covers"),
        (("--controllers", "extended-sing"), "did you mean 'extended-sign'"),
        (("--controllers", "fixed"), "unknown controller 'fixed'"),
        (("--controllers", "planned[guess]"), "is written NAME[OPTION=VALUE;...], got 'planned[guess]'"),
        (("--controllers", "planned[guess=2"), "is written NAME[OPTION=VALUE;...], got 'planned[guess=2'"),
        (("--targets", "1,x"), "--targets takes different numbers, with commas between them, got '1,x'"),
        (("--targets", ""), "--targets takes different numbers, with commas between them, got ''"),
        (("--comm-times", "1,1"), "--comm-times takes different numbers"),
        (("--sparsifier", "fedavg"), "there is no k to sweep"),
        (("--like", "femnist", "--lr", "0.1"), "--like femnist has its own lr"),
        (("--cost", "money", "--clients-per-round", "3", "--model", "mlp"), "cannot be priced by money"),
        (("--points", "0"), "--points must be at least 2, got 0"),
        (("--refine", "-1"), "--refine must be 0 or more, got -1"),
        (("--controllers", ","), "--controllers takes names, with commas between them, got ','"),
        (("--set", "controller.alpha=3"), "--set controller.alpha: several controllers run here"),
        (("--points", "1"), "--points must be at least 2, got 1"),
        (("--targets", "1,nan"), "--targets must be a finite number, got nan"),
        (("--targets", "1,inf"), "--targets must be a finite number, got inf"),
        (("--comm-times", "1,nan", "--model", "mlp"), "--comm-times must be a finite number, got nan"),
        (("--comm-times=-1,1", "--model", "mlp"), "--comm-times must be at least 0, got -1.0"),
        (("--cost", "energy", "--comm-times", "10"), "--comm-times has no meaning with --cost energy"),
        (
            ("--set", "cost.comm_time=3", "--model", "mlp"),
            "--set cost.comm_time has no meaning here: name them in --comm",
        ),
        (("--set", "cost.comp=3", "--model", "mlp"), "did you mean 'comp_time'"),
        (("--scale", "paper"), "--scale paper has no meaning without --like"),
        (("--k-max", "99999"), "k_max must be at most D = 6090, got 99999"),
        (("--k-min", "7", "--k-max", "7"), "--k-min 7 and --k-max 7 leave no two whole k to sweep"),
        (("--k-min", "6.2", "--k-max", "7.9"), "--k-min 6.2 and --k-max 7.9 leave no two whole k to sweep"),
        (("--device", "tpu", "--model", "mlp"), "device 'tpu' cannot be used"),
        (("--lr", "nan", "--model", "mlp"), "lr must be a finite number, got nan"),
        (("--batch-size", "0", "--jobs", "2", "--model", "mlp"), "batch_size must be at least 1, got 0"),
        (("--like", "femnist", "--scale", "paper"), "GRADSIFT_DATA is 'gone', which is not a folder"),
        (("--report", "--results", "nope", "--model", "mlp"), "none of these runs is in runs/regret-digits or nope"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADSIFT_DATA", "gone")
    assert regret(*arguments) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert list(Path.cwd().iterdir()) == []


def test_words_for_what_is_not_there() -> None:
    few = [*SMALL, "--seeds", "1", "--points", "3", "--refine", "0", "--comm-times", "10", "--rounds", "16"]
    few += ["--targets", "50,2.2,0.001"]
    assert regret(*few, "--controllers", "exp3") == 0
    assert regret(*few, "--controllers", "exp3,value,exp3", "--report") == 0
    page = (RESULTS / "regret-digits.md").read_text()
    names, _, *table = cells(page, "Cost over that of the best fixed k")
    assert names[4:] == ["EXP3", "value-based descent"], "once each"
    assert [line[2].split(",")[0].isdigit() for line in table] == [False, True, False]
    assert (table[0][2], table[2][2], table[1][5]) == ("above the first loss", "not reached", "not run")
    assert "no k reached these losses in every seed" not in page
    shapes = cells(page, "Assumption 2: t(k, l)")[2:]
    assert shapes[-1][2:] == ["not reached", "", "", ""]
    assert regret(*few[:-1], "2.2", "--controllers", "exp3,value", "--report") == 0
    page = (RESULTS / "regret-digits.md").read_text()
    lines = {line[1]: line[3] for line in cells(page, "Regret of Definition 4")[2:]}
    assert lines["value-based descent"] == "not run"
    assert float(lines["EXP3"]) > 0
    runs = trajectory.load(RESULTS / "regret-digits.npz").values()
    assert {int(run.evaluated[2] - run.evaluated[1]) for run in runs} == {3}, "all look at rounds 1, 4, 8 and so on"


def test_a_step_size_that_lowers_no_loss_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--rounds", "8", "--seeds", "2", "--points", "3", "--comm-times", "1", "--controllers", "sign"]
    assert regret(*SMALL, *few, "--lr", "1000") == 1
    said = capsys.readouterr()
    assert "fewer than half of the fixed k lower the loss in every seed: try another --lr" in said.err
    assert "above the first loss" not in said.out
    (RESULTS / "regret-digits.npz").unlink()
    last = max(RUNS.glob("digits-fab-top-k-k*-seed0"), key=lambda run: int(run.name.split("-")[-2][1:]))
    shutil.rmtree(last)
    assert regret(*SMALL, *few, "--lr", "1000", "--report") == 0
    assert "no k that is finished in every seed lowers the loss yet" in capsys.readouterr().out


def test_a_k_that_ended_before_a_loss_leaves_assumption_2_open(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--rounds", "30", "--eval-every", "5", "--seeds", "2", "--points", "5", "--comm-times", "100"]
    assert regret(*SMALL, *few, "--clients", "5", "--controllers", "sign") == 0
    said = (
        "comm_time 100: it cannot be told whether the best k moves with the loss: 10, 47, 101 ended before the lowest"
    )
    assert said in capsys.readouterr().out
    assert f"- {said}\n" in (RESULTS / "regret-digits.md").read_text()


def test_targets_do_not_move_when_the_sweep_is_refined() -> None:
    few = [*SMALL, "--seeds", "1", "--points", "4", "--comm-times", "100", "--rounds", "16"]
    targets = []
    for refine in ("0", "1"):
        assert regret(*few, "--refine", refine) == 0
        page = (RESULTS / "regret-digits.md").read_text()
        targets.append([line[1] for line in cells(page, "Cost over that of the best fixed k")[2:]])
    assert targets[0] == targets[1]


def test_runs_that_are_not_finished_are_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    few = [*SMALL, "--seeds", "1", "--points", "3", "--refine", "0", "--comm-times", "10", "--controllers", "sign"]
    assert regret(*few, "--rounds", "8") == 0
    capsys.readouterr()
    assert regret(*few, "--rounds", "16", "--report") == 0
    said = capsys.readouterr().out
    assert "no k of the sweep is finished in every seed yet" in said
    assert "0 of 4 runs are finished (nothing was run)" in said


def test_a_sweep_along_local_steps_and_bits_is_priced_by_its_bytes() -> None:
    """The cost of a run at another clock is what a run at that clock has."""
    axes = ["--local-steps", "4", "--bits", "2,4", "--controllers", "planned"]
    assert regret(*SMALL, "--rounds", "8", "--seeds", "1", "--points", "3", "--comm-times", "1,100", *axes) == 0
    name = "regret-digits-steps4-bits2-4"
    runs = trajectory.load(Path("runs") / name / "results" / f"{name}.npz")
    assert all(run.config["local"]["steps"] == 4 and run.config["values"]["bits"] == 2 for run in runs.values())
    assert {run.config["down_values"]["bits"] for run in runs.values()} == {4}
    assert "planned k" in (Path("runs") / name / "results" / f"{name}.md").read_text()


def test_encoded_bytes_go_with_normalised_time_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert regret(*SMALL, "--bits", "2,4", "--cost", "money", "--set", "cost.up=1e-9", "--set", "cost.down=1e-9") == 2
    assert "can be priced by normalized-time only" in capsys.readouterr().err
