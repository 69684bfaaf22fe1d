"""A comparison in worker processes: the same numbers, and nothing is left behind when it is stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gradsift.cli.main import main

pytestmark = pytest.mark.slow  # starts processes

QUICK = ["--model", "mlp", "--set", "model.hidden=4", "--clients", "5", "--lr", "0.3", "--seeds", "1"]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rounds(folder: Path) -> int:
    records = folder / "records.jsonl"
    return records.read_bytes().count(b"\n") if records.exists() else 0


def test_the_numbers_are_the_same_however_many_run_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    for jobs in ("1", "2"):
        assert main(["compare", *QUICK, "--cost-budget", "40", "--jobs", jobs, "--out", jobs]) == 0
    one, two = ({p.parent.name: p.read_bytes() for p in Path(jobs).glob("*/records.jsonl")} for jobs in "12")
    assert one == two
    assert len([name for name in one if name.startswith("fixed@")]) > 2
    said = capsys.readouterr()
    assert said.out.count("in hindsight: the highest accuracy at cost ") == 2  # none reaches 80 %
    assert "1/9 planned-seed0  round" in said.err  # one after another
    assert "9 of 9 runs" in said.err  # side by side


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_run_that_fails_is_named(jobs: str, capfd: pytest.CaptureFixture[str]) -> None:
    how = ["--methods", "sign,fixed@9", "--rounds", "20", "--jobs", jobs, "--out", "c", "--quiet"]
    assert main(["compare", *QUICK, "--lr", "1e30", *how]) == 1
    said = capfd.readouterr().err
    assert "sign-seed0: round" in said
    assert "fixed@9-seed0: round" in said
    assert "not every run of c succeeded" in said


def test_a_worker_that_is_killed_is_named_and_the_rest_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    Path("killed_once.py").write_text(
        "import multiprocessing, os, signal, torch\n"
        "def net(data):\n"
        "    if multiprocessing.parent_process() is not None and not os.path.exists('killed'):\n"
        "        try:\n"
        "            open('killed', 'x').close()\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        except FileExistsError:\n"
        "            pass\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    methods = ["--methods", "sign,fixed@9,fixed@20", "--rounds", "5", "--seeds", "1"]
    assert main(["compare", "--model", "killed_once:net", *methods, "--jobs", "2", "--out", "c", "--quiet"]) == 1
    made = {path.name: rounds(path) for path in Path("c").iterdir() if path.is_dir()}
    assert list(made.values()) == [5, 5]
    (lost,) = {"sign-seed0", "fixed@9-seed0", "fixed@20-seed0"} - set(made)
    said = capfd.readouterr().err
    assert f"{lost}: its worker process ended with exit code -9" in said
    assert "gradsift resume c" in said
    assert main(["resume", "c", "--quiet"]) == 0
    assert rounds(Path("c", lost)) == 5


def started() -> tuple["subprocess.Popen[str]", list[int]]:
    """A comparison of two endless runs at a time, and the processes that it has started."""
    endless = ["--methods", "sign,fixed@9,fixed@20", "--rounds", "1000000", "--jobs", "2", "--out", "c", "--quiet"]
    command = [sys.executable, "-m", "gradsift", "compare", *QUICK, *endless]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: run.poll() is not None or min(rounds(Path("c/sign-seed0")), rounds(Path("c/fixed@9-seed0"))) > 3)
    assert run.poll() is None, run.communicate()
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    assert len(children) >= 2
    return run, [int(child) for child in children]


def gone(processes: list[int]) -> bool:
    """Whether they have ended; one that nobody waits for any more may remain as a zombie."""
    states = [Path(f"/proc/{pid}/stat") for pid in processes]
    return all(not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z" for state in states)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_and_it_can_be_resumed(number: signal.Signals) -> None:
    run, children = started()
    try:
        run.send_signal(number)
        out, err = run.communicate(timeout=600)
    finally:
        run.kill()
    assert (run.returncode, out, err) == (130, "stopped; continue with: gradsift resume c\n", "")
    until(lambda: gone(children))  # the one that watches over shared resources ends a little after its parent
    made = {name: rounds(Path("c", name)) for name in ("sign-seed0", "fixed@9-seed0")}
    assert not Path("c/fixed@20-seed0").exists()
    for name, done in made.items():
        assert Path("c", name, f"checkpoint-{done:08d}.npz").exists()
    plan = json.loads(Path("c/comparison.json").read_text())
    plan["settings"]["rounds"] = most = max(made.values()) + 2
    Path("c/comparison.json").write_text(json.dumps(plan))
    assert main(["resume", "c", "--quiet", "--jobs", "2"]) == 0
    assert [rounds(Path("c", f"{name}-seed0")) for name in ("sign", "fixed@9", "fixed@20")] == [most] * 3


def test_workers_end_soon_after_their_parent_was_killed() -> None:
    run, children = started()
    try:
        os.kill(run.pid, signal.SIGKILL)
        run.communicate(timeout=600)
        until(lambda: gone(children))
    finally:
        run.kill()
