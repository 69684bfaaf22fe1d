import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import environments, run
from benchmarks.peers.contest import BASE, Contestant
from benchmarks.peers.environments import UnavailableError
from benchmarks.peers.workload import DIM, flat, start, torch_net
from tests.doc_pages import ROOT

pytestmark = pytest.mark.slow  # starts processes

OURS = ("gradsift, send-all", "gradsift, adaptive, k = 1,000")


def test_ours_against_the_plain_loop_at_toy_size(tmp_path: Path) -> None:
    out = tmp_path / "peers.json"
    command = "-m benchmarks.peers.run --clients 2 --rounds 1 --minutes 0 --threads 1 --only"
    done = subprocess.run(
        [sys.executable, *command.split(), *OURS, "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    assert list(record["contestants"]) == [BASE, *OURS]
    assert record["workload"] == {"clients": 2, "samples": 32, "dim": 444_062, "threads": 1}
    for entry in record["contestants"].values():
        assert len(entry["seconds"]) == 3
        assert min(entry["seconds"]) > 0
        assert "torch" in entry["versions"]
    apart = {name: entry["apart"] for name, entry in record["contestants"].items()}
    assert apart[OURS[0]] < 1e-3  # the same weights as the plain loop
    assert apart[OURS[1]] is None
    assert f"| {BASE}" in done.stdout


def test_one_that_cannot_be_installed_is_named_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environments.REQUIREMENTS, "pfl", ("gradsift-no-such-package==1",))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UnavailableError, match=r"pfl could not be installed: .*gradsift-no-such-package"):
        environments.python("pfl", tmp_path)
    assert not (tmp_path / "pfl" / "installed").exists()


def test_one_that_does_not_start_is_named_with_what_it_said(tmp_path: Path) -> None:
    running, unavailable = run.enter(["gradsift, send-all"], clients=0, threads=1, scratch=tmp_path)
    assert running == []
    assert "gradsift, send-all ended: ValueError" in unavailable["gradsift, send-all"]


def test_one_that_breaks_down_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    running = [Contestant(BASE, 1, 1, tmp_path), Contestant(BASE, 1, 1, tmp_path)]
    survivor, victim = running
    unavailable: dict[str, str] = {}
    try:
        for contestant in running:
            contestant.start()
        os.kill(victim._process.pid, signal.SIGKILL)
        busy = run.take_turns(running, unavailable, rounds=1, minutes=0)
    finally:
        survivor.stop()
        victim.stop()
    assert running == [survivor]
    assert unavailable == {BASE: f"{BASE} ended: it said nothing"}
    assert len(busy) == len(survivor.seconds) == 3
    assert victim.seconds == []


def record(seconds: dict[str, list[float]], apart: float) -> dict[str, object]:
    return {
        "date": "2026-01-01",
        "machine": "a machine",
        "workload": {"clients": 2, "samples": 32, "dim": DIM, "threads": 1},
        "rounds a turn": 1,
        "cores busy while all wait": [0.5, 0.5, None],
        "contestants": {
            name: {"versions": {"torch": "2"}, "seconds": each, "apart": None if name == BASE else apart}
            for name, each in seconds.items()
        },
        "unavailable": {"FedJAX": "fedjax could not be installed: no network"},
    }


def test_ratios_are_taken_repeat_by_repeat() -> None:
    found = record({BASE: [1.0, 10.0, 2.0], "pfl": [2.0, 20.0, 4.0]}, apart=0.0)
    assert run.ratios(found) == {BASE: [1.0] * 3, "pfl": [2.0] * 3}
    text = run.summary(found)
    assert "| 2.00" in text
    assert "Left out: FedJAX: fedjax could not be installed: no network" in text
    assert "not quiet" in text
    assert "other work" not in text


def test_other_work_is_reported() -> None:
    found = record({BASE: [1.0, 1.0], "pfl": [2.0, 2.0]}, apart=0.2)
    assert run.others_work(found) == ["pfl"]
    assert "pfl did other work: its weights are 20.0% away from those of plain loop" in run.summary(found)


def test_the_network_starts_where_the_arrays_say() -> None:
    assert DIM == 444_062
    assert np.array_equal(flat(torch_net().parameters()), flat(start()))
