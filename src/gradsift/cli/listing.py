"""``gradsift list``: the names that flags take; ``gradsift completion``: a completion script for a shell."""

import argparse

from gradsift.cli.parser import parser
from gradsift.errors import UsageError, install
from gradsift.registry import first_line


def names(given: argparse.Namespace) -> int:
    """Print every name that a flag takes, with a description."""
    del given
    from gradsift import data, models
    from gradsift.data.load import about as about_data
    from gradsift.experiments.build import SCHEDULES, SLOTS
    from gradsift.experiments.settings import BY_NAME
    from gradsift.models.named import about as about_model

    sections = {
        "data sets (--data), also a .npz file, a folder of LEAF or of CIFAR-10 batches, or package.module:function": {
            name: about_data(name) for name in data.sources()
        },
        "models (--model), also package.module:function": {name: about_model(name) for name in models.models()},
    }
    for noun, _, names_of, describe in SLOTS.values():
        flags = " and ".join(BY_NAME[other].flag for other in SLOTS if SLOTS[other].noun == noun)
        title = f"{noun}s ({flags}), also package.module:Class of a registered class"
        sections[title] = {name: describe(name) for name in names_of()}
    sections["step sizes (--set lr.schedule=NAME)"] = {name: first_line(cls) for name, cls in SCHEDULES.items()}
    for title, rows in sections.items():
        print(title)
        for name, about in rows.items():
            print(f"  {name:<22} {about.replace('``', '`')}".rstrip())
        print()
    return 0


def completion(given: argparse.Namespace) -> int:
    """Print a completion script, for the shell to source."""
    try:
        import shtab
    except ImportError as problem:
        raise UsageError(f"shell completion needs: {install('cli')}") from problem
    print(shtab.complete(parser(), shell=given.shell))
    return 0
