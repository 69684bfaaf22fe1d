import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import growth, growth_report
from benchmarks.growth import Size
from gradsift.simulation import memory

CPU = torch.device("cpu")


@pytest.mark.slow
def test_a_small_sweep_measures_writes_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plot = tmp_path / "growth.json", tmp_path / "growth.svg"
    command = "growth --seconds 1 --base 3 500 20 --clients 2 4 6 --dim 500 1000 2000 --k 10 100 480"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--out", str(out), "--plot", str(plot)])
    growth.main()
    record = json.loads(out.read_text())
    sweeps = record["sweeps"]
    assert [point["clients"] for point in sweeps["clients"]["points"]] == [2, 4, 6]
    for found, wanted in zip(sweeps["dim"]["points"], (500, 1000, 2000), strict=True):
        assert found["dim"] == pytest.approx(wanted, rel=0.1)
    for found, wanted in zip(sweeps["k"]["points"], (10, 100, 480), strict=True):
        assert found["k"] == pytest.approx(wanted, rel=0.11)
    for sweep in sweeps.values():
        assert sweep["skipped"] == []
        assert all(point["seconds"] > 0 and 1 <= point["rounds"] <= growth.ROUNDS for point in sweep["points"])
        assert sweep["fit"]["steepest"] >= sweep["fit"]["slope"]
    assert "<svg" in plot.read_text()
    assert "weights D" in capsys.readouterr().out


@pytest.mark.slow
def test_a_point_that_does_not_fit_is_left_out_with_the_arithmetic(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 10**9)
    found = growth.sweep("clients", [Size(2, 500, 20), Size(3500, 10**8, 20)], CPU, 1.0)
    assert [point["clients"] for point in found["points"]] == [2]
    (skipped,) = found["skipped"]
    assert "3500 clients x 100000000 weights x 4 bytes = 1,303.9 GiB" in skipped["reason"]
    assert "skipped: the residuals do not fit" in capsys.readouterr().out
    assert found["fit"] is None


def test_a_point_that_would_take_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(size: Size, device: torch.device, seconds: float) -> dict[str, float]:
        del device, seconds
        return {**size._asdict(), "seconds": 1.0 + 0.01 * size.clients, "rounds": 1}

    monkeypatch.setattr(growth, "measure", measured)
    sizes = [Size(clients, 500, 20) for clients in (10, 20, 100, 300)]
    found = growth.sweep("clients", sizes, CPU, seconds=15.0)
    assert [point["clients"] for point in found["points"]] == [10, 20, 100]
    assert found["skipped"][0]["reason"] == "about 4.0 s a round, too long for 15 s a point"


def test_the_fit_of_a_line_is_that_line_and_a_cliff_shows() -> None:
    points = [{"dim": size, "seconds": 0.5 + 0.002 * size} for size in (100, 1000, 10_000)]
    found = growth_report.fit("dim", points)
    assert found is not None
    assert found["fixed"] == pytest.approx(0.5)
    assert found["each"] == pytest.approx(0.002)
    assert found["r2"] == pytest.approx(1)
    assert found["farthest"] == pytest.approx(0, abs=1e-9)
    assert 0 < found["slope"] < found["steepest"] < 1
    points[-1]["seconds"] *= 10
    cliff = growth_report.fit("dim", points)
    assert cliff is not None
    assert cliff["steepest"] == pytest.approx(found["steepest"] + 1)


@pytest.mark.parametrize("dim", [10_000, 444_000, 3_000_000])
def test_the_model_has_about_as_many_weights_as_asked(dim: int) -> None:
    assert sum(p.numel() for p in growth.perceptron(dim).parameters()) == pytest.approx(dim, rel=0.02)
