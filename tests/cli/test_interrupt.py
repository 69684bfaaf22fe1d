"""A real Ctrl-C: the run stops at a round's end, says how to go on, and goes on to the same end."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # starts processes

QUICK = ["--model", "mlp", "--clients", "5", "--quiet"]


def test_ctrl_c_keeps_a_checkpoint_and_says_how_to_go_on() -> None:
    command = [sys.executable, "-m", "gradsift", "run", *QUICK, "--rounds", "100000", "--out", "a"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    records = Path("a/records.jsonl")
    try:
        deadline = time.monotonic() + 600
        while not (records.exists() and records.read_bytes().count(b"\n") > 3):
            assert time.monotonic() < deadline, "no round was made"
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=600)
    finally:
        run.kill()
    assert run.returncode == 130, err
    assert "stopped: interrupted" in out
    assert "continue with: gradsift resume a" in out
    done = len(records.read_text().splitlines())
    more = [sys.executable, "-m", "gradsift", "resume", "a", "--rounds", str(done + 5), "--quiet"]
    subprocess.run(more, check=True, capture_output=True)
    rounds = [json.loads(line)["round"] for line in records.read_text().splitlines()]
    assert rounds == list(range(1, done + 6))
