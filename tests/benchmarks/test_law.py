import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import committed, law, law_report
from benchmarks.common import ROOT
from benchmarks.law import AT, Known, Rule
from benchmarks.law_tasks import TASKS
from gradsift.control.law import best_k
from gradsift.control.planned import measured_c

FILE: dict[str, Any] = json.loads(law.DATA.read_text())


def rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def section(name: str) -> list[list[str]]:
    found = re.search(rf"<!-- law: {name} -->\n(.*?)<!-- end -->", law_report.PAGE.read_text(), re.DOTALL)
    assert found
    return rows(found[1])


def test_the_page_shows_what_the_file_says() -> None:
    text = law_report.PAGE.read_text()
    assert sorted(re.findall(r"<!-- law: ([\w-]+) -->", text)) == sorted(law_report.TABLES)
    assert law_report.filled(text, FILE) == text


def test_the_summary_of_the_page_is_that_of_its_tables() -> None:
    text = " ".join(law_report.PAGE.read_text().split())
    ways = {row[0]: row[1:] for row in section("ways")}
    mean, worst = (float(number) for number in ways["the rule"][:2])
    assert f"costs {mean:.2f} times the best fixed k on average" in text
    assert f"and {worst:.2f} times at worst" in text
    others = re.search(r"Constants chosen on the ten other tasks: mean ([\d.]+), worst ([\d.]+)\.", text)
    assert others
    assert f"on the other ten tasks {float(others[1]):.2f} and {others[2]} times" in text
    planned = {row[0]: row[1:] for row in section("planned")}
    assert planned["comm_time"][3] == "100"
    tasks = [cells for name, cells in planned.items() if name in TASKS]
    assert len(tasks) == 11
    assert f"the rule {np.mean([float(cells[3]) for cells in tasks]):.3f}" in text
    guess = [task.cost(Known(math.sqrt))[:, 3].mean() for task in law.plans(FILE).values()]
    assert f"the guess alone costs {np.mean(guess):.3f}" in text


def test_constants_from_other_data_are_chosen_without_it() -> None:
    tried = law.Tried(FILE)
    assert tried.best(lambda _: True) == int(tried.errors.sum(axis=1).argmin())
    rule = tried.rules[tried.best(lambda name: not name.startswith("femnist"))]
    assert rule != tried.rules[tried.best(lambda name: name.startswith("femnist"))]
    found = {row[0]: row for row in section("crossed")}
    assert found["as shipped"][1:4] == ["7", "3", "0.7"]
    assert float(found["without FEMNIST (4)"][1]) == pytest.approx(rule.waiting, abs=0.05)
    text, page = (" ".join((ROOT / name).read_text().split()) for name in ("docs/theory.md", "docs/results/regret.md"))
    ten, hundred = (f"{float(each):.2f}" for each in found["without CIFAR-10 (9)"][5].split(" / ")[2:])
    assert f"cost {ten} and {hundred} times the best k there at comm_time 10 and 100" in text
    assert f"would cost {ten} and {hundred} there at 10 and 100" in page


def test_ratios_from_the_committed_runs_are_those_of_the_sweeps() -> None:
    """Of all three seeds they are in the tables that ``gradsift regret`` made."""
    for name, targets in committed.TARGETS.items():
        table = (committed.RESULTS / f"regret-{name}.md").read_text()
        for target in targets:
            (row,) = (one for one in rows(table) if one[:2] == ["comm_time 10", f"{target:g}"])
            ours = committed.planned_over_best(name, 10.0, target, committed.SEEDS)
            assert float(row[4].split()[0]) == pytest.approx(ours, rel=0.006)
    page = " ".join((ROOT / "docs/results/regret.md").read_text().split())
    for name, said in (("femnist", "{} to {} times as much as the best fixed k on FEMNIST"), ("cifar10", "{} to {}, ")):
        wanted = [0.1, 1.0, 10.0, 100.0] if name == "femnist" else [0.1]
        found = [committed.planned_over_best(name, clock, t) for clock in wanted for t in committed.TARGETS[name]]
        assert said.format(f"{min(found):.2f}", f"{max(found):.2f}") in page


def test_signs_are_counted_by_k_over_the_best() -> None:
    signs = committed.Signs(np.array([0.2, 0.3, 0.9, 1.5, 9.0]), np.array([1.0, 0.0, 0.0, 1.0, 1.0]))
    assert signs.shares() == [(2, 0.5), (1, 0.0), (1, 1.0), (1, 1.0)]
    text = " ".join(law_report.PAGE.read_text().split())
    (share,) = (row for row in section("signs") if row[:2] == ["CIFAR-10", "10"])
    assert share[2] == "0.58 of 1,568"
    assert "54 and 58 % of 1,237 and 1,568 signs ask for a still smaller one" in text


def test_what_the_page_says_of_c_is_what_the_table_says() -> None:
    text = " ".join(law_report.PAGE.read_text().split())
    fits = {row[0]: row for row in section("fits")[1:]}
    chosen = [name for name, task in TASKS.items() if task.role == "chosen on"]
    better = sum(float(fits[name][10]) < float(fits[name][6]) for name in chosen)
    assert f"In {better} of the 11 tasks" in text
    off = [float(fits[name][11].replace(",", "")) / float(fits[name][7].replace(",", "")) for name in chosen]
    assert max(*off, *(1 / each for each in off)) < 2.7


def test_the_file_knows_every_task() -> None:
    assert FILE["tasks"].keys() == TASKS.keys()
    assert tuple(FILE["at"]) == AT
    assert tuple(FILE["parts"]) == law.PARTS
    assert law.DATA.stat().st_size < 1_000_000


def test_the_rule_is_that_of_the_controller() -> None:
    for agreement in (-3.0, 0.2, 1.7):
        signals = (np.array([value]) for value in (50.0, 300.0, agreement))
        ratio = Rule().ratio(10_000, 40, *signals).item()
        assert 50 * ratio == pytest.approx(measured_c(10_000, 50, 300.0, agreement, 40))


@pytest.mark.parametrize("exponent", [1.0, 0.7])
def test_a_law_is_found_in_rounds_that_follow_it(exponent: float) -> None:
    k = np.geomspace(10, 10_000, 7)
    r0, c, rms = law.fitted(k, 300 * (1 + 450 / k) ** exponent, exponent)
    assert r0 == pytest.approx(300, rel=0.01)
    assert c == pytest.approx(450, rel=0.01)  # the grid of c has steps of 0.8 %
    assert rms < 0.004


def test_the_formula_of_the_page_for_k_is_what_the_controller_finds() -> None:
    for c, each in ((100.0, 0.01), (5000.0, 0.002), (30.0, 1.0)):
        spare = 0.3 * c
        k = (math.sqrt(spare**2 + 2.8 * c / each) - spare) / 2
        found = best_k(lambda k, each=each: 1 + each * k, c, 0.01, 1e6)  # type: ignore[misc]
        assert found == pytest.approx(k, rel=0.01)
        assert 0.7 * c / (k + c) == pytest.approx(each * k / (1 + each * k))


def test_a_plan_with_the_true_c_costs_next_to_nothing() -> None:
    k = [30, 100, 300, 1000, 3000]
    signals: dict[str, Any] = {"waiting": [1.0] * len(AT), "agreement": [1.0] * len(AT)}
    runs = [{"k": each, "rounds": [200 * (1 + 400 / each) ** 0.7], **signals} for each in k]
    task = law.Plans({"dim": 100_000, "targets": [1.0], "runs": runs})
    right, ten_times = (task.cost(Known(lambda _, c=c: c))[0, 2] for c in (400.0, 4000.0))  # type: ignore[misc]
    assert right < 1.02
    assert 1.05 < ten_times < 1.25


def test_targets_are_losses_that_the_run_has() -> None:
    losses = np.linspace(3, 1, 200)
    for part, target in zip(law.PARTS, law.targets(losses), strict=True):
        number = law.reached(losses, target)
        assert number is not None
        assert number == pytest.approx(part * 200 - law.SMOOTH // 2, abs=1)
    assert law.reached(losses, 0.5) is None
    assert law.sampled([2.0, None, 4.0])[:4] == [2.0, None, 4.0, None]


def test_the_runs_of_a_task_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(law, "FRACTIONS", (0.3, 0.1, 0.03, 0.01, 0.003))
    out = tmp_path / "law.json"
    monkeypatch.setattr(sys, "argv", ["law", "--run", "digits-mlp", "--rounds", "24", "--out", str(out)])
    law.main()
    made = json.loads(out.read_text())["tasks"]["digits-mlp"]
    kept = FILE["tasks"]["digits-mlp"]
    assert {name: made[name] for name in ("dim", "clients", "seed")} == {
        name: kept[name] for name in ("dim", "clients", "seed")
    }
    assert [run["k"] for run in made["runs"]] == [20, 66, 197, 657, 1971]
    for run in made["runs"]:  # as on the machine of the runs that are kept, but for rounding
        for same in (one for one in kept["runs"] if one["k"] == run["k"]):
            for signal in ("waiting", "agreement"):
                assert run[signal][:2] == pytest.approx(same[signal][:2], rel=0.05)
    assert [plan["comm_time"] for plan in made["planned"]] == [10.0, 100.0]
    assert made["planned"][0]["k"][0] > made["planned"][1]["k"][0]
    assert "| digits-mlp" in capsys.readouterr().out


def test_the_figures_are_drawn(tmp_path: Path) -> None:
    law_report.draw(FILE, tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(path.name for path in law_report.IMAGES.glob("law-*.svg"))
    assert all(path.read_text().rstrip().endswith("</svg>") for path in tmp_path.iterdir())
