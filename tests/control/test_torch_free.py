"""Nothing in control/ imports torch: it loads and runs where torch cannot be imported."""

import ast
import subprocess
import sys
from pathlib import Path

import gradsift.control
from tests.control.table import TABLE

PACKAGE = Path(gradsift.control.__file__).parent

# ``import gradsift`` imports torch, so the package is entered past its __init__: a bare module with the same path.
ALONE = f"""
import sys, types
sys.modules["torch"] = None
bare = types.ModuleType("gradsift")
bare.__path__ = [{str(PACKAGE.parent)!r}]
sys.modules["gradsift"] = bare

from gradsift.control import Observation, controller

for name, options in { ({name: row.options for name, row in TABLE.items()})!r}.items():
    c = controller(name, **options)
    state = c.init(dim=10_000, seed=1)
    p = c.propose(state, 1)
    c.update(state, Observation(p, 1.0, 1.0, 1.0, 0.5, 0.6))
print([m for m in sys.modules if m.split(".")[0] == "torch" and sys.modules[m] is not None])
"""


def test_runs_where_torch_cannot_be_imported() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_no_import_of_torch_is_hidden_in_a_function() -> None:
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "torch" for name in names), f"{path.name} imports {names}"
