"""A contestant's side of the pipe: it makes rounds when told to, and says how long they took.

Lines in: ``rounds 3``, or ``weights FILE``. Lines out: one JSON object for each. Between two commands it waits, so
that all contestants can be started at once and only one works at a time. The end of the input ends it.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.common import cores

Weights = Callable[[], Any]  # the global weights [D], on the host


class Meter:
    """Made before a framework starts its threads; ``tick`` comes at the end of every round."""

    def __init__(self) -> None:
        threads = int(os.environ["OMP_NUM_THREADS"])
        if hasattr(os, "sched_setaffinity"):  # not every framework can be told a number of threads
            os.sched_setaffinity(0, cores()[:threads])
        self.threads = threads
        self._replies = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a framework prints is no reply
        self._left, self._began = 0, 0.0
        self.done = 0
        self.at_end: Callable[[], object] = int  # what a framework must put away

    def ready(self, *packages: str, weights: Weights) -> None:
        """Everything is set up: say on what, and wait for the first command."""
        self._reply({"versions": {name: version(name) for name in packages}})
        self._obey(weights)

    @property
    def last(self) -> bool:
        """Whether this round is the last one for now: what runs behind the scenes must end with it."""
        return self._left == 1

    def tick(self, weights: Weights) -> None:
        """A round is done."""
        self.done += 1
        self._left -= 1
        if self._left == 0:
            self._reply({"seconds": time.perf_counter() - self._began})
            self._obey(weights)

    def _obey(self, weights: Weights) -> None:
        for line in iter(sys.stdin.readline, ""):
            command, value = line.rstrip("\n").split(" ", 1)
            if command == "rounds":
                self._left, self._began = int(value), time.perf_counter()
                return
            np.save(value, weights())
            self._reply({"rounds": self.done})
        self.at_end()
        os._exit(0)  # not by an exception, which some frameworks would catch and go on

    def _reply(self, what: dict[str, Any]) -> None:
        self._replies.write(json.dumps(what) + "\n")
        self._replies.flush()
