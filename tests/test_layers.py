"""Each layer imports only from the layers before it, and what reads records works without torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradsift
from tests.report.folders import config, records, write

SOURCE = Path(gradsift.__file__).parent
LAYERS = (
    ("errors", "check", "registry", "draws", "sparse", "check_tensors", "version", "checked", "describe"),
    ("sparsify", "values", "local", "server_step", "control", "cost", "wire", "schedule", "sampling", "weighing"),
    ("records",),
    ("round", "server", "method", "contract", "pricing", "unequal"),
    ("simulation", "flower", "data", "models"),
    ("report", "regret", "planning"),
    ("experiments",),
    ("cli", "__main__"),
)
PLACE = {name: number for number, names in enumerate(LAYERS) for name in names}
APART = {("simulation", "flower"), ("flower", "simulation")}


def parts() -> list[str]:
    """The modules and packages directly in gradsift; its __init__ re-exports all layers and is in none."""
    return sorted({path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()})


def modules(part: str) -> list[Path]:
    return sorted((SOURCE / part).rglob("*.py")) or [SOURCE / f"{part}.py"]


def imported(path: Path) -> Iterator[str]:
    """The parts of gradsift that a module uses, also inside functions and for its type annotations."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def uses(part: str) -> set[str]:
    names = [name.split(".") for path in modules(part) for name in imported(path)]
    found = {name[1] for name in names if name[0] == "gradsift" and len(name) > 1}
    # A name that gradsift itself exports, such as gradsift.simulate, stands for the module that has it.
    return {gradsift._MODULE.get(name, name).split(".")[0] for name in found - {"__version__"}} - {part}


def test_every_part_has_its_layer() -> None:
    assert set(parts()) - {"__init__"} <= set(PLACE)


@pytest.mark.parametrize("part", [part for part in parts() if part in PLACE])
def test_imports_go_to_the_same_layer_or_to_one_before_it(part: str) -> None:
    wrong = {(part, other) for other in uses(part) if PLACE[other] > PLACE[part] or (part, other) in APART}
    assert not wrong


def without_torch(script: str) -> None:
    code = f"{script}\nimport sys\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("part", ["records", "report", "regret"])
def test_what_reads_records_imports_no_torch(part: str) -> None:
    names = [".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in modules(part)]
    without_torch("\n".join(f"import {name.removesuffix('.__init__')}" for name in names))


@pytest.mark.slow
def test_a_report_is_written_without_torch(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", config(), records(12))
    without_torch(f"from gradsift.cli.main import main\nassert main(['report', {str(folder)!r}]) == 0")
    assert (folder / "report" / "index.html").exists()
