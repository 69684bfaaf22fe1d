"""Every run is the one that was recorded before the round was rewritten: the same records, the same weights."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.golden.cases import CASES
from tests.golden.store import arithmetic, load, summary


def close(found: Any, want: Any, tolerance: float) -> bool:
    if isinstance(want, list):
        return len(found) == len(want) and all(close(f, w, tolerance) for f, w in zip(found, want, strict=True))
    if isinstance(want, float) and isinstance(found, int | float):
        return math.isclose(found, want, rel_tol=tolerance, abs_tol=tolerance)
    return bool(found == want)


@pytest.mark.parametrize("name", CASES)
def test_the_run_is_the_one_recorded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = load()
    want, found = kept["runs"][name], summary(CASES[name](tmp_path, monkeypatch))
    exact = kept["arithmetic"] == arithmetic()
    tolerance = 0.0 if exact else 1e-3 if "float32" in name or "convolutions" in name or "dropout" in name else 1e-8
    for column, values in want["records"].items():
        assert column in found["records"]
        assert close(found["records"][column], values, tolerance), column
    assert close(found["weights"], want["weights"], tolerance)
    assert found["digest"] == want["digest"] or not exact


def test_every_golden_run_is_kept() -> None:
    assert list(load()["runs"]) == list(CASES)
