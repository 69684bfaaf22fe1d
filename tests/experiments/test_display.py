"""The live line in a terminal, plain lines elsewhere."""

import io
import os
from typing import Any, cast

import pytest

from gradsift.experiments.display import Display, Overall, clock
from gradsift.records.record import Record


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(number: int, **others: Any) -> Record:
    shown: Any = {
        "round": number, "k": 1234.5, "cost": 234.4, "up_bytes": 5e6, "down_bytes": 5e6,
        "global_loss": 1.23456, "accuracy": 0.98765, **others,
    }  # fmt: skip
    return cast(Record, shown)


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_every_number_is_seen_in_a_terminal_of_any_usual_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24)))
    stream = Terminal()
    with Display("digits-fab-top-k-extended-sign", 300, None, stream=stream) as display:
        display.round(record(150))
        shown = stream.getvalue().split("\r")[-1]
    assert len(shown) < columns
    for part in ("round 150/300", "loss 1.2346", "acc 0.988", "k 1234", "cost 234.4", "sent 10 MB", "left"):
        assert part in shown
    assert ("extended-sign" in shown) == (columns > 110)
    assert stream.getvalue().endswith("\r")


def test_a_budget_is_shown_in_place_of_the_rounds() -> None:
    stream = io.StringIO()
    with Display("run", 1_000_000, 400.0, stream=stream) as display:
        display.round(record(150))
    assert "round 150  " in stream.getvalue()
    assert "cost 234.4/400" in stream.getvalue()


def test_quiet_says_nothing_and_lines_come_only_with_an_evaluation() -> None:
    for quiet, lines in ((True, 0), (False, 1)):
        stream = io.StringIO()
        with Display("run", 300, None, quiet=quiet, stream=stream) as display:
            display.round(record(1))
            display.round(record(2, global_loss=None, accuracy=None))
        assert stream.getvalue().count("\n") == lines


def test_lines_so_many_seconds_apart_whether_evaluated_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    stream = Terminal()
    with Display("run", 300, None, every=10.0, stream=stream) as display:
        for number in range(1, 31):  # a second a round
            now += 1.0
            display.round(record(number, global_loss=None))
    assert [line.split()[2] for line in stream.getvalue().splitlines()] == ["10/300", "20/300", "30/300"]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65.4, "1:05"), (3600, "1:00:00"), (45296, "12:34:56")])
def test_clocks(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_several_runs_are_one_line_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((60, 24)))
    stream = Terminal()
    overall = Overall(4, stream=stream)
    overall.show(1, [("sign-seed0", 0.5), ("fixed@9-seed0", 0.25)])
    shown = stream.getvalue().split("\r")[-1]
    assert shown.startswith("1 of 4 runs  0:00 left  now: sign-seed0 50%, fixed@9-")
    assert len(shown) == 59
    overall.close()
    assert stream.getvalue().endswith(" \r")


def test_several_runs_are_a_line_for_each_that_ends_elsewhere() -> None:
    stream = io.StringIO()
    overall = Overall(2, stream=stream)
    for ended, part in ((0, 0.1), (0, 0.9), (1, 0.2), (1, 0.4)):
        overall.show(ended, [("a", part)])
    overall.show(2, [])
    overall.close()
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["1 of 2 runs", "2 of 2 runs"]
