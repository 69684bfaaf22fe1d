"""What a sparsifier is: three phases, because a client may forget an element only after it learns that it was kept.

Shapes: residual [N, D] or [D]; upload [N, k] or [k]; share [N]; merged and probed [k].
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gradsift import check, check_tensors
from gradsift.errors import GradsiftError
from gradsift.round import Round
from gradsift.sparse import Sparse, Whole, largest, members, top_k


class Sparsifier(ABC):
    """One way to compress the exchange of a round.

    The public phases (``upload``, ``merge``, ``probe``, ``settle``) validate, then call the steps below them
    (``choose``, ``combine``, ``preview``, ``forget``), which trust their input: a driver's hot loop may call those and
    check once a round. A new method defines ``choose`` and ``combine``, and ``prefix`` where the elements it would
    have sent at a smaller k are not the largest of those it sent.
    """

    name: ClassVar[str] = ""
    dense: ClassVar[bool] = False  # messages are whole vectors: no index is sent or charged, fixed k only, no probe

    def period(self, dim: int, k: int) -> int:
        """Rounds over which the clients and the step size stay the same; an exchange is due in the last of them."""
        del dim, k
        return 1

    def upload_size(self, dim: int, rnd: Round) -> int:
        """How many elements each client sends, which must not depend on its data: by default tried out on zeros."""
        return self.choose(torch.zeros(dim), rnd).size

    def point(self, weights: Tensor, residual: Tensor, lr: float) -> Tensor:
        """Where a client takes its gradient: [D] for all alike, [N, D] if each has its own weights."""
        del residual, lr
        return weights

    def coordinates(self, dim: int, rnd: Round) -> Tensor | None:
        """The indices of every upload of a round, where they follow from the round; None: each client chooses."""
        del dim, rnd
        return None

    def upload(self, residual: Tensor, rnd: Round) -> Sparse:
        """A_i: what each client sends of its accumulated gradient."""
        check_tensors.residual(residual)
        rnd.validate(residual.shape[-1])
        chosen = self.choose(residual.detach(), rnd)
        if chosen.values.untyped_storage().data_ptr() == residual.untyped_storage().data_ptr():
            # A whole vector: the message must not change while its client goes on accumulating in place.
            return chosen._replace(values=chosen.values.clone())
        return chosen

    def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """B: what the server sends back, each element the share-weighted sum of what was sent of it."""
        uploads = self._checked(uploads, share, rnd)
        return self.combine(uploads, share, rnd)

    def probe(self, uploads: Sparse, share: Tensor, rnd: Round, probe_k: int) -> Sparse:
        """B': the merge as it would have been at ``probe_k`` < k, from the same uploads."""
        if self.dense:
            raise GradsiftError(
                f"{self.name!r} is dense: it has no probe at k' = {probe_k!r}, and takes a fixed k only"
            )
        uploads = self._checked(uploads, share, rnd)
        if rnd.k < 2:
            raise GradsiftError(f"k = {rnd.k} leaves no k' below it to probe")
        check.integer("probe_k", probe_k, 1, rnd.k - 1)
        return self.preview(uploads, share, rnd, probe_k)

    def settle(self, residual: Tensor, upload: Sparse, merged: Sparse) -> Tensor:
        """The residual less the transmitted value of every element that was both sent and kept."""
        check_tensors.residual(residual)
        check_tensors.sparse("upload", upload, rows=True)
        check_tensors.sparse("merged", merged, rows=False)
        if not residual.shape[-1] == upload.dim == merged.dim:
            raise GradsiftError(
                f"dimensions differ: residual {residual.shape[-1]}, upload {upload.dim}, merged {merged.dim}"
            )
        if residual.shape[:-1] != upload.indices.shape[:-1]:
            raise GradsiftError(
                f"residual {list(residual.shape)} and upload {list(upload.indices.shape)} are not of the same clients"
            )
        return self.forget(residual.detach().clone(memory_format=torch.contiguous_format), upload, merged)

    @abstractmethod
    def choose(self, residual: Tensor, rnd: Round) -> Sparse:
        """``upload`` without the checks: at most k elements of each row (a dense method: all or none)."""

    @abstractmethod
    def combine(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """``merge`` without the checks, of uploads [N, k]; it must not depend on the order inside a row."""

    def preview(self, uploads: Sparse, share: Tensor, rnd: Round, probe_k: int) -> Sparse:
        """``probe`` without the checks: what the clients would have sent at ``probe_k``, combined afresh."""
        return self.combine(self.prefix(uploads, rnd, probe_k), share, rnd._replace(k=probe_k))

    def prefix(self, uploads: Sparse, rnd: Round, probe_k: int) -> Sparse:
        """What the clients would have sent at ``probe_k``: by default the largest elements of what they sent."""
        del rnd
        return largest(uploads, probe_k)

    def forget(self, residual: Tensor, upload: Sparse, merged: Sparse) -> Tensor:
        """``settle`` without the checks, in place: ``residual`` itself is changed and returned."""
        kept = members(merged.indices, upload.dim)
        if isinstance(upload, Whole):
            return residual.sub_(upload.values.to(residual).where(kept, 0))
        gone = upload.values.to(residual) * kept[upload.indices]
        return residual.scatter_add_(-1, upload.indices, -gone)

    def _checked(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        check_tensors.sparse("upload", uploads, rows=True)
        rnd.validate(uploads.dim)
        if self.dense and uploads.size not in (0, uploads.dim):
            raise GradsiftError(f"{self.name!r} is dense: an upload of {uploads.size} of {uploads.dim} elements is not")
        if not self.dense and uploads.size > rnd.k:
            raise GradsiftError(f"an upload holds {uploads.size} elements a client, more than k = {rnd.k}")
        if uploads.indices.dim() == 1:
            uploads = Sparse(uploads.indices[None], uploads.values[None], uploads.dim)
        uploads = Sparse(*uploads)  # its values may have changed since it was put in order
        check_tensors.share(share, uploads.indices.shape[0])
        return uploads


class TopKUpload(Sparsifier):
    """A sparsifier whose clients send the k largest elements of what they have accumulated."""

    def choose(self, residual: Tensor, rnd: Round) -> Sparse:
        """J_i: the top k of each accumulated gradient."""
        return top_k(residual, rnd.k)

    def upload_size(self, dim: int, rnd: Round) -> int:
        """k, without a look at D elements."""
        del dim
        return rnd.k
