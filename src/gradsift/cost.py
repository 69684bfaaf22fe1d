"""Cost models: theta_m(k), the cost of a round's computation and communication, from its ``Traffic``.

A controller minimises the cost without knowing the model. Times are those of the slowest client that took part; energy
and money are sums over the clients. Rates are one number for all clients, or a sequence with one per client, and count
bytes, not bits: 1 Mbit/s is 125,000 bytes per second.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsift import check
from gradsift.errors import GradsiftError
from gradsift.registry import Registry

Floats = NDArray[np.float64]

NOT_MEASURED = (
    "needs a driver that measures time, such as Flower; the simulator has no clock of a real link: use link-time"
)
NUMBER_BYTES = 4  # assumed for an index and for a value where no encoded size is given


class Traffic(NamedTuple):
    """What each of N clients sends and receives in one round."""

    dim: int
    took_part: NDArray[np.bool_]  # [N]: whether the client computed and uploaded
    up_numbers: Floats  # [N]: a sparse element counts as two numbers, index and value; a dense element as one
    down_numbers: Floats
    up_bytes: Floats
    down_bytes: Floats
    steps: int = 1  # gradients computed by each client that took part
    seconds: float | None = None  # that the round took, if the driver measures time

    @classmethod
    def of(
        cls,
        dim: int,
        up: ArrayLike,
        down: ArrayLike,
        *,
        clients: int | None = None,
        took_part: ArrayLike | None = None,
        dense: bool = False,
        probe: ArrayLike = 0,
        buffers: ArrayLike = 0,
        implied_indices: bool = False,
        dense_fallback: bool = False,
        up_bytes: ArrayLike | None = None,
        down_bytes: ArrayLike | None = None,
        steps: int = 1,
        seconds: float | None = None,
    ) -> "Traffic":
        """The traffic of a round in which each client sends ``up`` and receives ``down`` elements.

        Counts are one number for all clients or one per client. ``took_part`` selects the clients that compute and
        send (all, if only the number of ``clients`` is given); the others only receive, to keep their weights equal.
        ``probe`` is the size of the probe's message, if it is charged. ``buffers`` counts numbers that travel dense
        besides the elements, up and down. ``implied_indices`` is for indices that both sides know: only values travel.
        ``dense_fallback`` counts a message as dense if that is smaller. ``up_bytes`` and ``down_bytes`` are encoded
        sizes, which replace 4 bytes per number. ``steps`` is the number of gradients that each client computes.
        ``seconds`` is the time that the round took, where it was measured.
        """
        present = _present(took_part, clients)
        check.integer("dim", dim, 1)
        check.integer("steps", steps, 1)
        check.real("seconds", seconds, low=0, optional=True)

        def per_client(name: str, count: ArrayLike) -> Floats:
            counts = _floats(name, count)
            if counts.ndim > 1 or (counts.ndim == 1 and len(counts) != len(present)):
                raise GradsiftError(f"{name} must be one or {len(present)} numbers, got shape {list(counts.shape)}")
            if not (np.isfinite(counts).all() and (counts >= 0).all()):
                raise GradsiftError(f"{name} must be finite and not negative, got {count!r}")
            return np.broadcast_to(counts, present.shape)

        def numbers(elements: Floats) -> Floats:
            if (elements > dim).any():
                raise GradsiftError(f"a message has at most {dim} elements, got {elements.max():g}")
            if dense or implied_indices:
                return elements
            return np.minimum(2 * elements, dim) if dense_fallback else 2 * elements

        extra = per_client("buffers", buffers)
        up_numbers = (numbers(per_client("up", up)) + extra) * present
        down_numbers = numbers(per_client("down", down)) + numbers(per_client("probe", probe)) + extra
        sent = up_numbers * NUMBER_BYTES if up_bytes is None else per_client("up_bytes", up_bytes) * present
        received = down_numbers * NUMBER_BYTES if down_bytes is None else per_client("down_bytes", down_bytes)
        return cls(dim, present, up_numbers, down_numbers, sent, received, steps, seconds)


def _present(took_part: ArrayLike | None, clients: int | None) -> NDArray[np.bool_]:
    """[N] ``took_part``, checked; or True for each of the ``clients``."""
    if took_part is None:
        if clients is None:
            raise GradsiftError("traffic needs took_part, or the number of clients")
        check.integer("clients", clients, 1)
        return np.ones(clients, dtype=bool)
    present = np.asarray(took_part)
    if present.ndim != 1 or not present.any():
        raise GradsiftError(f"took_part must be a list with at least one True, got {present.tolist()}")
    if present.dtype != np.bool_:  # such as a list of client numbers
        raise GradsiftError(f"took_part must be True or False for each client, got {present.tolist()}")
    if clients is not None and clients != len(present):
        raise GradsiftError(f"took_part must have one entry per client, {clients}, got {len(present)}")
    return present


class CostModel(ABC):
    """How much a round costs. A new one defines ``round_cost``."""

    name: ClassVar[str] = ""

    @abstractmethod
    def round_cost(self, traffic: Traffic) -> float:
        """The cost of a round with this traffic: computation plus communication."""

    def client_costs(self, traffic: Traffic) -> Floats:
        """[N] the cost of each client, if a round costs as much as the dearest client in it; else [0]."""
        del traffic
        return np.zeros(0)

    @property
    def measured(self) -> bool:
        """Whether it needs ``Traffic.seconds``: then the cost of a round that was not made cannot be told."""
        return False

    def waiting_cost(self, seconds: float) -> float:
        """The cost of a round in which the server waited this long, and nobody took part."""
        del seconds
        return 0.0


_REGISTRY: Registry[CostModel] = Registry("cost", CostModel)  # type: ignore[type-abstract]
cost_model = _REGISTRY.make  # such as cost_model("normalized-time", comm_time=10); ``cost_models()`` lists the names
register_cost_model = _REGISTRY.register
describe = _REGISTRY.describe
cost_models = _REGISTRY.names


def checked_cost(model: CostModel, traffic: Traffic) -> float:
    """``round_cost`` of any cost model; refuses a result that is not a finite number, or is negative."""
    cost = model.round_cost(traffic)
    check.real(f"the cost of a round by {model!r}", cost, low=0)
    return float(cost)


def _floats(name: str, value: ArrayLike) -> Floats:
    """``value`` as an array; text and None are refused."""
    array = np.asarray(value)
    if array.size and array.dtype.kind not in "iuf":
        raise GradsiftError(f"{name} must be one number or one per client, got {value!r}")
    return array.astype(np.float64)


def _rates(model: Any, *names: str, positive: bool = False) -> None:
    """Refuse rates of ``model`` that are not finite and non-negative, or above zero if ``positive`` is set."""
    for name in names:
        value = getattr(model, name)
        array = _floats(name, value)
        if (
            array.ndim > 1
            or not array.size
            or not np.isfinite(array).all()
            or (array < 0).any()
            or (positive and (array == 0).any())
        ):
            bound = "positive" if positive else "not negative"
            raise GradsiftError(f"{name} must be finite and {bound}, one number or one per client, got {value!r}")


def _per_client(name: str, value: float | Sequence[float], traffic: Traffic) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 1 and len(array) != len(traffic.took_part):
        raise GradsiftError(f"{name} is given for {len(array)} clients, the round has {len(traffic.took_part)}")
    return np.broadcast_to(array, traffic.took_part.shape)


Rate = float | Sequence[float]  # one number for all clients, or one per client


@register_cost_model("normalized-time")
@dataclass(frozen=True)
class NormalizedTime(CostModel):
    """The paper's time (Section V): one gradient takes 1, a dense exchange, up and down, takes ``comm_time`` (beta).

    Times are multiples of the time of one gradient, ``comp_time``. A round with k elements takes
    1 + comm_time * (k_up + k_down) / D, since each sparse element is two numbers of 4 bytes and the dense exchange is
    2D numbers; or less, if the bytes of the wire format are counted.
    """

    comm_time: float
    comp_time: float = 1.0

    def __post_init__(self) -> None:
        check.real("comm_time", self.comm_time, low=0.0)
        check.real("comp_time", self.comp_time, low=0.0)

    def round_cost(self, traffic: Traffic) -> float:
        """comp_time * steps + comm_time * bytes / (8 D), for the client with the most bytes."""
        sent = (traffic.up_bytes + traffic.down_bytes)[traffic.took_part]
        return float(self.comp_time * traffic.steps + self.comm_time * sent.max() / (2 * NUMBER_BYTES * traffic.dim))


class LinkParts(NamedTuple):
    """[N] seconds of each client in a round."""

    computing: Floats
    sending: Floats
    up_latency: Floats
    receiving: Floats
    down_latency: Floats


@register_cost_model("link-time")
@dataclass(frozen=True)
class LinkTime(CostModel):
    """Seconds: computation, then latency + bytes / bandwidth for each message, of the slowest client of the round.

    For example ``LinkTime(up_bandwidth=1e5, down_bandwidth=1e6, latency=0.05, compute=0.2)``; each option is one
    number, or one per client.
    """

    up_bandwidth: Rate  # bytes per second
    down_bandwidth: Rate  # bytes per second
    latency: Rate = 0.0  # seconds per message
    compute: Rate = 0.0  # seconds per gradient

    def __post_init__(self) -> None:
        _rates(self, "up_bandwidth", "down_bandwidth", positive=True)
        _rates(self, "latency", "compute")

    def parts(self, traffic: Traffic) -> LinkParts:
        """What the seconds of each client are made of; an empty message costs nothing, not even latency."""
        latency = _per_client("latency", self.latency, traffic)
        with np.errstate(over="ignore"):  # an infinite cost is refused by ``checked_cost``
            return LinkParts(
                _per_client("compute", self.compute, traffic) * traffic.steps,
                traffic.up_bytes / _per_client("up_bandwidth", self.up_bandwidth, traffic),
                np.where(traffic.up_bytes > 0, latency, 0.0),
                traffic.down_bytes / _per_client("down_bandwidth", self.down_bandwidth, traffic),
                np.where(traffic.down_bytes > 0, latency, 0.0),
            )

    def round_cost(self, traffic: Traffic) -> float:
        """The maximum over the clients that took part."""
        return float(self.client_costs(traffic)[traffic.took_part].max())

    def client_costs(self, traffic: Traffic) -> Floats:
        """[N] the seconds of each client."""
        computing, sending, up_latency, receiving, down_latency = self.parts(traffic)
        with np.errstate(over="ignore"):
            return np.asarray(computing + (up_latency + sending) + (down_latency + receiving))


@register_cost_model("measured-time")
@dataclass(frozen=True)
class MeasuredTime(CostModel):
    """Seconds that the round really took, by the driver's clock: for Flower; the simulator has no real link.

    For links that nobody can describe. Only a controller that does not probe can lower it.
    """

    @property
    def measured(self) -> bool:
        """True."""
        return True

    def round_cost(self, traffic: Traffic) -> float:
        """``traffic.seconds``."""
        if traffic.seconds is None:
            raise GradsiftError(f"cost {self.name!r} {NOT_MEASURED}")
        return float(traffic.seconds)

    def waiting_cost(self, seconds: float) -> float:
        """All of the seconds."""
        return seconds


@dataclass(frozen=True)
class _PerByte(CostModel):
    """Rates per byte sent, per byte received and per gradient, summed over all clients."""

    up: Rate  # per byte sent
    down: Rate  # per byte received
    compute: Rate = 0.0  # per gradient

    def __post_init__(self) -> None:
        _rates(self, "up", "down", "compute")

    def round_cost(self, traffic: Traffic) -> float:
        """The sum over the clients; those that did not take part still receive."""
        up, down = _per_client("up", self.up, traffic), _per_client("down", self.down, traffic)
        compute = _per_client("compute", self.compute, traffic)
        bytes_cost = up * traffic.up_bytes + down * traffic.down_bytes
        return float((bytes_cost + compute * traffic.steps * traffic.took_part).sum())


@register_cost_model("energy")
@dataclass(frozen=True)
class Energy(_PerByte):
    """Joules: ``up`` and ``down`` per byte, ``compute`` per gradient, summed over the clients.

    ``Energy(up=3.5e-6, down=4.2e-7, compute=0.5)`` is LTE at 3.5 and 0.42 microjoules per byte, and half a joule per
    gradient. Each option is one number, or one per client.
    """


@register_cost_model("money")
@dataclass(frozen=True)
class Money(_PerByte):
    """A currency: ``up`` and ``down`` per byte, ``compute`` per gradient, summed over the clients.

    ``Money(up=5e-9, down=5e-9, compute=1e-5)`` is 5 per gigabyte in each direction. Each option is one number, or one
    per client.
    """


@dataclass(frozen=True)
class WeightedSum(CostModel):
    """A sum of other costs, each times its weight: ``WeightedSum((0.5, LinkTime(...)), (2.0, Money(...)))``."""

    terms: tuple[tuple[float, CostModel], ...]

    def __init__(self, *terms: tuple[float, CostModel]) -> None:
        if not terms:
            raise GradsiftError("a weighted sum needs at least one (weight, cost) pair")
        for term in terms:
            if not (isinstance(term, tuple) and len(term) == 2 and isinstance(term[1], CostModel)):
                raise GradsiftError(f"each term must be a pair (weight, cost), got {term!r}")
            check.real("a weight", term[0], low=0.0)
        object.__setattr__(self, "terms", terms)

    def round_cost(self, traffic: Traffic) -> float:
        """The weighted sum of the costs."""
        return sum(weight * cost.round_cost(traffic) for weight, cost in self.terms)

    @property
    def measured(self) -> bool:
        """Whether any of the costs is."""
        return any(cost.measured for _, cost in self.terms)

    def waiting_cost(self, seconds: float) -> float:
        """The weighted sum of these costs too."""
        return sum(weight * cost.waiting_cost(seconds) for weight, cost in self.terms)
