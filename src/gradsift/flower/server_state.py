"""What the server carries from round to round, and what it knows of the clients.

Version m of the weights has m rounds in it. ``changed`` says for each weight which version changed it last, so what a
client at any version has missed is found without a history.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from gradsift.control import Observation
from gradsift.flower.layout import Named
from gradsift.flower.protocol import NEVER
from gradsift.round import Server
from gradsift.sparse import Sparse


class Settle(NamedTuple):
    """Which elements of a client's last merged upload were kept.

    The client is told until it has settled. The server remembers longer: a client that falls back to an older state of
    its own has to be told again.
    """

    number: int  # the round of the upload
    session: str
    checksum: int
    kept: Tensor  # a mask over the upload, ascending by index
    done: bool = False  # the client has reported that it settled


@dataclass
class Client:
    """What the server knows of one client."""

    version: int = NEVER  # of the weights that it reported to hold
    settle: Settle | None = None
    can_probe: bool = False


class Pending(NamedTuple):
    """A round whose losses are not in yet: what the controller will be told, and how to make the weights to try."""

    seen: Observation
    before: Sparse  # the weights that the round changed, as they were
    probe: Sparse | None  # the weights that would be different at k', as they would be


@dataclass
class State:
    """Everything that the server carries from round to round."""

    server: Server
    rest: Named  # frozen parameters and buffers
    changed: Tensor  # [D] int32
    pending: Pending | None = None
    clients: dict[int, Client] = field(
        default_factory=dict
    )  # in the order in which they came; those who came together, by number
    moving: set[str] = field(default_factory=set)  # entries of ``rest`` that training has changed

    @property
    def weights(self) -> Tensor:
        """[D] the global weights."""
        return self.server.weights

    @property
    def version(self) -> int:
        """Of the global weights: the rounds in them."""
        return self.server.number
