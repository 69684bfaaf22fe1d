"""The two example apps in Flower's real simulation engine, with ``flwr run``."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import gradsift
from gradsift.data import load
from gradsift.models import small_mlp
from gradsift.records.folder import read_records
from tests.doc_pages import ROOT

pytestmark = pytest.mark.slow  # starts processes

CLIENTS = 3
ROUNDS = 6


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment with a home and ports of its own; the SuperLink that ``flwr run`` leaves behind is stopped."""
    home = tmp_path_factory.mktemp("flower-home")
    ports = _free_ports(2)
    yield {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(ports[0]),
        "FLWR_LOCAL_CONTROL_API_PORT": str(ports[1]),
        "OMP_NUM_THREADS": "1",
        "RAY_enable_metrics_collection": "0",  # its thread has crashed a worker that was being stopped
    }
    _stop(home)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _processes(home: Path) -> list[int]:
    """Those whose command line names this home: the SuperLink, by its database."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdecimal() and str(home).encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def _stop(home: Path) -> None:
    for kind in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 60
        for process in _processes(home):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, kind)
        while _processes(home) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert _processes(home) == []


def run(app: str, environment: dict[str, str], config: str) -> str:
    command = ["flwr", "run", str(ROOT / "examples" / app), "--stream", "--run-config", config]
    command += ["--federation-config", f"num-supernodes={CLIENTS} client-resources-num-cpus=1"]
    done = subprocess.run(
        command, cwd=environment["FLWR_HOME"], env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_papers_app_takes_the_simulators_steps(flower: dict[str, str], tmp_path: Path) -> None:
    config = f'num-server-rounds={ROUNDS} double=true out="{tmp_path}/out" seed=3'
    said = run("flower-paper", flower, config)
    assert (tmp_path / "out/records.jsonl").exists(), said
    records = read_records(tmp_path / "out")
    result = gradsift.simulate(
        small_mlp(10, 64, hidden=64, seed=3),
        nn.CrossEntropyLoss(),
        load("digits", clients=CLIENTS),
        controller="extended-sign",  # as in the app's configuration
        lr=0.3,
        rounds=ROUNDS,
        dtype=torch.float64,
        seed=3,
        delay=1,
    )
    assert [record["used_k"] for record in records] == [record["used_k"] for record in result.records]
    assert len({record["used_k"] for record in records}) > 1
    trained = torch.load(tmp_path / "out/model.pt", weights_only=True)
    weights = torch.cat([value.reshape(-1) for value in trained.values()])
    torch.testing.assert_close(weights, result.weights, rtol=0, atol=1e-9)


def test_the_quickstart_learns(flower: dict[str, str]) -> None:
    said = run("flower-quickstart", flower, "num-server-rounds=8 local-epochs=2")
    assert "is chosen by Planned" in said, said
    assert "refused" not in said.replace("gradsift-refused", "")
    model = torch.load(Path(flower["FLWR_HOME"]) / "final_model.pt", weights_only=True)
    data = load("digits")
    hidden = torch.relu(data.test_x.flatten(1) @ model["fc1.weight"].T + model["fc1.bias"])
    right = (hidden @ model["fc2.weight"].T + model["fc2.bias"]).argmax(dim=1) == data.test_y
    assert float(right.float().mean()) > 0.3  # of ten classes
