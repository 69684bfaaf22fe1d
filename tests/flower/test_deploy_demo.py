"""``make deploy-demo`` with real processes: to its end over a killed SuperNode, and stopped by Ctrl-C."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradsift.records.folder import read_records
from tests.doc_pages import ROOT
from tests.flower.left_behind import left_behind

pytestmark = pytest.mark.slow  # starts processes


@contextlib.contextmanager
def demo(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The demonstration as a process of its own; killed if it takes for ever."""
    command = [sys.executable, "-m", "scripts.deploy", "--folder", str(folder), *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        limit = threading.Timer(900, process.kill)
        limit.start()
        try:
            yield process
        finally:
            limit.cancel()
            process.kill()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """What it prints, until a line has these words in it."""
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        if words in line:
            return printed
    raise AssertionError(f"it ended without {words!r}:\n{printed}")


def pids(folder: Path, *words: str) -> list[int]:
    """The processes of the deployment in ``folder`` whose command has all these words in it."""
    return [int(each.split()[0]) for each in left_behind(folder) if all(word in each for word in words)]


def test_a_killed_supernode_comes_back_with_its_key_and_is_resynchronised(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with demo(folder, "--nodes", "3", "--rounds", "7") as process:
        read_until(process, "up after")
        read_until(process, "    1 ")
        (node,) = pids(folder, "flower-supernode", "keys/node2")
        os.kill(node, signal.SIGKILL)
        printed, _ = process.communicate()
    assert process.returncode == 0, printed
    assert "SuperNode 2 ended with -9" in printed
    # It says that it lost its weights, and is given them: only a client with the server's checksum is merged.
    assert "refused client 2" in printed
    assert "it is behind, and will be sent what it missed" in printed
    rounds = read_records(folder / "run")
    clients = [each["clients"] for each in rounds]
    assert len(rounds) == 7
    assert clients[0] == clients[-1] == 3
    assert 2 in clients
    assert "7 rounds of 76,810 weights" in printed
    assert f"up {int(sum(each['up_bytes'] for each in rounds)):,} {4 * 76_810 * sum(clients):,}" in " ".join(
        printed.split()
    )
    assert left_behind(folder) == []


def test_ctrl_c_in_the_middle_of_a_message_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with demo(folder) as process:
        read_until(process, "up after")
        while not (apps := pids(folder, "flwr-clientapp")):
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(apps[0], signal.SIGKILL)  # also with a part that can no longer tidy up after itself
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate()
    assert process.returncode == 130, printed
    assert "interrupted: everything is stopped" in printed
    assert left_behind(folder) == []


def test_ending_it_while_it_starts_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with demo(folder) as process:
        while not pids(folder, "flower-superlink"):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert left_behind(folder) == []


def test_a_folder_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        printed, _ = process.communicate()
    assert process.returncode == 1
    assert f"File exists: '{tmp_path}'" in printed
    assert list(tmp_path.iterdir()) == []
