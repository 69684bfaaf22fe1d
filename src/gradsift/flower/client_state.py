"""What a client carries from message to message, kept where it survives the process that handles one.

Flower keeps ``Context.state`` for the length of a run, and loses it without a word when it is large. Beyond a limit, or
if a folder is given, the state is a file instead, which also outlives the run. If both are there, the newer one counts.
"""

import json
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from torch import Tensor

from gradsift.errors import GradsiftError, RunError
from gradsift.flower.layout import Layout, Named
from gradsift.flower.protocol import NEVER
from gradsift.records import files
from gradsift.records.files import Facts

FORMAT = "gradsift client state 3"
FACTS, ARRAYS = "gradsift-facts", "gradsift-arrays"
CONTEXT_LIMIT = 16 * 2**20  # bytes of weights, residual and rest; with the upload, whatever k is, at most twice that


@dataclass(frozen=True)
class ClientState:
    """The weights it holds, the gradient it has not delivered, and its last upload until it is settled."""

    layout: Layout
    weights: Tensor
    residual: Tensor
    rest: Named
    version: int = NEVER
    settled: int = NEVER  # checksum of the upload settled last
    uploaded: int = 0  # the round of the last upload
    upload: bytes = b""  # the last upload, as sent, while it may still be settled
    session: str = ""  # of the last upload
    sessions: str = ""  # all that it has uploaded in, one after the other
    report: str = ""  # what was answered with it, as JSON: an order that comes twice is answered twice, not done twice
    moved: Named = field(default_factory=dict)  # the buffers that were sent with it


class Store:
    """Where one client's state of one experiment is."""

    def __init__(self, context: Context, experiment: str, client: str, folder: Path | None) -> None:
        if re.fullmatch("[0-9a-f]{16}", experiment) is None:  # it becomes a folder, and the server chose it
            raise GradsiftError(f"the experiment must be 16 hexadecimal digits, got {experiment!r:.80}")
        self.context, self.experiment, self.always = context, experiment, folder is not None
        self.saved = 0  # how many times this state was saved
        self.path = (folder or default_folder()) / experiment / f"client-{client}.npz"

    def load(self) -> ClientState | None:
        """The state, or None if there is none of this experiment."""
        places = [self._in_context(), self._in_file()]
        mine = [found for found in places if found is not None and found[1]["experiment"] == self.experiment]
        if not mine:
            return None
        arrays, facts = max(mine, key=lambda found: int(found[1]["saved"]))
        self.saved = facts["saved"]
        return _state(arrays, facts)

    def save(self, state: ClientState) -> None:
        """Keep ``state`` in the place of the one before."""
        arrays, facts = _parts(state)
        self.saved += 1
        facts |= {"experiment": self.experiment, "saved": self.saved}
        if self.always or _size(state) > CONTEXT_LIMIT:
            self._write(arrays, facts)
            for key in (FACTS, ARRAYS):
                self.context.state.pop(key, None)
            return
        self.context.state[FACTS] = ConfigRecord({"facts": json.dumps(facts)})
        self.context.state[ARRAYS] = ArrayRecord({name: Array(value.numpy()) for name, value in arrays.items()})

    def _write(self, arrays: Named, facts: Facts) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.save(self.path, FORMAT, {name: value.numpy() for name, value in arrays.items()}, facts)
        except OSError as problem:
            raise RunError(f"could not write {self.path}: {problem}; what was there before is untouched") from problem

    def _in_file(self) -> tuple[Named, Facts] | None:
        try:
            arrays, facts = files.load(self.path, FORMAT)
        except FileNotFoundError:
            return None
        return {name: torch.from_numpy(value) for name, value in arrays.items()}, facts

    def _in_context(self) -> tuple[dict[str, Tensor], Facts] | None:
        if FACTS not in self.context.state.config_records:
            return None
        facts: Facts = json.loads(str(self.context.state.config_records[FACTS]["facts"]))
        return dict(self.context.state.array_records[ARRAYS].to_torch_state_dict()), facts


def default_folder() -> Path:
    """Beside what Flower itself keeps."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "gradsift"


def _size(state: ClientState) -> int:
    """The bytes of what is of one size in every round: the choice of a place must not change with k."""
    fixed = [state.weights, state.residual, *state.rest.values()]
    return sum(value.numel() * value.element_size() for value in fixed)


_TEXT = ("version", "settled", "uploaded", "session", "sessions", "report")


def _parts(state: ClientState) -> tuple[dict[str, Tensor], Facts]:
    arrays = {"weights": state.weights, "residual": state.residual}
    arrays["upload"] = torch.frombuffer(bytearray(state.upload or b"-"), dtype=torch.uint8)
    arrays |= {f"rest/{name}": value for name, value in state.rest.items()}
    arrays |= {f"moved/{name}": value for name, value in state.moved.items()}
    return arrays, {"layout": state.layout.text, **{name: getattr(state, name) for name in _TEXT}}


def _state(arrays: dict[str, Tensor], facts: Facts) -> ClientState:
    def group(prefix: str) -> Named:
        return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}

    upload = arrays["upload"].numpy().tobytes()
    return replace(
        ClientState(Layout.read(facts["layout"]), arrays["weights"], arrays["residual"], group("rest/")),
        upload=b"" if upload == b"-" else upload,
        moved=group("moved/"),
        **{name: facts[name] for name in _TEXT},
    )
