"""The sparsifiers as the paper words them, in plain Python: the slow obvious twins of ``gradsift.sparsify``.

One client is a list of D floats, a message is a dict from index to value, the server has a list of messages. Loops and
sets, no torch, no checks. ``procedure(name, dim)`` makes one; phases and rounds are those of the fast ones. Sums run in
the order of the clients, as theirs do, so that in float64 both give the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from gradsift.draws import rng
from gradsift.errors import GradsiftError
from gradsift.sparse import Sparse, stack
from gradsift.sparsify.base import Round, Sparsifier

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

    @abstractmethod
    def upload(self, residual: Vector, rnd: Round) -> Message:
        """A_i of one client."""

    def merge(self, uploads: Sequence[Message], share: Sequence[float], rnd: Round) -> Message:
        """B, from the A_i of all clients that took part: everything that anyone sent, where nothing else is said."""
        del rnd
        return aggregate(uploads, share, union(uploads))

    def truncate(self, upload: Message, rnd: Round) -> Message:
        """What one client would have sent in ``rnd``, of a smaller k: the largest of what it sent."""
        return top(upload, rnd.k)

    def probe(self, uploads: Sequence[Message], share: Sequence[float], rnd: Round, probe_k: int) -> Message:
        """B': what ``merge`` would have been had every client sent only what it sends at ``probe_k``."""
        if self.dense:
            raise GradsiftError(f"a dense method has no probe at k' = {probe_k!r}")
        smaller = rnd.at(probe_k)
        return self.merge([self.truncate(upload, smaller) for upload in uploads], share, smaller)

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

    def truncate(self, upload: Message, rnd: Round) -> Message:
        """The first coordinates of the round; how large their values are plays no part."""
        wanted = set(self.coordinates(rnd))
        return {j: value for j, value in upload.items() if j in wanted}

    def coordinates(self, rnd: Round) -> list[int]:
        """This round's coordinates, in the random order of its pass."""
        passes, start = divmod(rnd.offset, self.dim)
        order: list[int] = rng(rnd.seed, "permutation", number=passes).permutation(self.dim).tolist()
        return order[start : start + rnd.k]


class SendAll(Procedure):
    """Section V-A, item 5; and the exchanges of FedAvg, item 4, whose local steps are no matter of a sparsifier."""

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
    "fedavg": SendAll,
    "send-all": SendAll,
}


def procedure(name: str, dim: int) -> Procedure:
    """The twin of the sparsifier called ``name``, for vectors of ``dim`` elements."""
    return PROCEDURES[name](dim)


class Literal(Sparsifier):
    """A procedure as a sparsifier: tensors in, tensors out."""

    def __init__(self, name: str) -> None:
        self.kind = PROCEDURES[name]
        vars(self).update(name=name, dense=self.kind.dense)

    def upload(self, residual: Tensor, rnd: Round) -> Sparse:
        """A_i of one client [D]."""
        return as_sparse(self.kind(len(residual)).upload(residual.tolist(), rnd), len(residual))

    def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """B, from the A_i [N, k] of all clients that took part."""
        return as_sparse(self.kind(uploads.dim).merge(as_messages(uploads), share.tolist(), rnd), uploads.dim)

    def truncate(self, uploads: Sparse, rnd: Round) -> Sparse:
        """What the clients would have sent in ``rnd``."""
        procedure, each = self.kind(uploads.dim), rnd.client_k or [rnd.k] * len(uploads.indices)
        cut = [procedure.truncate(sent, rnd.at(k)) for sent, k in zip(as_messages(uploads), each, strict=True)]
        return stack([as_sparse(message, uploads.dim) for message in cut])

    def settle(self, residual: Tensor, upload: Sparse, merged: Sparse) -> Tensor:
        """One client's residual [D] after the round."""
        settled = self.kind(upload.dim).settle(residual.tolist(), as_message(upload), as_message(merged))
        return torch.tensor(settled, dtype=residual.dtype)


def as_sparse(message: Message, dim: int) -> Sparse:
    """A message as tensors, in double precision."""
    values = torch.tensor(list(message.values()), dtype=torch.float64)
    return Sparse(torch.tensor(list(message), dtype=torch.int64), values, dim)


def as_message(sparse: Sparse) -> Message:
    """One message [k] as a dict, without padding."""
    pairs = zip(sparse.indices.tolist(), sparse.values.tolist(), strict=True)
    return {index: value for index, value in pairs if index < sparse.dim}


def as_messages(uploads: Sparse) -> list[Message]:
    """Messages [N, k] as dicts."""
    rows = zip(uploads.indices, uploads.values, strict=True)
    return [as_message(Sparse(indices, values, uploads.dim)) for indices, values in rows]
