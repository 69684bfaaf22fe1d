"""The progress of a run: one line that is updated in place in a terminal, plain lines elsewhere."""

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from gradsift.records.record import Record
from gradsift.report.text import some_bytes


class Display:
    """Shows the progress of a run: pass ``round`` to ``gradsift.simulate(on_round=...)`` inside a ``with`` statement.

    With ``every``, it prints plain lines that many seconds apart, also in a terminal: for several runs at a time.
    """

    def __init__(
        self,
        name: str,
        rounds: int,
        cost_budget: float | None,
        *,
        quiet: bool = False,
        every: float | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self.name, self.rounds, self.cost_budget, self.quiet, self.every = name, rounds, cost_budget, quiet, every
        self.stream = stream or sys.stderr
        self.live = every is None and not quiet and self.stream.isatty()
        self._started, self._first_round, self._shown = time.monotonic(), 0, 0.0
        self._evaluation = ""
        self._sent = 0.0

    def resume(self, records: list[Record]) -> None:
        """Count the rounds that were done before a run is resumed."""
        for record in records:
            self._count(record)
            self._first_round = record["round"]

    def round(self, record: Record) -> None:
        """Count a round, and show it if it is time to."""
        self._count(record)
        now = time.monotonic()
        if self.live:
            if now - self._shown >= 0.1:
                self._shown = now
                in_place(self.stream, self._fitted(record, shutil.get_terminal_size().columns - 1))
            return
        evaluated, waited = record["global_loss"] is not None, now - max(self._shown, self._started)
        if not self.quiet and (evaluated if self.every is None else waited >= self.every):
            self._shown = now
            print(self.line(record), file=self.stream, flush=True)

    def _fitted(self, record: Record, width: int) -> str:
        """Return the line in ``width`` characters: if it is too long, without the name, then with single spaces."""
        line = self.line(record)
        if len(line) > width:
            line = line[len(self.name) :].lstrip()
        return (line if len(line) <= width else line.replace("  ", " "))[:width]

    def line(self, record: Record) -> str:
        """Return the state of the run in one line."""
        budget = self.cost_budget
        of_rounds, of_cost = (f"/{self.rounds}", "") if budget is None else ("", f"/{budget:g}")
        return (
            f"{self.name}  round {record['round']}{of_rounds}{self._evaluation}  k {record['k']:.0f}"
            f"  cost {record['cost']:.1f}{of_cost}  sent {some_bytes(self._sent)}"
            f"  {clock(self._remaining(record))} left"
        )

    def part(self, record: Record) -> float:
        """Return how much of the run is done, from 0 to 1."""
        spent = record["cost"] / self.cost_budget if self.cost_budget else 0.0
        return min(1.0, max(spent, record["round"] / self.rounds))

    def _count(self, record: Record) -> None:
        self._sent += record["up_bytes"] + record["down_bytes"]
        if record["global_loss"] is not None:
            accuracy = "" if record["accuracy"] is None else f"  acc {record['accuracy']:.3f}"
            self._evaluation = f"  loss {record['global_loss']:.4f}{accuracy}"

    def _remaining(self, record: Record) -> float:
        """Return the seconds that are left, from the mean time and cost of the rounds so far."""
        per_round = (time.monotonic() - self._started) / max(1, record["round"] - self._first_round)
        rounds: float = self.rounds - record["round"]
        if self.cost_budget is not None:
            rounds = min(rounds, (self.cost_budget - record["cost"]) / max(record["cost"] / record["round"], 1e-12))
        return max(0.0, per_round * rounds)

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *problem: object) -> None:
        if self.live and self._shown:
            in_place(self.stream, "")


class Overall:
    """Shows the progress of several runs at a time: one line in a terminal, elsewhere one whenever a run has ended."""

    def __init__(self, total: int, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.total, self.quiet, self.stream = total, quiet, stream or sys.stderr
        self.live, self._started, self._ended = self.stream.isatty(), time.monotonic(), 0

    def show(self, ended: int, now: Sequence[tuple[str, float]]) -> None:
        """Show how many runs have ended, and the names of those under way, each with the part of it that is done."""
        if self.quiet or (ended == self._ended and not self.live):
            return
        self._ended, passed = ended, time.monotonic() - self._started
        part = (ended + sum(part for _, part in now)) / self.total
        left = f"  {clock(passed / part - passed)} left" if part > 0 else ""
        names = ", ".join(f"{name} {part:.0%}" for name, part in now)
        line = f"{ended} of {self.total} runs{left}{names and '  now: ' + names}"
        if self.live:
            in_place(self.stream, line)
        else:
            print(line, file=self.stream, flush=True)

    def close(self) -> None:
        """Clear the line."""
        if self.live and not self.quiet:
            in_place(self.stream, "")


def in_place(stream: TextIO, line: str) -> None:
    """Write a line over the one before it; an empty one only clears it."""
    width = shutil.get_terminal_size().columns - 1
    stream.write("\r" + line[:width].ljust(width) + ("" if line else "\r"))
    stream.flush()


def clock(seconds: float) -> str:
    """Format a duration as h:mm:ss or m:ss."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
