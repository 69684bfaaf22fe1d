"""benchmarks/round.py and streamed.py at toy size: what they write, and what they refuse."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import common, kernels, page, round, streamed


@pytest.mark.slow
def test_every_kind_of_round_is_measured_and_kept_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, tables = tmp_path / "round-cpu.json", tmp_path / "profile" / "tables.txt"
    command = "round --clients 2 --batch 1 --rounds 2 --k 10 444062"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--json", str(out), "--profile", str(tables)])
    round.main()
    record = json.loads(out.read_text())
    rounds = ("round, k = 10", "round, k = 444062", round.FEDAVG, round.SEND_ALL)
    assert list(record["times"]) == [round.PASS, round.LOOP, *rounds]
    assert all(len(each) == record["repeats"] == 2 for each in record["times"].values())
    assert record["machine"] == common.machine()
    assert record["date"] == common.today()
    options = "--clients 2 --batch 1 --rounds 2 --k 10 444062 --json round-cpu.json --profile tables.txt"
    assert record["command"] == f"python -m benchmarks.round {options}"
    assert record["profile"] == {}  # of a GPU only
    for name in (round.PASS, *rounds):
        assert f"{name}\n---" in tables.read_text()
    assert round.SEND_ALL in capsys.readouterr().out
    assert "2 repeats; plain-cnn, D = 444,062, 2 clients x 1 samples" in page.round_part(record)


class Range:
    def __init__(self, start: float, end: float) -> None:
        self.start, self.end = start, end

    def elapsed_us(self) -> float:
        return self.end - self.start


class Event:
    def __init__(self, name: str, start: float, end: float, on_device: bool = True) -> None:
        kinds = torch.profiler.DeviceType
        self.name, self.time_range = name, Range(start, end)
        self.device_type = kinds.CUDA if on_device else kinds.CPU


def test_a_profile_is_summed_by_kernel_and_counted_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "KEPT", 1)

    class Profile:
        def events(self) -> list[Event]:
            return [Event("a", 0, 3000), Event("b", 2000, 6000), Event("a", 7000, 9000), Event("host", 0, 9e9, False)]

    found = kernels.summary(Profile())  # type: ignore[arg-type]
    assert found == {"busy_ms": round_3(8), "kernels": 1.0, "ms": {"a": round_3(5), kernels.REST: round_3(4)}}


def round_3(milliseconds: float) -> float:
    """A round's part, of three."""
    return float(f"{milliseconds / kernels.ROUNDS:.4f}")


def made(k: list[int], *moved: float) -> dict[str, Any]:
    return {"k": k, "moved": torch.tensor(moved)}


def test_residuals_in_the_hosts_memory_must_give_the_same() -> None:
    ways = {"at once": made([5, 6], 3.0, 4.01), "resident": made([5, 6], 3.0, 4.0), "streamed": made([5, 6], 3.0, 4.0)}
    apart, wrong = streamed.disagreement(ways)
    assert apart == {"at once": pytest.approx(0.002, rel=1e-3), "streamed": 0.0}
    assert wrong == []
    ways["streamed"] = made([5, 7], 3.0, 4.001)
    apart, wrong = streamed.disagreement(ways)
    assert [each.split(":")[0] for each in wrong] == ["streamed", "streamed"]
    ways["streamed"] = made([5, 6], float("nan"), 4.0)
    assert len(streamed.disagreement(ways)[1]) == 1


def test_the_command_of_a_result_names_no_folder_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/x.py", "--out", "/somewhere/else/x.json", "--plot", ".bench/a b.svg"])
    assert common.command("benchmarks.x") == "python -m benchmarks.x --out x.json --plot '.bench/a b.svg'"
