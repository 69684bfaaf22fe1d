"""The state of a simulated run between rounds, and the numbers of a round that are still on the device.

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
from gradsift.server import Server
from gradsift.simulation.flat import Named


class Pending(NamedTuple):
    """A round whose losses are not computed yet: its observation without them, and the weights to compute them at."""

    observation: Observation
    before: Tensor
    after: Tensor
    probe: Tensor | None  # None if the controller does not probe


@dataclass
class State:
    """The state of a run between two rounds."""

    server: Server
    residual: Tensor  # [N, D], on the device or, if that is too small, in the host's memory
    buffers: Named = field(default_factory=dict)  # the moving buffers after the last exchange
    local_buffers: Named = field(default_factory=dict)  # [N, ...] each client's moving buffers
    pending: Pending | None = None  # with a delay, the round that the controller observes in the next one

    def arrays(self) -> Arrays:
        """The tensors of the state, for a checkpoint."""
        tensors, pending = self._tensors(), self.pending
        if pending is not None:
            weights = {"before": pending.before, "after": pending.after, "probe": pending.probe}
            tensors |= {f"pending/{name}": value for name, value in weights.items() if value is not None}
        return {name: value.detach().cpu().numpy() for name, value in tensors.items()}

    def facts(self) -> Facts:
        """The JSON values of the state, for a checkpoint."""
        server = {name: getattr(self.server, name) for name in _SERVER_FACTS}
        return {**server, "pending": None if self.pending is None else self.pending.observation.as_json()}

    def restored(self, arrays: Arrays, facts: Facts) -> "State":
        """The state of a checkpoint, on the devices of this one; refuses the checkpoint of another model or run."""
        expected = {name: _kind(value) for name, value in self._tensors().items()}
        flat = _kind(self.server.weights)
        expected |= {name: flat for name in ("pending/before", "pending/after", "pending/probe") if name in arrays}
        stored = {name: _kind(value) for name, value in arrays.items()}
        for name in sorted(expected.keys() | stored.keys()):
            have, want = stored.get(name, "missing"), expected.get(name, "no such array")
            if have != want:
                raise GradsiftError(f"{name} is {have}, but this run has {want}")
        device = self.server.weights.device
        tensors = {
            name: torch.from_numpy(value).to(self.residual.device if name == "residual" else device)
            for name, value in arrays.items()
        }

        def group(prefix: str) -> Named:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        pending = None
        if facts["pending"] is not None:
            weights = group("pending/")
            observation = Observation.from_json(facts["pending"])
            pending = Pending(observation, weights["before"], weights["after"], weights.get("probe"))
        numbers = {name: facts[name] for name in _SERVER_FACTS}
        server = Server(tensors["weights"], memory=group("memory/"), **numbers)
        return State(server, tensors["residual"], group("buffers/"), group("local_buffers/"), pending)

    def _tensors(self) -> Named:
        tensors = {"weights": self.server.weights, "residual": self.residual}
        tensors |= {f"memory/{name}": value for name, value in self.server.memory.items()}
        tensors |= {f"buffers/{name}": value for name, value in self.buffers.items()}
        return tensors | {f"local_buffers/{name}": value for name, value in self.local_buffers.items()}


_SERVER_FACTS = ("control", "number", "steps", "offset", "spent")


def _kind(value: Any) -> str:
    if not isinstance(value, np.ndarray | Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


class Readings:
    """Small results of a round, copied to the host without waiting: ``read`` waits for these copies only.

    The copies are queued behind the round's work; whatever is queued after them runs while they are read.
    """

    def __init__(self, values: Named) -> None:
        self._values = {name: value.to("cpu", non_blocking=True) for name, value in values.items()}
        self._ready: torch.cuda.Event | None = None
        for device in {value.device for value in values.values() if value.is_cuda}:  # at most one
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record(torch.cuda.current_stream(device))

    def read(self) -> Named:
        """The values, on the CPU."""
        if self._ready is not None:
            self._ready.synchronize()
            self._ready = None
        return self._values
