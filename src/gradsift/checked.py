"""The operations of ``sparse`` as they are exported: validated first. Sparsifiers and drivers use the bare ones."""

from collections.abc import Sequence

from torch import Tensor

from gradsift import check_tensors, sparse
from gradsift.check import integer
from gradsift.sparse import Sparse


def top_k(dense: Tensor, k: int) -> Sparse:
    """The k elements of each row [D] or [N, D] with the largest absolute values; of equal ones, the lowest indices."""
    check_tensors.residual(dense)
    integer("k", k, 1, dense.shape[-1])
    return sparse.top_k(dense, k)


def densify(message: Sparse) -> Tensor:
    """The full vector(s) [D] or [N, D], zero where the set has no element."""
    check_tensors.sparse("message", message, rows=True)
    return sparse.densify(Sparse(*message))  # a copy, also of a whole vector


def weighted_sum(rows: Sparse, share: Tensor) -> Sparse:
    """The share-weighted sum of the N rows [N, k], over the union of their indices, ordered by index."""
    check_tensors.sparse("rows", rows, rows=True)
    check_tensors.share(share, len(rows.indices))
    return sparse.weighted_sum(rows, share)


def difference(left: Sparse, right: Sparse) -> Sparse:
    """left - right of two vectors [k], over the union of their indices; exact zeros are left out."""
    check_tensors.sparse("left", left, rows=False)
    check_tensors.sparse("right", right, rows=False)
    return sparse.difference(left, right)


def stack(uploads: Sequence[Sparse]) -> Sparse:
    """The uploads of N clients, [k] each, as one [N, k]."""
    for number, upload in enumerate(uploads):
        check_tensors.sparse(f"upload {number}", upload, rows=False)
    return sparse.stack(uploads)
