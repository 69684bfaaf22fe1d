"""What a controller is: numbers in, numbers out, state in, state out. Nothing here knows tensors, models or costs.

A state is a dict of JSON values, so a checkpoint is ``json.dumps(state)``. Every draw is keyed by (seed, purpose,
round), so proposing twice for one round proposes the same.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypedDict, TypeVar

from gradsift.check import integer, real
from gradsift.errors import GradsiftError

S = TypeVar("S")


K = float | tuple[float, ...]  # one number for all clients, or one for each of them


class Proposal(NamedTuple):
    """How many elements to send in round ``number``: real numbers, which the driver rounds (Definition 2)."""

    number: int
    k: K
    probe_k: K | None = None  # k' of the probe; None: this controller needs none
    memo: dict[str, float] = {}  # noqa: RUF012  (never written to) what the controller needs back with the answer

    def recall(self, what: str) -> float:
        """What the controller left in the memo; a proposal without it was not made by it."""
        if what not in self.memo:
            raise GradsiftError(f"the proposal of round {self.number} has no {what!r} in its memo: {self.memo!r}")
        return self.memo[what]


class Observation(NamedTuple):
    """What became of a proposal. It may arrive a round late: it carries the proposal that it answers.

    The losses are averages over the clients' samples. All three None: nobody could report any. ``used_k`` and
    ``used_probe_k`` are the integers that were used, where the driver rounded.
    """

    proposal: Proposal
    cost: float  # theta(k) of the round
    probe_cost: float | None = None  # theta(k'), had the round been run at k'
    loss_before: float | None = None
    loss_after: float | None = None
    loss_probe: float | None = None
    used_k: int | None = None  # of clients with different ones, the largest
    used_probe_k: int | None = None

    def as_json(self) -> list[Any]:
        """JSON values that ``from_json`` turns back."""
        return [list(self.proposal), *self[1:]]

    @classmethod
    def from_json(cls, values: list[Any]) -> "Observation":
        """What ``as_json`` gave."""
        number, k, probe_k, memo = values[0]
        return cls(Proposal(number, _k(k), _k(probe_k), memo), *values[1:])

    def validate(self, probes: bool) -> None:
        """Refuse what is not finite, and a probing controller's observation without its probe."""
        if not isinstance(self.proposal, Proposal):
            raise GradsiftError(f"an observation answers a Proposal, got {self.proposal!r}")
        integer("round number", self.proposal.number, 1)
        real("cost", self.cost, low=0)
        if self.probe_cost is not None:
            real("probe_cost", self.probe_cost, low=0)
        losses = {"loss_before": self.loss_before, "loss_after": self.loss_after, "loss_probe": self.loss_probe}
        for name, loss in losses.items():
            if loss is not None:
                real(name, loss)
        for name, used in (("used_k", self.used_k), ("used_probe_k", self.used_probe_k)):
            if used is not None:
                integer(name, used, 1)
        if (self.loss_before is None) != (self.loss_after is None):
            raise GradsiftError(
                f"loss_before and loss_after go together, got {self.loss_before!r}, {self.loss_after!r}"
            )
        if probes and self.loss_before is not None and (self.loss_probe is None or self.probe_cost is None):
            raise GradsiftError(
                f"the probe was not observed: loss_probe = {self.loss_probe!r}, probe_cost = {self.probe_cost!r}"
            )


def _k(read: Any) -> Any:
    return tuple(read) if isinstance(read, list) else read


class Controller(ABC, Generic[S]):
    """How many elements to send. A new one defines ``init``, ``propose`` and ``update``.

    Input is trusted: drivers check what they pass; ``gradsift.controller(name)`` checks every call.
    """

    name: ClassVar[str] = ""
    probes: ClassVar[bool] = False  # wants the round also at k' < k
    learns: ClassVar[bool] = True  # wants the losses; a driver need not take them for one that does not
    varies: ClassVar[bool] = True  # may propose another k in another round; dense sparsifiers take none that does

    @abstractmethod
    def init(self, dim: int, seed: int = 0) -> S:
        """The state before the first round, for vectors of ``dim`` elements."""

    @abstractmethod
    def propose(self, state: S, number: int) -> Proposal:
        """k (and k') for round ``number``, counted from 1."""

    @abstractmethod
    def update(self, state: S, seen: Observation) -> S:
        """The state after learning what became of a proposal; ``state`` itself is left as it was."""

    def search_interval(self, state: S) -> tuple[float, float] | None:
        """The interval that is being searched now, for whoever wants to show it; None: there is none."""
        del state
        return None

    def largest_k(self, dim: int) -> float:
        """The largest k that any round may propose: a driver makes room for it."""
        return float(dim)


class Interval(TypedDict):
    """The part of a state that every searching controller has: the interval K, and where in it the search is."""

    low: float
    high: float
    k: float


@dataclass(frozen=True)
class Search:
    """The options of every controller that searches an interval [k_min, k_max].

    Left out: k_min is max(2, 0.002 dim), as in the paper's experiments; k_max is dim; k_init, which the paper does not
    give, is the middle.
    """

    k_min: float | None = None
    k_max: float | None = None
    k_init: float | None = None

    lowest: ClassVar[float] = 1.0  # the least k_min that makes sense: 2 where there must be a k' below k

    def __post_init__(self) -> None:
        """Refuse options that no dim can make right."""
        for name in ("k_min", "k_max", "k_init"):
            value = getattr(self, name)
            if value is not None:
                real(name, value, low=self.lowest)
        if self.k_min is not None and self.k_max is not None and self.k_min > self.k_max:
            raise GradsiftError(f"k_min must not exceed k_max, got {self.k_min!r} > {self.k_max!r}")

    def search_interval(self, state: Any) -> tuple[float, float] | None:
        """K, as it is now."""
        return state["low"], state["high"]

    def largest_k(self, dim: int) -> float:
        """k_max."""
        return float(dim) if self.k_max is None else float(self.k_max)

    def interval(self, dim: int) -> Interval:
        """The search interval and the first k for vectors of ``dim`` elements."""
        low = max(2.0, 0.002 * dim) if self.k_min is None else float(self.k_min)
        high = self.largest_k(dim)
        for name, given in (("k_min", self.k_min), ("k_max", self.k_max)):
            if given is not None and given > dim:
                raise GradsiftError(f"{name} must be at most D = {dim}, got {given!r}")
        if not low <= high <= dim:
            raise GradsiftError(f"no search interval: k_min = {low!r}, k_max = {high!r}, dim = {dim}")
        k = (low + high) / 2 if self.k_init is None else float(self.k_init)
        if not low <= k <= high:
            raise GradsiftError(f"k_init must be in [{low!r}, {high!r}], got {k!r}")
        return Interval(low=low, high=high, k=k)


def project(k: float, low: float, high: float) -> float:
    """P_K: the point of [low, high] nearest to k."""
    return min(max(k, low), high)
