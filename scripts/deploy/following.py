"""What a run of gradsift's strategy says in its log, round by round."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_STARTED = re.compile(r"Successfully started run (\d+)")
_DIM = re.compile(r"gradsift: \S+ of (\d+) weights")
_REFUSED = re.compile(r"gradsift: .*(refused|turned away|did not identify itself|discarded).*")
_METRICS = re.compile(r"MetricRecord: (\{.*\})")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Round(NamedTuple):
    """One round: what the strategy recorded of it, and what was measured with the new weights."""

    record: dict[str, float]
    tested: dict[str, float]


class Log:
    """The log of a run, as it is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = ""
        self.dim = 0
        self._read = 0
        self._record: dict[str, float] | None = None

    def new(self) -> Iterator[Round | str]:
        """What was written since the last call: rounds, and lines about clients that could not be used."""
        text = self.path.read_bytes()[self._read :]
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if said := self._understand(_COLOUR.sub("", line)):
                yield said

    def _understand(self, line: str) -> Round | str | None:
        if found := _STARTED.search(line):
            self.run_id = found[1]
        elif found := _DIM.search(line):
            self.dim = int(found[1])
        elif found := _REFUSED.search(line):
            return found[0]
        elif found := _METRICS.search(line):
            text = re.sub(r"\b(nan|inf)\b", r"'\1'", found[1])  # which are no literals
            values = {name: float(value) for name, value in ast.literal_eval(text).items()}
            if "gradsift-round" in values:
                self._record = {name.removeprefix("gradsift-"): value for name, value in values.items()}
            elif self._record is not None:
                record, self._record = self._record, None
                return Round(record, values)
        return None

    def tail(self) -> str:
        """Its last lines."""
        return "\n".join(_COLOUR.sub("", self.path.read_text(errors="replace")).splitlines()[-30:])
