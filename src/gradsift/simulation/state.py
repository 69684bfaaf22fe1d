"""What a run carries from round to round, and what of a round is still on its way from the device.

Shapes: N clients, D weights.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradsift.control import Observation
from gradsift.simulation.flat import Named


class Pending(NamedTuple):
    """A round whose losses are not taken yet: what the controller will be told, and the three weights to try."""

    seen: Observation
    before: Tensor
    after: Tensor
    probe: Tensor | None


@dataclass
class State:
    """Everything that a run carries from round to round."""

    number: int  # rounds done
    weights: Tensor  # [D]
    residual: Tensor  # [N, D], on the device or, if that is too small, in the host's memory
    control: Any  # the controller's state
    spent: float = 0.0
    offset: int = 0  # elements each client has sent
    buffers: Named = field(default_factory=dict)  # moving buffers of the last exchange
    local_buffers: Named = field(default_factory=dict)  # [N, ...] each client's
    pending: Pending | None = None


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
