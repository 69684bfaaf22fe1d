"""Real data, where ``GRADSIFT_DATA`` names its folder: a little of what benchmarks/femnist_check.py runs for long."""

import os
from pathlib import Path

import pytest

import gradsift
from benchmarks.femnist_check import check


def test_the_loss_falls_for_every_sparsifier() -> None:
    folder = os.environ.get("GRADSIFT_DATA")
    if not folder or not (Path(folder) / "femnist.npz").exists():
        pytest.skip(f"GRADSIFT_DATA is {folder}, which has no femnist.npz" if folder else "GRADSIFT_DATA is not set")
    results = check(rounds=25, clients=12, width=1 / 16, batch_size=8, lr=0.05)
    assert len(results) == len(gradsift.sparsifiers()) + 1
    for name, row in results.items():
        assert row["end"] < row["start"], name
