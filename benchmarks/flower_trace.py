"""Imported by the apps that benchmarks/flower.py runs: writes down when Flower calls them.

One line of JSON a call, to the file in GRADSIFT_TRACE. Seconds of this machine's clock, so all must run on it.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp


def _process_start() -> float:
    ticks = float(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _traced(call: Callable[..., Any], who: str) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapper(*args: Any, **options: Any) -> Any:
        begin = time.time()
        result = call(*args, **options)
        line = {"who": who, "process": _process_start(), "begin": begin, "end": time.time()}
        with open(os.environ["GRADSIFT_TRACE"], "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return result

    return wrapper


ClientApp.__call__ = _traced(ClientApp.__call__, "client")  # type: ignore[method-assign]
if "flwr.superlink.grid" in sys.modules:  # not in a client, where to import it would take a while
    grid: Any = sys.modules["flwr.superlink.grid"].HttpGrid
    grid.send_and_receive = _traced(grid.send_and_receive, "server")
