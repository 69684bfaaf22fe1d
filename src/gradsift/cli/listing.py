"""``gradsift list`` and ``gradsift completion``."""

import argparse

from gradsift.cli.parser import parser
from gradsift.errors import UsageError, install
from gradsift.registry import first_line


def names(given: argparse.Namespace) -> int:
    """Print every name that a setting can have, with a description."""
    del given
    from gradsift import control, cost, data, local, models, sparsify, values
    from gradsift.data.load import about as about_data
    from gradsift.experiments.build import SCHEDULES
    from gradsift.models.named import about as about_model

    others = "a .npz file, a folder of LEAF or of CIFAR-10 batches, or package.module:function"
    _section(f"data sets (--data), or {others}", {name: about_data(name) for name in data.sources()})
    _section("models (--model), or package.module:function", {name: about_model(name) for name in models.models()})
    own = ", or package.module:Class"
    _section(f"local computations (--local){own}", {n: local.describe(n) for n in local.local_computations()})
    _section(f"sparsifiers (--sparsifier){own}", {n: sparsify.describe(n) for n in sparsify.sparsifiers()})
    _section(f"value types (--values){own}", {n: values.describe(n) for n in values.value_types()})
    _section(f"controllers (--controller){own}", {n: control.describe(n) for n in control.controllers()})
    _section(f"costs (--cost){own}", {n: cost.describe(n) for n in cost.cost_models()})
    _section("step sizes (--set lr.schedule=...)", {name: first_line(cls) for name, cls in SCHEDULES.items()})
    return 0


def _section(title: str, rows: dict[str, str]) -> None:
    print(title)
    for name, about in rows.items():
        print(f"  {name:<22} {about.replace('``', '`')}".rstrip())
    print()


def completion(given: argparse.Namespace) -> int:
    """Print a script for the shell to source."""
    try:
        import shtab
    except ImportError as problem:
        raise UsageError(f"shell completion needs: {install('cli')}") from problem
    print(shtab.complete(parser(), shell=given.shell))
    return 0
