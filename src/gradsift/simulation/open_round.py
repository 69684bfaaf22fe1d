"""A round that is under way: what its clients have uploaded, and what is still to be read back.

Shapes: N clients, n of them in a round, D weights.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from gradsift.control import Observation
from gradsift.records.record import Record
from gradsift.round import Plan
from gradsift.sampling import Ints
from gradsift.simulation.clients import Clients
from gradsift.simulation.local_work import Computed
from gradsift.simulation.state import Readings
from gradsift.sparse import Sparse


@dataclass
class OpenRound:
    """A round whose numbers are not read back yet."""

    record: Record
    clients: Clients
    readings: Readings
    observation: Observation | None  # for the controller, still without losses
    loss_clients: Ints  # [s] the clients whose samples the losses are taken on


class Contribution(NamedTuple):
    """What the clients of a round have computed and uploaded."""

    plan: Plan
    upload: Sparse
    residual: Tensor  # [n, D] before it is settled; [N, D] if the residuals are in the host's memory
    computed: Computed
