"""docs/deploy.md from its first command to its last, in a real deployment on loopback; and who is not let in."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradsift.records.folder import checkpoints, read_records
from scripts.deploy.certificates import make_node_key, make_tls
from scripts.deploy.deployment import free_port
from scripts.deploy.processes import Processes
from tests.doc_pages import ROOT, Block, blocks, read
from tests.flower.left_behind import left_behind

pytestmark = pytest.mark.slow  # starts processes

PAGE = "docs/deploy.md"
# What changes the machine, and what sets up the environment that the tests run in.
ELSEWHERE = ("make", "python3 -m venv", "env/bin/pip install", "sudo")


class Machine:
    """The three machines of the page as one: only their names, ports and folders are changed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.processes = Processes(folder, {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"})
        self.printed: dict[str, str] = {}  # by command
        (folder / "gradsift").symlink_to(ROOT)

    def here(self, text: str) -> str:
        text = re.sub(r"(superlink\.example\.org|127\.0\.0\.1):8000", f"127.0.0.1:{self.port}", text)
        text = text.replace("superlink.example.org", "localhost").replace("192.0.2.10", "127.0.0.1")
        text = text.replace("--host 0.0.0.0 --port 8000", f"--host 127.0.0.1 --port {self.port}")
        return text.replace("--port 9094", f"--port {free_port()}").replace("/srv/gradsift", str(self.folder))

    def follow(self, block: Block) -> None:
        """Do what a block of the page says."""
        if block.language == "toml":
            (self.folder / "flwr").mkdir(exist_ok=True)
            (self.folder / "flwr" / "config.toml").write_text(self.here(block.text))
        elif block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                if not line.startswith(ELSEWHERE):
                    self.do(self.here(line))

    def do(self, command: str) -> None:
        environment = self.processes.environment
        if command.startswith("export "):
            for word in shlex.split(command)[1:]:
                name, value = word.split("=", 1)
                environment[name] = value.replace("$PWD", str(self.folder)).replace("$PATH", environment["PATH"])
        elif command.startswith(("flower-superlink", "flower-supernode")):
            _, log = self.start(command)
            self.wait(lambda: re.search("Uvicorn running|SuperNode ID:", log.read_text()) is not None)
        else:
            # Without a pipe: nothing that a command leaves behind could hold it open.
            log = self.folder / f"{len(self.printed)}.log"
            process = self.processes.start(["bash", "-c", command], log)
            process.wait(timeout=600)
            assert process.returncode == 0, f"{command}\n{log.read_text()}"
            self.printed[command] = log.read_text()
            if started := re.search(r"Successfully started run (\d+)", log.read_text()):
                environment["RUN_ID"] = started[1]

    def start(self, command: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start something that goes on; its log."""
        log = self.folder / f"{time.monotonic_ns()}.log"
        return self.processes.start(["bash", "-c", f"exec {command}"], log), log

    @staticmethod
    def wait(ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 600
        while not ready():
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which someone has followed the page to its end."""
    made = Machine(tmp_path_factory.mktemp("deployment"))
    try:
        for block in blocks(read(PAGE)):
            made.follow(block)
        yield made
    finally:
        made.processes.stop()
    assert left_behind(made.folder) == []


def test_two_sites_have_trained(machine: Machine) -> None:
    rounds = read_records(machine.folder / "run")
    # The second command of the page has continued the run, and was stopped.
    assert [each["round"] for each in rounds] == list(range(1, len(rounds) + 1))
    assert [each["clients"] for each in rounds[:2]] == [2, 2]
    assert checkpoints(machine.folder / "run")[-1].name >= "checkpoint-00000002.npz"
    assert {path.name for path in (machine.folder / "state").rglob("*.npz")} == {"client-0.npz", "client-1.npz"}
    assert machine.printed["flwr supernode list production"].count("online") == 2


def test_nodes_that_are_not_let_in(machine: Machine) -> None:
    """Without TLS, without a registered key, without our authority; the page explains what they say."""
    trusting, key = "--root-certificates ca.crt", "--auth-supernode-private-key"
    make_node_key(machine.folder / "stranger")
    make_tls(machine.folder / "other")
    expected = {
        "--insecure": "Server disconnected without sending a response",
        f"--insecure {key} site0.key": "Insecure connection is enabled, but the SuperNode's private key is provided",
        trusting: "[code: 2001] SuperNode authentication is enabled",
        f"{trusting} {key} stranger": "[code: 2004] Failed to activate SuperNode",
        f"{trusting} {key} site0.key": "[code: 2004] Failed to activate SuperNode",  # its owner is connected
        f"--root-certificates other/ca.crt {key} site1.key": "CERTIFICATE_VERIFY_FAILED",
    }
    link = f"flower-supernode --superlink 127.0.0.1:{machine.port} --max-retries 1"
    started = [machine.start(f"{link} --port {free_port()} {options}") for options in expected]
    for (process, log), (options, words) in zip(started, expected.items(), strict=True):
        assert process.wait(timeout=600) != 0, options
        assert words in log.read_text(), options
        assert "SuperNode ID:" not in log.read_text(), options
        assert words in read(PAGE)


def test_behind_a_server_that_passes_the_fleet_only_nodes_are_let_in_and_commands_are_not(machine: Machine) -> None:
    port = free_port()
    files = " ".join(str(machine.folder / name) for name in ("ca.crt", "superlink.crt", "superlink.key"))
    front = f"{sys.executable} {Path(__file__).with_name('fleet_only.py')} {port} 127.0.0.1:{machine.port} {files}"
    _, log = machine.start(front)
    machine.wait(lambda: "Uvicorn running" in log.read_text())
    make_node_key(machine.folder / "site2")
    machine.do("flwr supernode register site2.pub production")
    config = machine.folder / "flwr" / "config.toml"
    config.write_text(
        config.read_text() + f'\n[superlink.front]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{machine.folder / "ca.crt"}"\n'
    )
    machine.do(
        f"flower-supernode --superlink 127.0.0.1:{port} --root-certificates ca.crt --port {free_port()}"
        " --auth-supernode-private-key site2"
    )
    done = subprocess.run(
        ["flwr", "list", "front"], env=machine.processes.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "404" in done.stdout + done.stderr
