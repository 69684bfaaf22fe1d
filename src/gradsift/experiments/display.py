"""What a person sees while a run goes on: a line that is kept up to date in a terminal, plain lines elsewhere."""

import shutil
import sys
import time
from typing import TextIO

from gradsift.records.record import Record


class Display:
    """Pass ``round`` to ``gradsift.simulate(on_round=...)``, inside a ``with`` statement, which clears the line.

    ``every`` is for several runs at a time, or long ones: plain lines only, at least so many seconds apart.
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
        self.live = every is None and self.stream.isatty()
        self._began, self._first, self._shown = time.monotonic(), 0, 0.0
        self._loss: float | None = None
        self._accuracy: float | None = None
        self._sent = 0.0

    def already(self, records: list[Record]) -> None:
        """Count the rounds that a resumed run has done before."""
        for record in records:
            self._take(record)
            self._first = record["round"]

    def round(self, record: Record) -> None:
        """Count one more round, and show it if it is time to."""
        self._take(record)
        if self.quiet:
            return
        now = time.monotonic()
        if self.live:
            if now - self._shown >= 0.1:
                self._shown = now
                width = shutil.get_terminal_size().columns - 1
                self.stream.write("\r" + self._fitted(record, width).ljust(width))
                self.stream.flush()
            return
        evaluated, waited = record["global_loss"] is not None, now - max(self._shown, self._began)
        if evaluated if self.every is None else waited >= self.every:
            self._shown = now
            print(self.line(record), file=self.stream, flush=True)

    def _fitted(self, record: Record, width: int) -> str:
        """The line in ``width`` characters: where it is too long, first without the name, then with single spaces."""
        line = self.line(record)
        if len(line) > width:
            line = line[len(self.name) :].lstrip()
        return (line if len(line) <= width else line.replace("  ", " "))[:width]

    def line(self, record: Record) -> str:
        """The state of the run in one line."""
        budget = self.cost_budget
        of_rounds, of_cost = (f"/{self.rounds}", "") if budget is None else ("", f"/{budget:g}")
        parts = [f"{self.name}  round {record['round']}{of_rounds}"]
        if self._loss is not None:
            parts.append(f"loss {self._loss:.4f}")
        if self._accuracy is not None:
            parts.append(f"acc {self._accuracy:.3f}")
        parts += [f"k {record['k']:.0f}", f"cost {record['cost']:.1f}{of_cost}", f"sent {size(self._sent)}"]
        parts.append(f"{clock(self._remaining(record))} left")
        return "  ".join(parts)

    def _take(self, record: Record) -> None:
        self._sent += record["up_bytes"] + record["down_bytes"]
        if record["global_loss"] is not None:
            self._loss, self._accuracy = record["global_loss"], record["accuracy"]

    def _remaining(self, record: Record) -> float:
        elapsed = time.monotonic() - self._began
        per_round = elapsed / max(1, record["round"] - self._first)
        rounds: float = self.rounds - record["round"]
        if self.cost_budget is not None:
            rounds = min(rounds, (self.cost_budget - record["cost"]) / max(record["cost"] / record["round"], 1e-12))
        return float(max(0.0, per_round * rounds))

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *problem: object) -> None:
        if self.live and not self.quiet and self._shown:
            self.stream.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            self.stream.flush()


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if count < 100 else f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def clock(seconds: float) -> str:
    """h:mm:ss or m:ss."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
