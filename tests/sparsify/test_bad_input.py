"""What the public phases of every sparsifier refuse: the error names the value, and nothing has changed by then.

Shapes: residual [3, 5], upload [3, 2] (dense: [3, 5]), share [3], merged [2] (dense: [5]).
"""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from gradsift import GradsiftError, Round, Sparse, Sparsifier
from tests.sparsify.cases import ALL, DENSE, SPARSE, make, unchanged

NAN, INF = math.nan, math.inf
CLIENTS, DIM, K = 3, 5, 2


class Inputs(NamedTuple):
    """Good ones, until a test spoils one."""

    residual: Tensor
    rnd: Round
    upload: Sparse
    share: Tensor
    merged: Sparse
    probe_k: Any = 1


def good(sparsifier: Sparsifier) -> Inputs:
    residual = torch.arange(1.0, CLIENTS * DIM + 1).view(CLIENTS, DIM)
    rnd = Round(number=1, k=K, seed=3, offset=0)
    share = torch.tensor([0.5, 0.25, 0.25])
    upload = sparsifier.upload(residual, rnd)
    upload = Sparse(upload.indices.clone(), upload.values, upload.dim)
    return Inputs(residual, rnd, upload, share, sparsifier.merge(upload, share, rnd))


def refused(call: Callable[..., object], *arguments: Any, message: str) -> None:
    with unchanged(arguments), pytest.raises(GradsiftError, match=re.escape(message)) as caught:
        call(*arguments)
    assert isinstance(caught.value, ValueError)


def with_value(tensor: Tensor, place: tuple[int, ...], value: float) -> Tensor:
    changed = tensor.clone()
    changed[place] = value
    return changed


every = pytest.mark.parametrize("name", ALL)

BAD_ROUNDS = [
    ({"k": 0}, "k must be in [1, 5], got 0"),
    ({"k": -1}, "k must be in [1, 5], got -1"),
    ({"k": DIM + 1}, "k must be in [1, 5], got 6"),
    ({"k": 2.5}, "k must be an integer, got 2.5"),
    ({"k": NAN}, "k must be an integer, got nan"),
    ({"k": True}, "k must be an integer, got True"),
    ({"k": None}, "k must be an integer, got None"),
    ({"number": 0}, "round number must be at least 1, got 0"),
    ({"number": 1.5}, "round number must be an integer, got 1.5"),
    ({"seed": -1}, f"seed must be in [0, {2**64 - 1}], got -1"),
    ({"seed": 2**64}, f"seed must be in [0, {2**64 - 1}], got {2**64}"),
    ({"offset": -1}, "offset must be at least 0, got -1"),
]


@every
@pytest.mark.parametrize(("change", "message"), BAD_ROUNDS)
def test_bad_rounds(name: str, change: dict[str, Any], message: str) -> None:
    sparsifier = make(name)
    inputs = good(sparsifier)
    rnd = inputs.rnd._replace(**change)
    refused(sparsifier.upload, inputs.residual, rnd, message=message)
    refused(sparsifier.upload, inputs.residual[0], rnd, message=message)
    refused(sparsifier.merge, inputs.upload, inputs.share, rnd, message=message)
    if not sparsifier.dense:
        refused(sparsifier.probe, inputs.upload, inputs.share, rnd, 1, message=message)


BAD_RESIDUALS: list[tuple[Callable[[Tensor], Tensor], str]] = [
    (lambda r: with_value(r, (1, 3), NAN), "residual must be finite, got nan at [1, 3]"),
    (lambda r: with_value(r, (2, 0), INF), "residual must be finite, got inf at [2, 0]"),
    (lambda r: with_value(r, (0, 4), -INF), "residual must be finite, got -inf at [0, 4]"),
    (lambda r: with_value(r, (0, 4), NAN)[0], "residual must be finite, got nan at [4]"),
    (lambda r: r[0, 0], "residual must be [D] or [N, D], got shape []"),
    (lambda r: r[None], "residual must be [D] or [N, D], got shape [1, 3, 5]"),
    (lambda r: r[:0], "residual must have at least one client, got shape [0, 5]"),
    (lambda r: r[:, :0], "residual must have at least one element, got shape [3, 0]"),
    (lambda r: r[0, :0], "residual must have at least one element, got shape [0]"),
    (lambda r: r.long(), "residual must hold floating-point numbers, got torch.int64"),
]


@every
@pytest.mark.parametrize(("spoil", "message"), BAD_RESIDUALS)
def test_bad_residuals(name: str, spoil: Callable[[Tensor], Tensor], message: str) -> None:
    sparsifier = make(name)
    inputs = good(sparsifier)
    bad = spoil(inputs.residual)
    refused(sparsifier.upload, bad, inputs.rnd, message=message)
    refused(sparsifier.settle, bad, inputs.upload, inputs.merged, message=message)


BAD_UPLOADS: list[tuple[Callable[[Sparse], Sparse], str]] = [
    (lambda u: u._replace(values=with_value(u.values, (1, 0), NAN)), "upload.values must be finite, got nan at [1, 0]"),
    (lambda u: u._replace(values=with_value(u.values, (2, 1), INF)), "upload.values must be finite, got inf at [2, 1]"),
    (
        lambda u: u._replace(indices=with_value(u.indices, (1, 1), -1)),
        "upload holds index -1, outside [0, 5), at [1, 1]",
    ),
    (lambda u: u._replace(indices=with_value(u.indices, (0, 0), 5)), "upload holds index 5, outside [0, 5), at [0, 0]"),
    (
        lambda u: u._replace(indices=with_value(u.indices, (2, 1), u.indices[2, 0].item())),
        "twice in row 2",
    ),
    (lambda u: u._replace(values=u.values[:, :1]), "differ in shape"),
    (lambda u: u._replace(values=u.values[:2]), "differ in shape"),
    (lambda u: u._replace(indices=u.indices.int()), "upload.indices must be int64, got torch.int32"),
    (lambda u: u._replace(values=u.values.long()), "upload.values must hold floating-point numbers, got torch.int64"),
    (lambda u: Sparse(u.indices[None], u.values[None], u.dim), "upload must be [k] or [N, k], got [1, 3, "),
    (lambda u: Sparse(u.indices[0, 0], u.values[0, 0], u.dim), "upload must be [k] or [N, k], got []"),
    (lambda u: Sparse(u.indices[:0], u.values[:0], u.dim), "upload must have at least one client, got shape [0, "),
    (lambda u: u._replace(dim=0), "upload.dim must be at least 1, got 0"),
    (lambda u: u._replace(dim=5.0), "upload.dim must be an integer, got 5.0"),  # type: ignore[arg-type]
]


@every
@pytest.mark.parametrize(("spoil", "message"), BAD_UPLOADS)
def test_bad_uploads(name: str, spoil: Callable[[Sparse], Sparse], message: str) -> None:
    sparsifier = make(name)
    inputs = good(sparsifier)
    bad = spoil(inputs.upload)
    refused(sparsifier.merge, bad, inputs.share, inputs.rnd, message=message)
    refused(sparsifier.settle, inputs.residual, bad, inputs.merged, message=message)
    if not sparsifier.dense:
        refused(sparsifier.probe, bad, inputs.share, inputs.rnd, 1, message=message)


def test_a_duplicate_is_named_by_its_index() -> None:
    upload = Sparse(torch.tensor([[0, 1], [4, 4]]), torch.ones(2, 2), 5)
    share = torch.tensor([0.5, 0.5])
    refused(make("fab-top-k").merge, upload, share, Round(1, 2), message="upload holds index 4 twice in row 1")
    one = Sparse(torch.tensor([3, 0, 3]), torch.ones(3), 5)
    refused(make("fab-top-k").merge, one, torch.ones(1), Round(1, 3), message="upload holds index 3 twice")


BAD_SHARES: list[tuple[list[Any], str]] = [
    ([0.5, 0.25, 0.125], "shares must sum to 1, got 0.875"),
    ([0.5, 0.5, 0.5], "shares must sum to 1, got 1.5"),
    ([0.0, 0.0, 0.0], "shares must sum to 1, got 0.0"),
    ([1.5, -0.5, 0.0], "share must not be negative, got -0.5 for client 1"),
    ([0.5, NAN, 0.5], "share must be finite, got nan at [1]"),
    ([0.5, INF, 0.5], "share must be finite, got inf at [1]"),
    ([0.5, 0.5], "share must have shape [3], one for each upload, got [2]"),
    ([0.25] * 4, "share must have shape [3], one for each upload, got [4]"),
    ([], "share must have shape [3], one for each upload, got [0]"),
    ([[0.5, 0.25, 0.25]], "share must have shape [3], one for each upload, got [1, 3]"),
    ([[0.5], [0.25], [0.25]], "share must have shape [3], one for each upload, got [3, 1]"),
]


@every
@pytest.mark.parametrize(("share", "message"), BAD_SHARES)
def test_bad_shares(name: str, share: list[Any], message: str) -> None:
    sparsifier = make(name)
    inputs = good(sparsifier)
    bad = torch.tensor(share)
    refused(sparsifier.merge, inputs.upload, bad, inputs.rnd, message=message)
    if not sparsifier.dense:
        refused(sparsifier.probe, inputs.upload, bad, inputs.rnd, 1, message=message)


def test_integer_shares_are_refused_and_float32_rounding_is_not() -> None:
    sparsifier, rnd = make("fab-top-k"), Round(1, 1)
    upload = sparsifier.upload(torch.ones(1, 4), rnd)
    refused(sparsifier.merge, upload, torch.ones(1, dtype=torch.int64), rnd, message="got torch.int64")
    for clients in (3, 7, 156, 3400):
        upload = sparsifier.upload(torch.ones(clients, 4), rnd)
        sizes = torch.arange(1, clients + 1)
        merged = sparsifier.merge(upload, sizes / sizes.sum(), rnd)
        torch.testing.assert_close(merged.values, torch.ones(1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize(
    ("probe_k", "message"),
    [
        (0, "probe_k must be in [1, 1], got 0"),
        (K, "probe_k must be in [1, 1], got 2"),
        (-3, "probe_k must be in [1, 1], got -3"),
        (DIM + 1, "probe_k must be in [1, 1], got 6"),
        (1.5, "probe_k must be an integer, got 1.5"),
        (NAN, "probe_k must be an integer, got nan"),
        (None, "probe_k must be an integer, got None"),
    ],
)
def test_bad_probes(name: str, probe_k: Any, message: str) -> None:
    sparsifier = make(name)
    inputs = good(sparsifier)
    refused(sparsifier.probe, inputs.upload, inputs.share, inputs.rnd, probe_k, message=message)


@pytest.mark.parametrize("name", SPARSE)
def test_k_of_one_leaves_nothing_to_probe(name: str) -> None:
    sparsifier = make(name)
    inputs, rnd = good(sparsifier), Round(number=1, k=1)
    upload = sparsifier.upload(inputs.residual, rnd)
    refused(sparsifier.probe, upload, inputs.share, rnd, 1, message="k = 1 leaves no k' below it to probe")


@pytest.mark.parametrize("name", SPARSE)
def test_an_upload_of_more_than_k(name: str) -> None:
    sparsifier = make(name)
    inputs = good(sparsifier)
    message = "an upload holds 2 elements, more than k = 1"
    refused(sparsifier.merge, inputs.upload, inputs.share, inputs.rnd._replace(k=1), message=message)


@pytest.mark.parametrize("name", DENSE)
def test_part_of_a_dense_upload(name: str) -> None:
    sparsifier = make(name)
    inputs = good(sparsifier)
    part = Sparse(inputs.upload.indices[:, :4], inputs.upload.values[:, :4], DIM)
    message = f"'{name}' is dense, but an upload has 4 of 5 elements"
    refused(sparsifier.merge, part, inputs.share, inputs.rnd, message=message)


BAD_MERGED: list[tuple[Callable[[Sparse], Sparse], str]] = [
    (lambda m: m._replace(values=with_value(m.values, (1,), NAN)), "merged.values must be finite, got nan at [1]"),
    (lambda m: m._replace(indices=with_value(m.indices, (0,), 5)), "merged holds index 5, outside [0, 5), at [0]"),
    (lambda m: m._replace(indices=with_value(m.indices, (0,), -2)), "merged holds index -2, outside [0, 5), at [0]"),
    (lambda m: m._replace(indices=with_value(m.indices, (1,), m.indices[0].item())), "twice"),
    (lambda m: m._replace(values=m.values[:1]), "differ in shape"),
    (lambda m: Sparse(m.indices[None], m.values[None], m.dim), "merged must be [k], got [1, "),
    (lambda m: m._replace(dim=6), "dimensions differ: residual 5, upload 5, merged 6"),
]


@every
@pytest.mark.parametrize(("spoil", "message"), BAD_MERGED)
def test_bad_merged(name: str, spoil: Callable[[Sparse], Sparse], message: str) -> None:
    sparsifier = make(name)
    inputs = good(sparsifier)
    refused(sparsifier.settle, inputs.residual, inputs.upload, spoil(inputs.merged), message=message)


@every
def test_messages_of_other_vectors_and_other_clients(name: str) -> None:
    sparsifier = make(name)
    inputs = good(sparsifier)
    residual, upload, merged = inputs.residual, inputs.upload, inputs.merged

    def settle_refused(residual: Tensor, upload: Sparse, message: str) -> None:
        refused(sparsifier.settle, residual, upload, merged, message=message)

    settle_refused(torch.ones(3, 6), upload, "dimensions differ: residual 6, upload 5, merged 5")
    settle_refused(residual, upload._replace(dim=7), "dimensions differ: residual 5, upload 7, merged 5")
    size = upload.size
    settle_refused(residual[:2], upload, f"residual [2, 5] and upload [3, {size}] differ in their clients")
    settle_refused(residual[0], upload, f"residual [5] and upload [3, {size}] differ in their clients")
    one = Sparse(upload.indices[0], upload.values[0], DIM)
    settle_refused(residual, one, f"residual [3, 5] and upload [{size}] differ in their clients")
