"""The interface of a controller, which chooses k: it works with numbers only, not with tensors, models or cost models.

A state is a dict of JSON values, so a checkpoint is ``json.dumps(state)``. Random draws are keyed by (seed, purpose,
round), so two proposals for one round are the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypedDict, TypeVar

from gradsift.check import integer, real
from gradsift.control.law import Prices
from gradsift.errors import GradsiftError

S = TypeVar("S")
K = float | tuple[float, ...]  # one number for all clients, or one per client


class Proposal(NamedTuple):
    """How many elements to send in round ``number``: real numbers, which the driver rounds (Definition 2)."""

    number: int
    k: K
    probe_k: K | None = None  # k', or None if the controller does not probe
    memo: dict[str, float] = {}  # noqa: RUF012  (never written to) values that the controller needs with the observation

    def plain(self) -> "Proposal":
        """The proposal with Python's own numbers, which a record can hold; refuses k that are not finite numbers."""
        if not isinstance(self, Proposal):
            raise GradsiftError(f"a controller must propose a Proposal, got {self!r}")
        probe_k = None if self.probe_k is None else _plain("k'", self.probe_k)
        return self._replace(k=_plain("k", self.k), probe_k=probe_k)

    def recall(self, key: str) -> float:
        """A value from the memo; an error if another controller made this proposal."""
        if key not in self.memo:
            raise GradsiftError(f"the proposal of round {self.number} has no {key!r} in its memo: {self.memo!r}")
        return self.memo[key]


def _plain(name: str, k: K) -> K:
    if isinstance(k, tuple) and k:
        for number in k:
            real(f"{name} of a client", number)
        return tuple(map(float, k))
    real(name, k)
    return k if isinstance(k, int | float) else float(k)  # type: ignore[arg-type]  # a number of numpy


class Observation(NamedTuple):
    """The cost and the losses of a round. It may arrive a round late, so it includes the proposal of its round.

    The losses are means over the clients' samples, and None if no client could report any.
    """

    proposal: Proposal
    cost: float  # theta(k) of the round
    probe_cost: float | None = None  # theta(k'), the cost of the same round at k'
    loss_before: float | None = None
    loss_after: float | None = None
    loss_probe: float | None = None  # after the same round at k'
    used_k: int | None = None  # k as the driver rounded it; the largest, if k differs between clients
    used_probe_k: int | None = None
    took_part: float = 1.0  # the part of the clients that took part
    waiting: float | None = None  # mass left in their residuals over the mass sent: how many exchanges it waits
    agreement: float | None = None  # what they held where something was sent, over what was sent

    def seen(self, numbers: Mapping[str, float]) -> "Observation":
        """The observation with these ``numbers``, by the names of the fields."""
        return self._replace(**numbers)  # type: ignore[arg-type]

    def as_json(self) -> list[Any]:
        """The observation as JSON values, for ``from_json``."""
        return [list(self.proposal), *self[1:]]

    @classmethod
    def from_json(cls, values: list[Any]) -> "Observation":
        """The observation from the values of ``as_json``."""
        number, *ks, memo = values[0]
        k, probe_k = (tuple(k) if isinstance(k, list) else k for k in ks)
        return cls(Proposal(number, k, probe_k, memo), *values[1:])

    def validate(self, probes: bool) -> None:
        """Refuse values that are not finite and, if the controller ``probes``, losses without those of the probe."""
        if not isinstance(self.proposal, Proposal):
            raise GradsiftError(f"proposal must be a Proposal, got {self.proposal!r}")
        integer("round number", self.proposal.number, 1)
        real("cost", self.cost, low=0)
        real("probe_cost", self.probe_cost, low=0, optional=True)
        for name in ("loss_before", "loss_after", "loss_probe"):
            real(name, getattr(self, name), optional=True)
        for name in ("used_k", "used_probe_k"):
            integer(name, getattr(self, name), 1, optional=True)
        real("took_part", self.took_part, 0, 1)
        real("waiting", self.waiting, low=0, optional=True)
        real("agreement", self.agreement, optional=True)
        if (self.loss_before is None) != (self.loss_after is None):
            raise GradsiftError(
                f"loss_before needs loss_after and vice versa, got {self.loss_before!r}, {self.loss_after!r}"
            )
        if probes and self.loss_before is not None and (self.loss_probe is None or self.probe_cost is None):
            raise GradsiftError(
                f"the probe is missing: loss_probe = {self.loss_probe!r}, probe_cost = {self.probe_cost!r}"
            )


class Controller(ABC, Generic[S]):
    """Chooses how many elements to send. A new one defines ``init``, ``propose`` and ``update``.

    Arguments are not checked: drivers check them, and ``gradsift.controller(name)`` checks every call.
    """

    name: ClassVar[str] = ""
    probes: ClassVar[bool] = False  # whether it compares each round with the same round at k' < k
    learns: ClassVar[bool] = True  # whether it needs the losses; if not, a driver does not compute them
    weighs: ClassVar[bool] = False  # whether it needs to know what waits in the residuals
    plans: ClassVar[bool] = False  # whether it needs the prices of rounds: ``priced``
    varies: ClassVar[bool] = True  # whether k may differ between rounds, which dense sparsifiers do not allow

    @abstractmethod
    def init(self, dim: int, seed: int = 0) -> S:
        """The state before the first round, for vectors of ``dim`` elements."""

    @abstractmethod
    def propose(self, state: S, number: int) -> Proposal:
        """k (and k') for round ``number``, counted from 1."""

    @abstractmethod
    def update(self, state: S, seen: Observation) -> S:
        """The state after learning from the observation of a round; ``state`` itself is not changed."""

    def priced(self, state: S, prices: Prices | None) -> S:
        """The state of a controller that plans with the prices of rounds; None if costs are only seen afterwards.

        A driver calls this before the first round, and when the prices change.
        """
        del prices
        return state

    def search_interval(self, state: S) -> tuple[float, float] | None:
        """The interval that is being searched now, for records, or None if the controller does not search."""
        del state
        return None

    def largest_k(self, dim: int) -> float:
        """The largest k that it may propose in any round, from which a driver estimates its memory."""
        return float(dim)


class Interval(TypedDict):
    """The part of the state that all searching controllers have: the interval K and the current k."""

    low: float
    high: float
    k: float


@dataclass(frozen=True)
class Search:
    """The options of every controller that searches an interval [k_min, k_max]."""

    k_min: float | None = None  # None: max(2, 0.002 dim), as in the paper's experiments
    k_max: float | None = None  # None: dim
    k_init: float | None = None  # None: the middle of the interval; the paper does not state one

    lowest: ClassVar[float] = 1.0  # the least valid k_min: 2 for a controller that needs a k' below k

    def __post_init__(self) -> None:
        for name in ("k_min", "k_max", "k_init"):
            real(name, getattr(self, name), low=self.lowest, optional=True)
        if self.k_min is not None and self.k_max is not None and self.k_min > self.k_max:
            raise GradsiftError(f"k_min must not exceed k_max, got {self.k_min!r} > {self.k_max!r}")

    def search_interval(self, state: Any) -> tuple[float, float] | None:
        """K."""
        return state["low"], state["high"]

    def largest_k(self, dim: int) -> float:
        """k_max."""
        return float(dim) if self.k_max is None else float(self.k_max)

    def interval(self, dim: int) -> Interval:
        """The initial interval and k for vectors of ``dim`` elements."""
        low = max(2.0, 0.002 * dim) if self.k_min is None else float(self.k_min)
        high = self.largest_k(dim)
        for name, given in (("k_min", self.k_min), ("k_max", self.k_max)):
            if given is not None and given > dim:
                raise GradsiftError(f"{name} must be at most D = {dim}, got {given!r}")
        if not low <= high <= dim:
            raise GradsiftError(f"the search interval is empty: k_min = {low!r}, k_max = {high!r}, dim = {dim}")
        k = (low + high) / 2 if self.k_init is None else float(self.k_init)
        if not low <= k <= high:
            raise GradsiftError(f"k_init must be in [{low!r}, {high!r}], got {k!r}")
        return Interval(low=low, high=high, k=k)


def project(k: float, low: float, high: float) -> float:
    """P_K: the point of [low, high] nearest to k."""
    return min(max(k, low), high)
