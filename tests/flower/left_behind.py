"""What still runs of a deployment: every process that speaks of its folder, in its command or its environment."""

import contextlib
import os
from pathlib import Path


def left_behind(folder: Path) -> list[str]:
    """The commands of these processes; a zombie process has none."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if str(folder).encode() in command + (process / "environ").read_bytes() and process.name != str(
                os.getpid()
            ):
                found.append(f"{process.name} {command.replace(bytes(1), b' ').decode(errors='replace')}")
    return found
