"""The state that a client keeps from message to message, each of which may be handled by another process.

Flower keeps ``Context.state`` for the length of a run, and silently loses it when it is large. Above a limit, or if a
folder is given, the state is a file instead, which also outlives the run. If both exist, the newer one counts.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from torch import Tensor

from gradsift.errors import GradsiftError, RunError
from gradsift.flower.layout import Layout, Named, under_prefix, with_prefix
from gradsift.flower.protocol import NEVER
from gradsift.records import files
from gradsift.records.files import Arrays, Facts

FORMAT = "gradsift client state 5"
FACTS, ARRAYS = "gradsift-facts", "gradsift-arrays"
CONTEXT_LIMIT = 16 * 2**20  # bytes of all arrays that stay; an upload at most doubles them


@dataclass(frozen=True)
class ClientState:
    """A client's weights, its residual, and its last upload with the reply until the upload is settled."""

    layout: Layout
    weights: Tensor
    residual: Tensor
    non_trainable: Named
    version: int = NEVER
    last_settled: int = NEVER  # checksum of the upload that was settled last
    uploaded: int = 0  # the round of the last upload
    upload: bytes = b""  # as it was sent; empty once it is settled
    session: str = ""  # the session of the last upload
    sessions: str = ""  # all sessions in which the client has uploaded, separated by spaces
    report: str = ""  # the report that went with the upload, as JSON, to answer a repeated order
    left: tuple[float, ...] = ()  # the settled residual times the last step or update, if the client knows it
    local_buffers: Named = field(default_factory=dict)  # the buffers that training changed since the last exchange
    memory: Named = field(default_factory=dict)  # of the server's optimizer, as the server has it


# The names of facts in a saved state -> the fields that they hold.
FIELDS = {name: name for name in ("version", "uploaded", "session", "sessions", "report")} | {"settled": "last_settled"}


class Store:
    """Loads and saves one client's state of one experiment, in Flower's context or in a file."""

    def __init__(self, context: Context, experiment: str, client: str, folder: Path | None) -> None:
        if re.fullmatch("[0-9a-f]{16}", experiment) is None:  # the server chose it, and it names a folder
            raise GradsiftError(f"the experiment must be 16 hexadecimal digits, got {experiment!r:.80}")
        self.context, self.experiment, self.always_file = context, experiment, folder is not None
        self.saved = 0  # how many times this state was saved
        default = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "gradsift"
        self.path = (folder or default) / experiment / f"client-{client}.npz"

    def load(self) -> ClientState | None:
        """The newest saved state, or None if there is none of this experiment."""
        saved = [(arrays, facts) for arrays, facts in self._saved() if facts["experiment"] == self.experiment]
        if not saved:
            return None
        arrays, facts = max(saved, key=lambda pair: int(pair[1]["saved"]))
        self.saved = facts["saved"]
        named = {name: torch.from_numpy(value) for name, value in arrays.items()}
        upload = arrays["upload"].tobytes()
        return ClientState(
            Layout.read(facts["layout"]),
            named["weights"],
            named["residual"],
            under_prefix("rest/", named),
            upload=b"" if upload == b"-" else upload,
            local_buffers=under_prefix("moved/", named),
            memory=under_prefix("memory/", named),
            left=tuple(facts["left"]),
            **{name: facts[fact] for fact, name in FIELDS.items()},
        )

    def save(self, state: ClientState) -> None:
        """Save ``state`` in place of the one before."""
        self.saved += 1
        facts = {"layout": state.layout.text, **{fact: getattr(state, name) for fact, name in FIELDS.items()}}
        facts |= {"experiment": self.experiment, "saved": self.saved, "left": list(state.left)}
        fixed = {"weights": state.weights, "residual": state.residual} | with_prefix("rest/", state.non_trainable)
        fixed |= with_prefix("memory/", state.memory)
        upload = torch.frombuffer(bytearray(state.upload or b"-"), dtype=torch.uint8)  # an array must not be empty
        named = fixed | {"upload": upload} | with_prefix("moved/", state.local_buffers)
        arrays = {name: value.numpy() for name, value in named.items()}
        # The upload does not count, so that the choice does not depend on k.
        if not self.always_file and sum(value.nbytes for value in fixed.values()) <= CONTEXT_LIMIT:
            self.context.state[FACTS] = ConfigRecord({"facts": json.dumps(facts)})
            self.context.state[ARRAYS] = ArrayRecord({name: Array(value) for name, value in arrays.items()})
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.save(self.path, FORMAT, arrays, facts)
        except OSError as problem:
            raise RunError(f"could not write {self.path}: {problem}; the earlier state is unchanged") from problem
        for key in (FACTS, ARRAYS):
            self.context.state.pop(key, None)

    def _saved(self) -> Iterator[tuple[Arrays, Facts]]:
        state = self.context.state
        if FACTS in state.config_records:
            arrays = {name: array.numpy() for name, array in state.array_records[ARRAYS].items()}
            yield arrays, json.loads(str(state.config_records[FACTS]["facts"]))
        with contextlib.suppress(FileNotFoundError):
            yield files.load(self.path, FORMAT)
