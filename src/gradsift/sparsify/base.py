"""The interface of a sparsifier: upload, merge and settle.

A client may subtract an element from its residual only after it learns that the server kept the element.

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
    """What a sparsifier may know of a round."""

    number: int  # m, counted from 1
    k: int  # elements that a client sends and receives; the largest, if k differs between clients
    seed: int = 0
    offset: int = 0  # elements sent by each client in all earlier rounds, from which periodic-k continues
    client_k: tuple[int, ...] | None = None  # the k of each row, if k differs between clients

    @property
    def sizes(self) -> int | tuple[int, ...]:
        """The number of elements that each row sends: one number for all rows, or one per row."""
        return self.k if self.client_k is None else self.client_k

    def at(self, k: int | Sequence[int]) -> "Round":
        """The same round with another k."""
        if isinstance(k, Sequence):
            return self._replace(k=max(k), client_k=tuple(k))
        return self._replace(k=k, client_k=None)

    def validate(self, dim: int) -> None:
        """Refuse values that are impossible for vectors of ``dim`` elements."""
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
    """Chooses which elements of the accumulated gradients are sent in a round.

    A new one defines ``upload`` and ``merge``, and also ``truncate`` unless its upload at a smaller k is the largest
    elements of its upload at k. Arguments are not checked: drivers check data once, when it comes in, and
    ``gradsift.sparsifier(name)`` checks every call.
    """

    name: ClassVar[str] = ""
    dense: ClassVar[bool] = False  # whether messages are full vectors: without indices, with a fixed k, without a probe
    local: ClassVar[LocalComputation] = OneGradient()  # the default local computation of a method with this sparsifier

    @abstractmethod
    def upload(self, residual: Tensor, rnd: Round) -> Sparse:
        """A_i: the elements of its accumulated gradient that each client sends, at most k unless it is dense."""

    @abstractmethod
    def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """B: the elements that the server sends back, each the share-weighted sum of the clients' values.

        ``uploads`` is [N, k]; the result must not depend on the order inside a row.
        """

    def probe(self, uploads: Sparse, share: Tensor, rnd: Round, probe_k: int | Sequence[int]) -> Sparse:
        """B': the result of ``merge`` if the round had used ``probe_k`` < k, from the same uploads."""
        smaller = rnd.at(probe_k)
        return self.merge(self.truncate(uploads, smaller), share, smaller)

    def settle(self, residual: Tensor, upload: Sparse, merged: Sparse) -> Tensor:
        """The residual minus the received value of every element that was both sent and kept.

        ``residual`` itself may be changed: use the returned tensor.
        """
        if isinstance(upload, Whole):
            return residual.sub_(upload.values.to(residual).where(members(merged.indices, upload.dim), 0))
        settled = upload.values.to(residual) * kept(upload, merged)
        indices = upload.indices.clamp(max=upload.dim - 1) if isinstance(upload, Ragged) else upload.indices
        return residual.scatter_add_(-1, indices, -settled)

    def truncate(self, uploads: Sparse, rnd: Round) -> Sparse:
        """The uploads as they would be in ``rnd``, which has a smaller k: by default their largest elements."""
        return largest(uploads, rnd.sizes)

    def upload_size(self, dim: int, rnd: Round) -> int:
        """The number of elements that each client sends, whatever its data: by default that of an upload of zeros."""
        return self.upload(torch.zeros(dim), rnd).size

    def coordinates(self, dim: int, rnd: Round) -> Tensor | None:
        """The indices of all uploads of a round if they depend only on the round, or None if clients choose them."""
        del dim, rnd
        return None


class TopKUpload(Sparsifier):
    """A sparsifier whose clients send the k largest elements of their accumulated gradients."""

    def upload(self, residual: Tensor, rnd: Round) -> Sparse:
        """A_i: the k largest elements of each accumulated gradient."""
        return top_k(residual, rnd.sizes)

    def upload_size(self, dim: int, rnd: Round) -> int:
        """k."""
        del dim
        return rnd.k
