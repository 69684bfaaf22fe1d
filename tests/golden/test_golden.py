"""Every run is the one that was recorded before the round was rewritten: the same records, the same weights.

Three runs whose cost is that of encoded bytes were recorded again when short messages became smaller: "encoded bytes
learned", "encoded bytes, buffers" and "flower link".
"""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.golden.cases import CASES
from tests.golden.store import arithmetic, load, summary

# Deliberate differences from the code that recorded the runs: columns of a run's records, or of all runs with a word in
# their name.
CHANGED = {
    # A deployment's records have the names of a simulated run's, and bytes of messages that have other fields now.
    "flower": {"up-bytes", "down-bytes"},
    # The averaged buffers of a model are part of the traffic on Flower too.
    "flower batch norm": {"cost", "round-cost"},
}


def close(found: Any, want: Any, tolerance: float) -> bool:
    if isinstance(want, list):
        return len(found) == len(want) and all(close(f, w, tolerance) for f, w in zip(found, want, strict=True))
    if isinstance(want, float) and isinstance(found, int | float):
        return math.isclose(found, want, rel_tol=tolerance, abs_tol=tolerance)
    return bool(found == want)


def _marks(name: str) -> list[pytest.MarkDecorator]:
    """Fast tests are the simulated runs in double precision, and two on Flower."""
    fast = name.startswith("flower fab-top-k+extended-sign") or not ("flower" in name or "float32" in name)
    return [] if fast else [pytest.mark.slow]


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in CASES])
def test_the_run_is_the_one_recorded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = load()
    want, found = kept["runs"][name], summary(CASES[name](tmp_path, monkeypatch))
    exact = kept["arithmetic"] == arithmetic()
    tolerance = 0.0 if exact else 1e-3 if "float32" in name or "convolutions" in name or "dropout" in name else 1e-8
    changed = {column for word, columns in CHANGED.items() if name.startswith(word) for column in columns}
    for column, values in want["records"].items():
        if column not in changed:
            assert close(found["records"][column.replace("-", "_")], values, tolerance), column
    assert close(found["weights"], want["weights"], tolerance)
    assert found["digest"] == want["digest"] or not exact


def test_every_golden_run_is_kept() -> None:
    assert list(load()["runs"]) == list(CASES)
