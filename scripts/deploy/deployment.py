"""A SuperLink and SuperNodes as separate processes on loopback, with TLS and registered node keys.

Everything they write is under one folder; see docs/deploy.md for the same on several machines.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts.deploy.certificates import make_node_key, make_tls
from scripts.deploy.processes import Processes

CONNECTION = "deployment"  # the name of our SuperLink in Flower's configuration
START = 120.0  # seconds for a process to come up on a busy machine
RESTART = 5.0  # seconds until a SuperNode that has ended is started again

# No telemetry, no look for updates, no installation of packages; SuperExec looks for a message five times a second.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


class DeploymentError(RuntimeError):
    """A part of the deployment did not come up, or a command of Flower failed."""


class Deployment:
    """A running SuperLink with ``nodes`` SuperNodes; leaving the context stops every process."""

    def __init__(self, folder: Path, nodes: int, *, settings: Mapping[str, str] | None = None) -> None:
        self.folder, self.nodes = folder, nodes
        self.tls = make_tls(folder / "tls")
        self.keys = [make_node_key(folder / "keys" / f"node{node}") for node in range(nodes)]
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.nodes_address = self.address  # where the nodes look for the SuperLink: a meter may stand between
        # The commands of Flower call each other by name.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        home = str(folder / "flwr")
        environment = {**os.environ, **ENVIRONMENT, **(settings or {}), "FLWR_HOME": home, "PATH": path}
        self.processes = Processes(folder, environment)
        self.superlink: subprocess.Popen[bytes] | None = None
        self.supernodes: dict[int, subprocess.Popen[bytes]] = {}
        self._restart: dict[int, float] = {}  # when to start again a SuperNode that has ended

    def __enter__(self) -> Self:
        try:
            self.start_superlink()
            for key in self.keys:
                self.flwr("supernode", "register", str(key.with_suffix(".pub")), CONNECTION)
            for node in range(self.nodes):
                self.start_supernode(node)
            for node, process in self.supernodes.items():
                self._wait(f"supernode{node}", process, "SuperNode ID:")
        except BaseException:
            self.processes.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.processes.stop()

    def start_superlink(self) -> None:
        """Start the SuperLink, write the configuration with which ``flwr`` finds it, and wait until it answers."""
        home = self.folder / "flwr"
        home.mkdir()
        (home / "config.toml").write_text(
            f"[superlink.{CONNECTION}]\n"
            f"address = {json.dumps(self.address)}\n"
            f"root-certificates = {json.dumps(str(self.tls.authority))}\n"
        )
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--enable-supernode-auth"]
        command += ["--database", str(self.folder / "superlink.db")]
        command += ["--ssl-ca-certfile", str(self.tls.authority), "--ssl-certfile", str(self.tls.certificate)]
        command += ["--ssl-keyfile", str(self.tls.key)]
        self.superlink = self.processes.start(command, self.log("superlink"))
        self._wait("superlink", self.superlink, "Uvicorn running")

    def start_supernode(self, node: int) -> None:
        """Start SuperNode ``node`` with its own key and its own port."""
        command = ["flower-supernode", "--superlink", self.nodes_address]
        command += ["--root-certificates", str(self.tls.authority)]
        command += ["--auth-supernode-private-key", str(self.keys[node]), "--port", str(free_port())]
        command += ["--node-config", f"partition-id={node} num-partitions={self.nodes}"]
        self.supernodes[node] = self.processes.start(command, self.log(f"supernode{node}"))

    def tend(self) -> Iterator[str]:
        """Start again, as systemd would, SuperNodes that have ended; what happened to them.

        After a kill -9 the SuperLink refuses the key until it has missed two heartbeats of the old process, a minute.
        """
        if self.superlink is not None and self.superlink.poll() is not None:
            raise DeploymentError(f"the SuperLink ended; its log:\n{self.log('superlink').read_text()}")
        for node, process in self.supernodes.items():
            if node in self._restart:
                if time.monotonic() > self._restart[node]:
                    del self._restart[node]
                    self.start_supernode(node)
            elif process.poll() is not None:
                self._restart[node] = time.monotonic() + RESTART
                yield f"SuperNode {node} ended with {process.returncode}; starting it again in {RESTART:.0f} s"

    def status(self, run_id: str) -> str:
        """What became of a run."""
        listed = self.flwr("list", "--run-id", run_id, CONNECTION, "--format", "json")
        return str(json.loads(listed)["runs"][0]["status"])

    def flwr(self, *arguments: str) -> str:
        """Run a command of ``flwr`` to its end, and return what it printed."""
        done = subprocess.run(
            ["flwr", *arguments], env=self.processes.environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise DeploymentError(f"flwr {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def log(self, name: str) -> Path:
        """Where the process ``name`` writes its log."""
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        return logs / f"{name}.log"

    def _wait(self, name: str, process: subprocess.Popen[bytes], words: str) -> None:
        """Until the log has these words in it."""
        deadline = time.monotonic() + START
        while words not in self.log(name).read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                why = "did not come up" if process.returncode is None else f"ended with {process.returncode}"
                raise DeploymentError(f"{name} {why}; its log:\n{self.log(name).read_text()}")
            time.sleep(0.1)


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
