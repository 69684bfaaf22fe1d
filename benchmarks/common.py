"""What the benchmarks share: where they ran, how they print and what they write."""

import datetime
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from gradsift import Controller

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".bench"  # environments and results, ignored by git


def machine() -> str:
    """The processor, and how many cores of it this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {len(cores())} cores"


def cores() -> list[int]:
    """The cores this process may use."""
    count = os.cpu_count() or 1
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(count))


def cores_busy(seconds: float) -> float | None:
    """How many cores of the machine work while this process waits; None where the system does not say."""
    if not Path("/proc/stat").exists():
        return None

    def busy() -> float:
        ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # less idle and waiting for a disk

    before, began = busy(), time.perf_counter()
    time.sleep(seconds)
    return max(0.0, (busy() - before) / (time.perf_counter() - began))


def today() -> str:
    """The date in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def command(module: str) -> str:
    """How this was started, in a form that works elsewhere too: of a place outside the checkout only the last part."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", module, *words])


def about(module: str, device: "torch.device") -> dict[str, Any]:
    """When, where and how: what every result begins with."""
    import torch

    where = {"machine": machine()}
    if device.type == "cuda":
        where = {"machine": torch.cuda.get_device_name(device), "host": machine()}
    threads = torch.get_num_threads()
    return {"date": today(), **where, "torch": torch.__version__, "threads": threads, "command": command(module)}


def write_json(path: Path, record: dict[str, Any]) -> None:
    """One object, readable by people, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(path)


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, its columns padded so that it reads well in a terminal too."""
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def adaptive(k: int, dim: int) -> "Controller[Any]":
    """The paper's controller held within a tenth of k, so that every round is an adaptive one of a known size."""
    import gradsift

    low = max(2, min(round(0.9 * k), dim - 1))
    return gradsift.controller("extended-sign", k_min=low, k_max=min(dim, max(round(1.1 * k), low + 1)))
