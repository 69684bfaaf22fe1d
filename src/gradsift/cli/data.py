"""``gradsift data``: show, import, get."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from gradsift import FederatedData
from gradsift.cli.build import load_data
from gradsift.cli.options import UsageError, gather

SHADES = " ░▒▓█"


def data(given: argparse.Namespace) -> int:
    """Carry out one action."""
    if given.action == "show":
        return show(given)
    if given.action == "import":
        return import_(given)
    from gradsift.data.get import get

    get(given.name, given.folder)
    print(
        f"{given.name} is in {given.folder}; use it with: GRADSIFT_DATA={given.folder} gradsift run --data {given.name}"
    )
    return 0


def _load(given: argparse.Namespace) -> FederatedData:
    given.data = str(given.source)
    settings = gather(given, None)
    for part, options in settings["set"].items():
        if part != "data":
            raise UsageError(f"--set {part}.{next(iter(options))} has no meaning here: only the options of data have")
    return load_data(settings)


def show(given: argparse.Namespace) -> int:
    """The numbers, and which client has which labels."""
    from gradsift.data import describe

    federated = _load(given)
    print(describe(federated))
    if federated.labelled:
        print()
        print(picture(federated))
    return 0


def picture(federated: FederatedData, most: int = 40) -> str:
    """A row a client, a column a class; the darker, the larger that class's part of the client's samples."""
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
    from gradsift.data import describe, save_npz

    target: Path = given.target
    if target.suffix != ".npz":
        raise UsageError(f"the target must end in .npz, got {str(target)!r}")
    if target.exists():
        raise UsageError(f"{target} exists already")
    federated: Any = _load(given)
    save_npz(federated, target)
    print(describe(federated))
    print(f"\nwritten to {target}; use it with: gradsift run --data {target}")
    return 0
