"""``gradsift data``: show, import or download data."""

import argparse
from pathlib import Path

import numpy as np

from gradsift import FederatedData
from gradsift.data import describe, save_npz
from gradsift.data.get import get
from gradsift.errors import UsageError
from gradsift.experiments.build import load_data
from gradsift.experiments.settings import gather

SHADES = " ░▒▓█"


def data(given: argparse.Namespace) -> int:
    """Carry out an action; returns the exit code."""
    if given.action == "show":
        show(_load(given))
    elif given.action == "import":
        import_(given)
    else:
        get(given.name, given.folder)
        use = f"GRADSIFT_DATA={given.folder} gradsift run --data {given.name}"
        print(f"{given.name} is in {given.folder}; use it with: {use}")
    return 0


def _load(given: argparse.Namespace) -> FederatedData:
    settings = gather({**vars(given), "data": str(given.source)}, given.set_, None)
    for part, options in settings["set"].items():
        if part != "data":
            raise UsageError(f"--set {part}.{next(iter(options))} has no meaning here: only --set data.OPTION has")
    return load_data(settings)


def show(federated: FederatedData) -> None:
    """Print the numbers of a data set, and which client has which labels."""
    print(describe(federated))
    if federated.labelled:
        print(f"\n{picture(federated)}")


def picture(federated: FederatedData, most: int = 40) -> str:
    """Draw a row for each client and a column for each class, darker for a larger share of the client's samples."""
    classes, labels = federated.classes, federated.y.cpu().numpy()
    shown = np.unique(np.linspace(0, federated.num_clients - 1, most).round().astype(int))
    lines = [f"{'client':>8} {'samples':>7}  labels 0 to {classes - 1}"]
    for client in shown:
        counts = np.bincount(labels[federated.rows(int(client))], minlength=classes)
        cells = "".join(SHADES[0 if p == 0 else min(4, 1 + int(p * 6))] for p in counts / counts.sum())
        lines.append(f"{client:>8} {counts.sum():>7}  |{cells}|")
    if len(shown) < federated.num_clients:
        lines.append(f"({len(shown)} of {federated.num_clients} clients)")
    lines.append("░ under 1/6 of a client's samples  ▒ to 2/6  ▓ to 3/6  █ more")
    return "\n".join(lines)


def import_(given: argparse.Namespace) -> None:
    """Write a data set as one .npz file."""
    target: Path = given.target
    if target.suffix != ".npz":
        raise UsageError(f"the target must end in .npz, got {str(target)!r}")
    if target.exists():
        raise UsageError(f"{target} exists already")
    federated = _load(given)
    save_npz(federated, target)
    print(f"{describe(federated)}\n\nwritten to {target}; use it with: gradsift run --data {target}")
