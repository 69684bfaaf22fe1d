"""theta_m(k): what a round costs, computation plus communication, from what was sent in it.

A cost model sees a ``Traffic`` and returns one number; the controller that minimises it never knows which model it was.
Times are those of the slowest client that took part; energy and money are sums over the clients. Rates are one number
for all clients, or a sequence with one for each. Bytes are bytes, not bits: 1 Mbit/s is 125,000 bytes a second.
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

NUMBER_BYTES = 4  # of an index and of a value, where no codec says otherwise


class Traffic(NamedTuple):
    """What each of N clients sent and received in one round, or would have at k'."""

    dim: int
    took_part: NDArray[np.bool_]  # [N]: computed a gradient and was merged
    up_numbers: Floats  # [N]: a sparse element is two numbers, index and value; a dense one is one
    down_numbers: Floats
    up_bytes: Floats
    down_bytes: Floats
    steps: int = 1  # gradients that each client that took part computed

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
    ) -> "Traffic":
        """The traffic of a round in which each client sent ``up`` and received ``down`` elements.

        Counts are one number for all clients or one for each. ``took_part`` (or just the number of ``clients``) says
        who computed and sent; the others only receive what keeps their weights equal. ``probe`` is the size of the
        probe's message, where it is charged. ``buffers`` are numbers that travel dense beside the elements, up and
        down. ``implied_indices``: both sides know the indices, so only values travel. ``dense_fallback``: a message
        counts as dense where that is smaller. ``up_bytes`` and ``down_bytes`` are encoded sizes, in place of 4 bytes a
        number. ``steps`` are the gradients that each client computed.
        """
        present = _present(took_part, clients)
        check.integer("dim", dim, 1)
        check.integer("steps", steps, 1)

        def each(name: str, count: ArrayLike) -> Floats:
            counts = _floats(name, count)
            if counts.ndim > 1 or (counts.ndim == 1 and len(counts) != len(present)):
                raise GradsiftError(f"{name} must be one number or {len(present)}, got shape {list(counts.shape)}")
            if not (np.isfinite(counts).all() and (counts >= 0).all()):
                raise GradsiftError(f"{name} must be finite and not negative, got {count!r}")
            return np.broadcast_to(counts, present.shape)

        def numbers(elements: Floats) -> Floats:
            if (elements > dim).any():
                raise GradsiftError(f"{elements.max():g} elements in a message about {dim}")
            if dense or implied_indices:
                return elements
            return np.minimum(2 * elements, dim) if dense_fallback else 2 * elements

        extra = each("buffers", buffers)
        up_numbers = (numbers(each("up", up)) + extra) * present
        down_numbers = numbers(each("down", down)) + numbers(each("probe", probe)) + extra
        sent = up_numbers * NUMBER_BYTES if up_bytes is None else each("up_bytes", up_bytes) * present
        received = down_numbers * NUMBER_BYTES if down_bytes is None else each("down_bytes", down_bytes)
        return cls(dim, present, up_numbers, down_numbers, sent, received, steps)


def _present(took_part: ArrayLike | None, clients: int | None) -> NDArray[np.bool_]:
    """[N] who took part: as given, or all of so many clients."""
    if took_part is None:
        if clients is None:
            raise GradsiftError("traffic needs took_part, or the number of clients")
        check.integer("clients", clients, 1)
        return np.ones(clients, dtype=bool)
    present = np.asarray(took_part)
    if present.ndim != 1 or not present.any():
        raise GradsiftError(f"no clients: took_part is {present.tolist()}")
    if present.dtype != np.bool_:  # a list of client numbers, say
        raise GradsiftError(f"took_part must be True or False for each client, got {present.tolist()}")
    if clients is not None and clients != len(present):
        raise GradsiftError(f"took_part is of {len(present)} clients, not of {clients}")
    return present


class CostModel(ABC):
    """Anything that prices a round. A new one defines ``round_cost``."""

    name: ClassVar[str] = ""

    @abstractmethod
    def round_cost(self, traffic: Traffic) -> float:
        """Computation plus communication of this round."""


_REGISTRY: Registry[CostModel] = Registry("cost", CostModel)  # type: ignore[type-abstract]
register_cost_model = _REGISTRY.register
describe = _REGISTRY.describe
cost_models = _REGISTRY.names


def cost_model(name: str, **options: Any) -> CostModel:
    """The cost model called ``name``, such as ``"link-time"``; ``cost_models()`` lists them."""
    return _REGISTRY.make(name, **options)


def _floats(name: str, value: ArrayLike) -> Floats:
    """``value`` as an array; "3" and None are no numbers."""
    array = np.asarray(value)
    if array.size and array.dtype.kind not in "iuf":
        raise GradsiftError(f"{name} must be one number or one a client, got {value!r}")
    return array.astype(np.float64)


def _rates(model: Any, *names: str, positive: bool = False) -> None:
    """Refuse options that are not finite and non-negative (``positive``: above zero): numbers, or one a client."""
    for name in names:
        value = getattr(model, name)
        array = _floats(name, value)
        if array.ndim > 1 or not np.isfinite(array).all() or (array < 0).any() or (positive and (array == 0).any()):
            bound = "positive" if positive else "not negative"
            raise GradsiftError(f"{name} must be finite and {bound}, one number or one a client, got {value!r}")


def _each(name: str, value: float | Sequence[float], traffic: Traffic) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 1 and len(array) != len(traffic.took_part):
        raise GradsiftError(f"{name} is given for {len(array)} clients, the round has {len(traffic.took_part)}")
    return np.broadcast_to(array, traffic.took_part.shape)


Rate = float | Sequence[float]  # one for all clients, or one each


@register_cost_model("normalized-time")
@dataclass(frozen=True)
class NormalizedTime(CostModel):
    """The paper's clock (Section V): one gradient is 1, a full dense exchange, up and down, is ``comm_time`` (beta).

    Times have no unit: both are multiples of what one computation takes, unless ``comp_time`` says otherwise.
    A k-element round is 1 + comm_time * (k_up + k_down) / D, since each sparse element is two numbers and the full
    exchange is 2D of them.
    """

    comm_time: float
    comp_time: float = 1.0

    def __post_init__(self) -> None:
        """Refuse times below zero."""
        check.real("comm_time", self.comm_time, low=0.0)
        check.real("comp_time", self.comp_time, low=0.0)

    def round_cost(self, traffic: Traffic) -> float:
        """comp_time + comm_time * numbers / 2D, for the client with the most of them."""
        numbers = (traffic.up_numbers + traffic.down_numbers)[traffic.took_part]
        return float(self.comp_time * traffic.steps + self.comm_time * numbers.max() / (2 * traffic.dim))


@register_cost_model("link-time")
@dataclass(frozen=True)
class LinkTime(CostModel):
    """Seconds: computation, then latency + bytes / bandwidth for each message, of the slowest client of the round.

    ``LinkTime(up_bandwidth=1e5, down_bandwidth=1e6, latency=0.05, compute=0.2)``: bandwidths in bytes a second,
    ``latency`` in seconds a message, ``compute`` in seconds a gradient; each one number, or one a client.
    """

    up_bandwidth: Rate  # bytes a second
    down_bandwidth: Rate  # bytes a second
    latency: Rate = 0.0  # seconds a message
    compute: Rate = 0.0  # seconds a gradient

    def __post_init__(self) -> None:
        """Refuse bandwidths that are not above zero, and times below it."""
        _rates(self, "up_bandwidth", "down_bandwidth", positive=True)
        _rates(self, "latency", "compute")

    def round_cost(self, traffic: Traffic) -> float:
        """The maximum over the clients that took part; an empty message costs nothing, not even latency."""
        latency = _each("latency", self.latency, traffic)
        seconds = _each("compute", self.compute, traffic) * traffic.steps
        for sent, name, bandwidth in (
            (traffic.up_bytes, "up_bandwidth", self.up_bandwidth),
            (traffic.down_bytes, "down_bandwidth", self.down_bandwidth),
        ):
            seconds += np.where(sent > 0, latency + sent / _each(name, bandwidth, traffic), 0.0)
        return float(seconds[traffic.took_part].max())


@dataclass(frozen=True)
class _PerByte(CostModel):
    """So much a byte up, a byte down and a client's computation, summed over all clients."""

    up: Rate  # for each byte sent
    down: Rate  # for each byte received
    compute: Rate = 0.0  # for each gradient that a client computed

    def __post_init__(self) -> None:
        """Refuse rates below zero."""
        _rates(self, "up", "down", "compute")

    def round_cost(self, traffic: Traffic) -> float:
        """The sum over the clients; those that did not take part still receive."""
        total = (
            _each("up", self.up, traffic) * traffic.up_bytes + _each("down", self.down, traffic) * traffic.down_bytes
        )
        return float((total + _each("compute", self.compute, traffic) * traffic.steps * traffic.took_part).sum())


@register_cost_model("energy")
@dataclass(frozen=True)
class Energy(_PerByte):
    """Joules: ``up`` and ``down`` a byte, ``compute`` a gradient, summed over the clients.

    ``Energy(up=3.5e-6, down=4.2e-7, compute=0.5)`` is LTE at 3.5 and 0.42 microjoules a byte, and half a joule to
    compute; each one number, or one a client.
    """


@register_cost_model("money")
@dataclass(frozen=True)
class Money(_PerByte):
    """A currency: ``up`` and ``down`` a byte, ``compute`` a gradient, summed over the clients.

    ``Money(up=5e-9, down=5e-9, compute=1e-5)`` is 5 a gigabyte either way; each one number, or one a client.
    """


@dataclass(frozen=True)
class WeightedSum(CostModel):
    """``WeightedSum((0.5, LinkTime(...)), (2.0, Money(...)))``: a sum of other costs, each times its weight."""

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
        """The sum."""
        return sum(weight * cost.round_cost(traffic) for weight, cost in self.terms)
