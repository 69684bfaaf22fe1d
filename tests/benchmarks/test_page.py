import json
import re
from pathlib import Path

from benchmarks import page

ROUND = {
    "where": "a machine",
    "torch": "2.13.0",
    "date": "2026-11-15",
    "model": "plain-cnn",
    "dim": 444_062,
    "clients": 20,
    "batch": 32,
    "times": {"plain batched pass": [0.01, 0.02, 0.03], "plain loop over clients": [0.04], "round, k = 1000": [0.03]},
    "peaks": {"round, k = 1000": 1234.5},
}


def test_the_page_shows_the_results_that_are_kept() -> None:
    text = page.PAGE.read_text()
    assert page.filled(text) == text


def test_every_part_has_its_place_and_every_result_is_shown() -> None:
    places = re.findall(r"<!-- results: ([\w-]+) -->", page.PAGE.read_text())
    assert sorted(places) == sorted(page.PARTS)
    assert {path.stem for path in page.RESULTS.glob("*.json")} <= set(places)


def test_a_part_is_made_from_its_result(tmp_path: Path) -> None:
    (tmp_path / "round-cpu.json").write_text(json.dumps(ROUND))
    blank = "before\n<!-- results: round-cpu -->\nold\n<!-- end -->\n<!-- results: peers -->\n<!-- end -->\nafter\n"
    filled = page.filled(blank, tmp_path)
    assert re.search(r"\| round, k = 1000 +\| 30.00 +\| 1.50 +\| 0.75 +\| 1,234", filled)
    assert "old" not in filled
    assert "<!-- results: peers -->\nNot measured yet.\n<!-- end -->\nafter\n" in filled
    assert page.filled(filled, tmp_path) == filled
