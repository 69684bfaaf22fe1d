"""What a simulated run carries from round to round, and what of a round is still on its way from the device.

Shapes: N clients, D weights.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradsift.control import Observation
from gradsift.errors import GradsiftError
from gradsift.records.files import Arrays, Facts
from gradsift.round import Server
from gradsift.simulation.flat import Named


class Pending(NamedTuple):
    """A round whose losses are not taken yet: what the controller will be told, and the weights to take them at."""

    seen: Observation
    before: Tensor
    after: Tensor
    probe: Tensor | None


@dataclass
class State:
    """Everything that a run carries from round to round."""

    server: Server
    residual: Tensor  # [N, D], on the device or, if that is too small, in the host's memory
    buffers: Named = field(default_factory=dict)  # of the last exchange, those that training changes
    local_buffers: Named = field(default_factory=dict)  # [N, ...] each client's
    pending: Pending | None = None

    def arrays(self) -> Arrays:
        """The tensors of the state, for a checkpoint."""
        tensors = self._tensors()
        if self.pending is not None:
            tensors |= {"pending/before": self.pending.before, "pending/after": self.pending.after}
            tensors |= {} if self.pending.probe is None else {"pending/probe": self.pending.probe}
        return {name: value.detach().cpu().numpy() for name, value in tensors.items()}

    def facts(self) -> Facts:
        """The rest of the state, for a checkpoint."""
        server = {name: getattr(self.server, name) for name in _COUNTS}
        return {**server, "pending": None if self.pending is None else self.pending.seen.as_json()}

    def restored(self, arrays: Arrays, facts: Facts) -> "State":
        """The state of a checkpoint, on the devices of this one; refused if it is of another model or run."""
        wanted = {name: _kind(value) for name, value in self._tensors().items()}
        trial = _kind(self.server.weights)
        wanted |= {name: trial for name in ("pending/before", "pending/after", "pending/probe") if name in arrays}
        found = {name: _kind(value) for name, value in arrays.items()}
        for name in sorted(wanted.keys() | found.keys()):
            have, want = found.get(name, "missing"), wanted.get(name, "nothing of that name")
            if have != want:
                raise GradsiftError(f"{name} in it is {have}, this run has {want}")
        device = self.server.weights.device
        tensors = {
            name: torch.from_numpy(value).to(self.residual.device if name == "residual" else device)
            for name, value in arrays.items()
        }

        def group(prefix: str) -> Named:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        pending, at = None, group("pending/")
        if facts["pending"] is not None:
            pending = Pending(Observation.from_json(facts["pending"]), at["before"], at["after"], at.get("probe"))
        server = Server(tensors["weights"], **{name: facts[name] for name in _COUNTS})
        return State(server, tensors["residual"], group("buffers/"), group("local_buffers/"), pending)

    def _tensors(self) -> Named:
        tensors = {"weights": self.server.weights, "residual": self.residual}
        tensors |= {f"buffers/{name}": value for name, value in self.buffers.items()}
        return tensors | {f"local_buffers/{name}": value for name, value in self.local_buffers.items()}


_COUNTS = ("control", "number", "steps", "offset", "spent")


def _kind(value: Any) -> str:
    if not isinstance(value, np.ndarray | Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


class Readings:
    """Small results of a round on their way to the host: asking for one waits for these, and not for what came after.

    The copies stand in the device's queue behind the round's work; whatever is queued next runs while they are read.
    """

    def __init__(self, values: Named) -> None:
        self._values = {name: value.to("cpu", non_blocking=True) for name, value in values.items()}
        self._ready: torch.cuda.Event | None = None
        for device in {value.device for value in values.values() if value.is_cuda}:  # one, whichever it is
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record(torch.cuda.current_stream(device))

    def read(self) -> Named:
        """The values, on the CPU."""
        if self._ready is not None:
            self._ready.synchronize()
            self._ready = None
        return self._values
