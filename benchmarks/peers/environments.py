"""An environment for every peer, since their requirements clash: built once with pip, under .bench/env."""

import subprocess
import sys
from pathlib import Path

from benchmarks.common import KEPT

TORCH = "torch==2.13.0"
REQUIREMENTS = {
    "pfl": (TORCH, "pfl==0.6.0", "numpy==2.4.6"),
    "fedlab": (TORCH, "fedlab==1.3.0", "numpy==2.4.6"),
    "fedjax": ("fedjax==0.0.17", "jax==0.10.2", "numpy==2.4.6"),
    "flower": (TORCH, "flwr[simulation]==1.41.0", "numpy==2.4.6"),
}


class UnavailableError(Exception):
    """A peer cannot be installed or does not run; the message says why."""


def python(name: str, folder: Path = KEPT / "env") -> Path:
    """The interpreter of an environment that holds what ``REQUIREMENTS`` asks for, made if it is not there yet."""
    home = folder / name
    found, stamp, wanted = home / "bin" / "python", home / "installed", "\n".join(REQUIREMENTS[name])
    if stamp.exists() and stamp.read_text() == wanted:
        return found
    print(f"setting up {name}: {' '.join(REQUIREMENTS[name])}", flush=True)
    pip = [str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS[name]]
    for command in ([sys.executable, "-m", "venv", "--clear", str(home)], pip):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
            raise UnavailableError(f"{name} could not be installed: {said[-1] if said else 'no reason given'}")
    stamp.write_text(wanted)
    return found
