"""What a client carries from message to message, kept where it survives the process that handles one.

Flower keeps ``Context.state`` for the length of a run, and loses it without a word when it is large. Beyond a limit, or
if a folder is given, the state is a file instead, which also outlives the run.
"""

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from torch import Tensor

from gradsift.flower import files
from gradsift.flower.files import Facts
from gradsift.flower.layout import Layout, Named
from gradsift.flower.protocol import NEVER

KIND = "gradsift client state 1"
FACTS, ARRAYS = "gradsift-facts", "gradsift-arrays"
CONTEXT_LIMIT = 16 * 2**20  # bytes


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
    report: str = ""  # what was answered with it, as JSON: an order that comes twice is answered twice, not done twice
    moved: Named = field(default_factory=dict)  # the buffers that were sent with it


class Store:
    """Where one client's state of one experiment is."""

    def __init__(self, context: Context, experiment: str, client: str, folder: Path | None) -> None:
        self.context, self.experiment, self.always = context, experiment, folder is not None
        self.path = (folder or default_folder()) / experiment / f"client-{client}.npz"

    def load(self) -> ClientState | None:
        """The state, or None if there is none of this experiment."""
        found = files.load(self.path, KIND)
        if found is None and FACTS in self.context.state.config_records:
            facts: Facts = json.loads(str(self.context.state.config_records[FACTS]["facts"]))
            arrays = self.context.state.array_records[ARRAYS].to_torch_state_dict()
            found = dict(arrays), facts
        if found is None or found[1].pop("experiment") != self.experiment:
            return None
        return _state(*found)

    def save(self, state: ClientState) -> None:
        """Keep ``state`` in the place of the one before."""
        arrays, facts = _parts(state)
        facts["experiment"] = self.experiment
        size = sum(value.numel() * value.element_size() for value in arrays.values())
        if self.always or size > CONTEXT_LIMIT:
            files.save(self.path, KIND, arrays, facts)
            for key in (FACTS, ARRAYS):
                self.context.state.pop(key, None)
            return
        self.context.state[FACTS] = ConfigRecord({"facts": json.dumps(facts)})
        self.context.state[ARRAYS] = ArrayRecord({name: Array(value.numpy()) for name, value in arrays.items()})


def default_folder() -> Path:
    """Beside what Flower itself keeps."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "gradsift"


_TEXT = ("version", "settled", "uploaded", "session", "report")


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
