"""The contestants, each a process of its own that waits for its turn."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import ROOT
from benchmarks.peers.environments import UnavailableError, python
from benchmarks.peers.workload import Floats

BASE = "plain loop"
PATIENCE = 300  # seconds for one answer


class Entry(NamedTuple):
    """What to start: a module of this folder, in which environment, and whose weights it must agree with."""

    module: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None  # None: the one that this runs in
    like: str | None = BASE


ENTRIES = {
    BASE: Entry("on_plain", like=None),
    "gradsift, send-all": Entry("on_gradsift"),
    "gradsift, adaptive, k = 1,000": Entry("on_gradsift", ("1000",), like=None),
    "gradsift, adaptive, k = 10,000": Entry("on_gradsift", ("10000",), like=None),
    "pfl": Entry("on_pfl", environment="pfl"),
    "FedLab": Entry("on_fedlab", environment="fedlab"),
    "FedJAX": Entry("on_fedjax", environment="fedjax"),
    "Flower simulation": Entry("on_flower", environment="flower"),
    "pfl, top-k 1,000": Entry("on_pfl", ("top-k",), "pfl", like=None),
    "FedLab, top-k 1,000": Entry("on_fedlab", ("top-k",), "fedlab", like="pfl, top-k 1,000"),
}


class Contestant:
    """A running entry."""

    def __init__(self, name: str, clients: int, threads: int, scratch: Path) -> None:
        entry = ENTRIES[name]
        interpreter = sys.executable if entry.environment is None else str(python(entry.environment))
        self.name, self.seconds = name, list[float]()
        self._place = scratch / name.replace(" ", "-")
        self._log = self._place.with_suffix(".log")
        threading = {key: str(threads) for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [interpreter, "-m", f"benchmarks.peers.{entry.module}", str(clients), *entry.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **threading, "PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(scratch)},
                start_new_session=True,  # Ctrl-C is for the one who measures
            )
        self.versions: dict[str, str] = {}

    def start(self) -> None:
        """Wait until it is set up."""
        self.versions = self._answer()["versions"]

    def rounds(self, count: int) -> float:
        """Seconds a round, over ``count`` rounds."""
        seconds: float = self._ask(f"rounds {count}")["seconds"]
        return seconds / count

    def weights(self) -> Floats:
        """The global weights as they are now."""
        path = self._place.with_suffix(".npy")
        self._ask(f"weights {path}")
        loaded: Floats = np.load(path)
        return loaded

    def stop(self) -> None:
        """End it, and whatever it has started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: the answer, which is none, says so
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise UnavailableError(f"{self.name} gave no answer within {PATIENCE} s")
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text().strip().splitlines()
            raise UnavailableError(f"{self.name} ended: {said[-1] if said else 'it said nothing'}")
        answer: dict[str, Any] = json.loads(line)
        return answer
