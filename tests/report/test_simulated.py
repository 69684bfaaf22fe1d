"""The summary of simulated runs against their records."""

from pathlib import Path

import pytest
from torch import nn

import gradsift
from gradsift.report import summarise, write_report
from tests.simulation.problems import blobs, mlp

pytestmark = pytest.mark.slow  # draws many pages


def test_runs_of_the_simulator(tmp_path: Path) -> None:
    results = {}
    for name, controller in (("extended-sign", "extended-sign"), ("k = 20", gradsift.controller("fixed", k=20))):
        for seed in (0, 1):
            results[name, seed] = gradsift.simulate(
                mlp(seed=seed),
                nn.functional.cross_entropy,
                blobs(),
                controller=controller,
                lr=0.1,
                rounds=25,
                batch_size=8,
                seed=seed,
                out=tmp_path / f"{name}-{seed}",
            )
    rows = {row.label: row for row in summarise([tmp_path], target_loss=0.9)}
    assert list(rows) == ["fab-top-k, extended-sign", "fab-top-k, k = 20"]
    for (name, seed), result in results.items():
        row, last = rows[f"fab-top-k, {name}"], result.records[-1]
        i = row.seeds.index(seed)
        assert row.loss.values[i] == last["global_loss"]
        assert row.accuracy.values[i] == last["accuracy"]
        assert row.cost.values[i] == last["cost"]
        assert row.up_bytes.values[i] == pytest.approx(sum(record["up_bytes"] for record in result.records))
        used = [sum(record["contribution"][client] for record in result.records) for client in range(6)]
        assert row.least_used.values[i] == pytest.approx(min(used) / (sum(used) / 6))
    made = write_report([tmp_path], tmp_path / "report", formats=())
    assert made.notes == ()
    assert "blobs" in made.page.read_text()
