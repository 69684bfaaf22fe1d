"""What a sparsifier is: three phases, because a client may forget an element only after it learns that it was kept.

Shapes: residual [N, D] or [D]; upload [N, k] or [k]; share [N]; merged and probed [k].
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gradsift import check
from gradsift.errors import GradsiftError
from gradsift.local import LocalComputation, OneGradient
from gradsift.sparse import Ragged, Sparse, Whole, kept, largest, members, top_k


class Round(NamedTuple):
    """What a sparsifier may know of the round it works in."""

    number: int  # m, counted from 1
    k: int  # elements that a client sends and receives; of clients that send different numbers, the largest
    seed: int = 0
    offset: int = 0  # elements sent by each client in all earlier rounds: where periodic-k continues
    client_k: tuple[int, ...] | None = None  # how many each row sends, where they differ

    @property
    def sizes(self) -> int | tuple[int, ...]:
        """How many elements each row sends: one number for all, or one for each."""
        return self.k if self.client_k is None else self.client_k

    def at(self, k: int | Sequence[int]) -> "Round":
        """The same round with another k."""
        if isinstance(k, Sequence):
            return self._replace(k=max(k), client_k=tuple(k))
        return self._replace(k=k, client_k=None)

    def rows(self, part: slice) -> "Round":
        """The same round for some of its clients."""
        return self if self.client_k is None else self.at(self.client_k[part])

    def validate(self, dim: int) -> None:
        """Refuse a round that cannot be for vectors of ``dim`` elements."""
        check.integer("round number", self.number, 1)
        check.integer("k", self.k, 1, dim)
        check.integer("seed", self.seed, 0, 2**64 - 1)
        check.integer("offset", self.offset, 0)
        if self.client_k is None:
            return
        for client, k in enumerate(self.client_k):
            check.integer(f"k of client {client}", k, 1, self.k)
        if self.k not in self.client_k:
            raise GradsiftError(f"k must be the largest of {list(self.client_k)}, got {self.k!r}")


class Sparsifier(ABC):
    """Which elements of the accumulated gradients travel in a round.

    A new method defines ``upload`` and ``merge``, and ``truncate`` where the elements that it would have sent at a
    smaller k are not the largest of those it sent. Input is trusted: drivers check once, where data comes in;
    ``gradsift.sparsifier(name)`` checks every call.
    """

    name: ClassVar[str] = ""
    dense: ClassVar[bool] = False  # messages are whole vectors: no index is sent or charged, fixed k only, no probe
    local: ClassVar[LocalComputation] = OneGradient()  # that goes with it where none is named

    @abstractmethod
    def upload(self, residual: Tensor, rnd: Round) -> Sparse:
        """A_i: what each client sends of its accumulated gradient, at most k elements (a dense method: all)."""

    @abstractmethod
    def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """B: what the server sends back, each element the share-weighted sum of what was sent of it.

        ``uploads`` is [N, k]; the result must not depend on the order inside a row.
        """

    def probe(self, uploads: Sparse, share: Tensor, rnd: Round, probe_k: int | Sequence[int]) -> Sparse:
        """B': the merge as it would have been at ``probe_k`` < k, from the same uploads."""
        smaller = rnd.at(probe_k)
        return self.merge(self.truncate(uploads, smaller), share, smaller)

    def settle(self, residual: Tensor, upload: Sparse, merged: Sparse) -> Tensor:
        """The residual less the transmitted value of every element that was both sent and kept.

        ``residual`` itself may be changed: go on with what is returned.
        """
        if isinstance(upload, Whole):
            return residual.sub_(upload.values.to(residual).where(members(merged.indices, upload.dim), 0))
        gone = upload.values.to(residual) * kept(upload, merged)
        indices = upload.indices.clamp(max=upload.dim - 1) if isinstance(upload, Ragged) else upload.indices
        return residual.scatter_add_(-1, indices, -gone)

    def truncate(self, uploads: Sparse, rnd: Round) -> Sparse:
        """What the clients would have sent in ``rnd``, of a smaller k: by default the largest elements they sent."""
        return largest(uploads, rnd.sizes)

    def upload_size(self, dim: int, rnd: Round) -> int:
        """How many elements each client sends, which must not depend on its data: by default tried out on zeros."""
        return self.upload(torch.zeros(dim), rnd).size

    def coordinates(self, dim: int, rnd: Round) -> Tensor | None:
        """The indices of every upload of a round, where they follow from the round; None: each client chooses."""
        del dim, rnd
        return None


class TopKUpload(Sparsifier):
    """A sparsifier whose clients send the k largest elements of what they have accumulated."""

    def upload(self, residual: Tensor, rnd: Round) -> Sparse:
        """J_i: the top k of each accumulated gradient."""
        return top_k(residual, rnd.sizes)

    def upload_size(self, dim: int, rnd: Round) -> int:
        """k, without a look at D elements."""
        del dim
        return rnd.k
