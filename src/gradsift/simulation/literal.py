"""The sparsifiers as the paper words them, in plain Python: the slow obvious twins of ``gradsift.sparsify``.

One client is a list of D floats, a message is a dict from index to value, the server has a list of messages. Loops and
sets, no torch, no checks. ``procedure(name, dim)`` makes one; phases and rounds are those of the fast ones. Sums run in
the order of the clients, as theirs do, so that in float64 both give the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from gradsift.draws import rng
from gradsift.errors import GradsiftError
from gradsift.round import Round

Vector = list[float]
Message = dict[int, float]


def by_rank(message: Message) -> list[int]:
    """The indices of a message, largest absolute value first, of equal ones the lowest index first."""
    return sorted(message, key=lambda j: (-abs(message[j]), j))


def top(message: Message, k: int) -> Message:
    """The first k elements of a message by rank."""
    return {j: message[j] for j in by_rank(message)[:k]}


def aggregate(uploads: Sequence[Message], share: Sequence[float], chosen: set[int]) -> Message:
    """b_j = (1/C) sum_i C_i a_ij [j in J_i] for each j in ``chosen``."""
    merged: Message = {}
    for j in sorted(chosen):
        total = 0.0
        for i, upload in enumerate(uploads):
            if j in upload:
                total += share[i] * upload[j]
        merged[j] = total
    return merged


def union(uploads: Sequence[Message]) -> set[int]:
    """Every index that anyone sent."""
    return {j for upload in uploads for j in upload}


class Procedure(ABC):
    """One method, for vectors of ``dim`` elements: what a client sends, the server sends back, the client forgets."""

    dense: ClassVar[bool] = False

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def point(self, weights: Vector, residual: Vector, lr: float) -> Vector:
        """Where one client takes its gradient."""
        del residual, lr
        return list(weights)

    @abstractmethod
    def upload(self, residual: Vector, rnd: Round) -> Message:
        """A_i of one client."""

    def merge(self, uploads: Sequence[Message], share: Sequence[float], rnd: Round) -> Message:
        """B, from the A_i of all clients that took part: everything that anyone sent, where nothing else is said."""
        del rnd
        return aggregate(uploads, share, union(uploads))

    def probe(self, uploads: Sequence[Message], share: Sequence[float], rnd: Round, probe_k: int) -> Message:
        """B': what ``merge`` would have been had every client sent only its ``probe_k`` largest."""
        if self.dense:
            raise GradsiftError(f"a dense method has no probe at k' = {probe_k!r}")
        return self.merge([top(upload, probe_k) for upload in uploads], share, rnd._replace(k=probe_k))

    def settle(self, residual: Vector, upload: Message, merged: Message) -> Vector:
        """One client's residual after the round.

        The paper sets a_ij to zero for j in J and J_i. Subtracting what was sent is the same where the value arrived
        as it was and no gradient came since, and loses nothing where not.
        """
        return [a - upload[j] if j in upload and j in merged else a for j, a in enumerate(residual)]


class _TopK(Procedure):
    def upload(self, residual: Vector, rnd: Round) -> Message:
        """The k largest absolute values."""
        return top(dict(enumerate(residual)), rnd.k)


class FabTopK(_TopK):
    """Section III-B, "Fairness-Aware Gradient Element Selection"."""

    def merge(self, uploads: Sequence[Message], share: Sequence[float], rnd: Round) -> Message:
        """Find kappa by binary search, take the union of everyone's top kappa, fill up to k."""
        return aggregate(uploads, share, self.select(uploads, rnd.k))

    @staticmethod
    def select(uploads: Sequence[Message], k: int) -> set[int]:
        """J."""
        ranked = [by_rank(upload) for upload in uploads]

        def union_of_top(kappa: int) -> set[int]:
            return {j for ranks in ranked for j in ranks[:kappa]}

        # |union| <= k at kappa and > k at kappa + 1; no upload has more than k elements, so kappa <= k.
        kappa, too_many = 0, k + 1
        while too_many - kappa > 1:
            middle = (kappa + too_many) // 2
            if len(union_of_top(middle)) <= k:
                kappa = middle
            else:
                too_many = middle

        selected = union_of_top(kappa)
        candidates = union_of_top(kappa + 1) - selected

        def size(j: int) -> float:  # |a_ij| where j has rank kappa + 1; a candidate has it with one client at least
            return max(
                abs(upload[j]) for upload, at in zip(uploads, ranked, strict=True) if at[kappa : kappa + 1] == [j]
            )

        fill = sorted(candidates, key=lambda j: (-size(j), j))
        return selected | set(fill[: k - len(selected)])


class FubTopK(_TopK):
    """Section V-A, item 2."""

    def merge(self, uploads: Sequence[Message], share: Sequence[float], rnd: Round) -> Message:
        """The k largest |b_j| of the aggregate."""
        return top(aggregate(uploads, share, union(uploads)), rnd.k)


class UnidirectionalTopK(_TopK):
    """Section V-A, item 1: the downlink is not limited."""


class PeriodicK(Procedure):
    """Section V-A, item 3: the next k coordinates of a random order, or what a pass over all of them has left."""

    def upload(self, residual: Vector, rnd: Round) -> Message:
        """The accumulated gradient there."""
        return {j: residual[j] for j in self.coordinates(rnd)}

    def probe(self, uploads: Sequence[Message], share: Sequence[float], rnd: Round, probe_k: int) -> Message:
        """The first ``probe_k`` coordinates of the round; how large their values are plays no part."""
        wanted = self.coordinates(rnd._replace(k=probe_k))
        return aggregate(uploads, share, union(uploads) & set(wanted))

    def coordinates(self, rnd: Round) -> list[int]:
        """This round's coordinates, in the random order of its pass."""
        passes, start = divmod(rnd.offset, self.dim)
        order: list[int] = rng(rnd.seed, "permutation", number=passes).permutation(self.dim).tolist()
        return order[start : start + rnd.k]


class FedAvg(Procedure):
    """Section V-A, item 4: the whole drift since the last exchange, every floor(D / (2k)) rounds."""

    dense = True

    def point(self, weights: Vector, residual: Vector, lr: float) -> Vector:
        """The client's own weights, after the local steps since the last exchange."""
        return [w - lr * a for w, a in zip(weights, residual, strict=True)]

    def upload(self, residual: Vector, rnd: Round) -> Message:
        """Everything in the last round of a period, nothing before."""
        period = max(1, self.dim // (2 * rnd.k))
        return dict(enumerate(residual)) if rnd.number % period == 0 else {}


class SendAll(Procedure):
    """Section V-A, item 5."""

    dense = True

    def upload(self, residual: Vector, rnd: Round) -> Message:
        """Everything."""
        del rnd
        return dict(enumerate(residual))


PROCEDURES: dict[str, type[Procedure]] = {
    "fab-top-k": FabTopK,
    "fub-top-k": FubTopK,
    "unidirectional-top-k": UnidirectionalTopK,
    "periodic-k": PeriodicK,
    "fedavg": FedAvg,
    "send-all": SendAll,
}


def procedure(name: str, dim: int) -> Procedure:
    """The twin of the sparsifier called ``name``, for vectors of ``dim`` elements."""
    return PROCEDURES[name](dim)
