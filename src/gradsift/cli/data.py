"""``gradsift data``: show, import, get."""

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
    """Carry out one action."""
    if given.action == "show":
        return show(given)
    if given.action == "import":
        return import_(given)
    get(given.name, given.folder)
    print(
        f"{given.name} is in {given.folder}; use it with: GRADSIFT_DATA={given.folder} gradsift run --data {given.name}"
    )
    return 0


def _load(given: argparse.Namespace) -> FederatedData:
    settings = gather({**vars(given), "data": str(given.source)}, given.set_, None)
    for part, options in settings["set"].items():
        if part != "data":
            raise UsageError(f"--set {part}.{next(iter(options))} has no meaning here: only the options of data have")
    return load_data(settings)


def show(given: argparse.Namespace) -> int:
    """The numbers, and which client has which labels."""
    federated = _load(given)
    print(describe(federated))
    if federated.labelled:
        print()
        print(picture(federated))
    return 0


def picture(federated: FederatedData, most: int = 40) -> str:
    """A row for each client and a column for each class, darker the larger the share of the client's samples."""
    classes, labels = federated.classes, federated.y.cpu().numpy()
    shown = np.unique(np.linspace(0, federated.num_clients - 1, most).round().astype(int))
    lines = [f"{'client':>8} {'samples':>7}  labels 0 to {classes - 1}"]
    for client in shown:
        counts = np.bincount(labels[federated.rows(int(client))], minlength=classes)
        part = counts / counts.sum()
        cells = "".join(SHADES[0 if p == 0 else min(4, 1 + int(p * 6))] for p in part)
        lines.append(f"{client:>8} {counts.sum():>7}  |{cells}|")
    if len(shown) < federated.num_clients:
        lines.append(f"({len(shown)} of {federated.num_clients} clients)")
    lines.append("░ under 1/6 of a client's samples  ▒ to 2/6  ▓ to 3/6  █ more")
    return "\n".join(lines)


def import_(given: argparse.Namespace) -> int:
    """Write what was read as one .npz."""
    target: Path = given.target
    if target.suffix != ".npz":
        raise UsageError(f"the target must end in .npz, got {str(target)!r}")
    if target.exists():
        raise UsageError(f"{target} exists already")
    federated = _load(given)
    save_npz(federated, target)
    print(describe(federated))
    print(f"\nwritten to {target}; use it with: gradsift run --data {target}")
    return 0
