"""The wrapper of a sparsifier that checks every call: invalid input is refused before anything is changed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradsift import check, check_tensors
from gradsift.errors import GradsiftError
from gradsift.sparse import Sparse
from gradsift.sparsify.base import Round, Sparsifier


class CheckedSparsifier(check.Checked, Sparsifier):
    """The sparsifier ``inner`` with checked arguments, which are never changed in place."""

    inner: Sparsifier

    def __init__(self, inner: Sparsifier) -> None:
        super().__init__(inner, "name", "dense", "local")

    def upload(self, residual: Tensor, rnd: Round) -> Sparse:
        """A_i: the elements of its accumulated gradient that each client sends."""
        check_tensors.residual(residual)
        rnd.validate(residual.shape[-1])
        if rnd.client_k is not None and (residual.dim() != 2 or len(rnd.client_k) != len(residual)):
            raise GradsiftError(f"client_k has {len(rnd.client_k)} entries for residual {list(residual.shape)}")
        chosen = self.inner.upload(residual.detach(), rnd)
        if chosen.values.untyped_storage().data_ptr() == residual.untyped_storage().data_ptr():
            # A dense upload: it must not change when its client accumulates in place.
            return chosen._replace(values=chosen.values.clone())
        return chosen

    def merge(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        """B: the elements that the server sends back, each the share-weighted sum of the clients' values."""
        return self.inner.merge(self._uploads(uploads, share, rnd), share, rnd)

    def probe(self, uploads: Sparse, share: Tensor, rnd: Round, probe_k: int | Sequence[int]) -> Sparse:
        """B': the result of ``merge`` if the round had used ``probe_k`` < k, from the same uploads."""
        if self.dense:
            raise GradsiftError(
                f"{self.name!r} is dense: it has no probe at k' = {probe_k!r}, and takes a fixed k only"
            )
        uploads = self._uploads(uploads, share, rnd)
        if rnd.k < 2:
            raise GradsiftError(f"k = {rnd.k} leaves no k' below it to probe")
        if isinstance(probe_k, Sequence) and len(probe_k) != len(uploads.indices):
            raise GradsiftError(f"probe_k has {len(probe_k)} entries for {len(uploads.indices)} uploads")
        for k in probe_k if isinstance(probe_k, Sequence) else (probe_k,):
            check.integer("probe_k", k, 1, rnd.k - 1)
        return self.inner.probe(uploads, share, rnd, probe_k)

    def settle(self, residual: Tensor, upload: Sparse, merged: Sparse) -> Tensor:
        """A new tensor: the residual minus the received value of every element that was both sent and kept."""
        check_tensors.residual(residual)
        check_tensors.sparse("upload", upload, rows=True)
        check_tensors.sparse("merged", merged, rows=False)
        if not residual.shape[-1] == upload.dim == merged.dim:
            raise GradsiftError(
                f"dimensions differ: residual {residual.shape[-1]}, upload {upload.dim}, merged {merged.dim}"
            )
        if residual.shape[:-1] != upload.indices.shape[:-1]:
            raise GradsiftError(
                f"residual {list(residual.shape)} and upload {list(upload.indices.shape)} differ in their clients"
            )
        return self.inner.settle(residual.detach().clone(memory_format=torch.contiguous_format), upload, merged)

    def truncate(self, uploads: Sparse, rnd: Round) -> Sparse:
        """The uploads as they would be in ``rnd``, which has a smaller k."""
        check_tensors.sparse("upload", uploads, rows=True)
        rnd.validate(uploads.dim)
        return self.inner.truncate(uploads, rnd)

    def upload_size(self, dim: int, rnd: Round) -> int:
        """The number of elements that each client sends."""
        rnd.validate(dim)
        return self.inner.upload_size(dim, rnd)

    def coordinates(self, dim: int, rnd: Round) -> Tensor | None:
        """The indices of all uploads of a round if they depend only on the round, or else None."""
        rnd.validate(dim)
        return self.inner.coordinates(dim, rnd)

    def _uploads(self, uploads: Sparse, share: Tensor, rnd: Round) -> Sparse:
        check_tensors.sparse("upload", uploads, rows=True)
        rnd.validate(uploads.dim)
        if self.dense and uploads.size not in (0, uploads.dim):
            raise GradsiftError(f"{self.name!r} is dense, but an upload has {uploads.size} of {uploads.dim} elements")
        if not self.dense and uploads.size > rnd.k:
            raise GradsiftError(f"an upload holds {uploads.size} elements, more than k = {rnd.k}")
        if uploads.indices.dim() == 1:
            uploads = type(uploads)(uploads.indices[None], uploads.values[None], uploads.dim)
        check_tensors.share(share, uploads.indices.shape[0])
        if rnd.client_k is not None and not self.dense:
            _check_lengths(uploads.lengths, rnd.client_k)
        return uploads.with_values(uploads.values)  # no longer Ranked: the caller may have changed the values


def _check_lengths(lengths: Sequence[int], allowed: Sequence[int]) -> None:
    if len(allowed) != len(lengths):
        raise GradsiftError(f"client_k has {len(allowed)} entries for {len(lengths)} uploads")
    for row, (length, k) in enumerate(zip(lengths, allowed, strict=True)):
        if length > k:
            raise GradsiftError(f"the upload in row {row} holds {length} elements, more than its client's k = {k}")
