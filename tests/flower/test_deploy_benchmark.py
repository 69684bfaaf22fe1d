"""The apps of benchmarks/flower.py are made from the quickstart, and must follow it when it changes."""

from pathlib import Path

import pytest

from benchmarks.flower import METHODS, MODELS, variant
from tests.doc_pages import ROOT

QUICKSTART = ROOT / "examples" / "flower-quickstart" / "quickstart"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_every_variant_is_the_quickstart_but_for_what_it_varies(tmp_path: Path, method: str, model: str) -> None:
    package = variant(tmp_path, method, model) / "quickstart"
    changed = set()
    for path in QUICKSTART.glob("*.py"):
        text = (package / path.name).read_text()
        compile(text, path.name, "exec")
        old = path.read_text().splitlines()
        changed |= {line for line in old if line not in text.splitlines()}
        if method == "fedavg":
            assert "gradsift.flower" not in text
    # Only what the quickstart itself marks as gradsift's is another line.
    assert all("# gradsift" in line for line in changed), changed
    marked = [
        line for path in QUICKSTART.glob("*.py") for line in path.read_text().splitlines() if "# gradsift" in line
    ]
    assert len(changed) == {"fedavg": len(marked), "fixed": 1, "adaptive": 0}[method]


def test_the_sizes_are_those_of_the_models(tmp_path: Path) -> None:
    for model, dim in MODELS.items():
        names: dict[str, object] = {}
        exec((variant(tmp_path, "fedavg", model) / "quickstart" / "task.py").read_text(), names)
        net = names["Net"]()  # type: ignore[operator]
        assert sum(each.numel() for each in net.parameters()) == dim
