"""The operations of ``sparse`` with checked arguments, as the package exports them.

Sparsifiers and drivers use ``sparse`` directly, because their input has been checked already.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from gradsift import check_tensors, sparse
from gradsift.check import integer
from gradsift.errors import GradsiftError

P = ParamSpec("P")
R = TypeVar("R")


def _checked(operation: Callable[P, R], check: Callable[..., Any]) -> Callable[P, R]:
    """``operation`` preceded by a call of ``check`` with the same arguments."""

    @functools.wraps(operation)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        check(*arguments, **options)
        return operation(*arguments, **options)

    return checked


def _check_top_k(dense: Any, k: Any) -> None:
    check_tensors.residual(dense)
    if isinstance(k, tuple | list) and (dense.dim() != 2 or len(k) != len(dense)):
        raise GradsiftError(f"k must be one number, or one per row, got {len(k)} for shape {list(dense.shape)}")
    for row_k in k if isinstance(k, tuple | list) else (k,):
        integer("k", row_k, 1, dense.shape[-1])


def _check_weighted_sum(rows: Any, share: Any) -> None:
    check_tensors.sparse("rows", rows, rows=True)
    check_tensors.share(share, len(rows.indices))


def _check_difference(left: Any, right: Any) -> None:
    check_tensors.sparse("left", left, rows=False)
    check_tensors.sparse("right", right, rows=False)


def _check_stack(uploads: Any) -> None:
    for number, upload in enumerate(uploads):
        check_tensors.sparse(f"upload {number}", upload, rows=False)


top_k = _checked(sparse.top_k, _check_top_k)
densify = _checked(sparse.densify, lambda message: check_tensors.sparse("message", message, rows=True))
weighted_sum = _checked(sparse.weighted_sum, _check_weighted_sum)
difference = _checked(sparse.difference, _check_difference)
stack = _checked(sparse.stack, _check_stack)
