"""The contract that every registered sparsifier keeps; the table is in ``cases.py``.

Shapes: residual [N, D], upload [N, k], share [N], merged [k].
"""

import inspect
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradsift
from gradsift import GradsiftError, LocalComputation, Sparse, Sparsifier
from gradsift.sparsify import unchecked
from gradsift.sparsify.checked import CheckedSparsifier
from tests.examples import examples
from tests.reference import literal
from tests.sparsify.cases import (
    ALL,
    DENSE,
    DEVICES,
    SPARSE,
    TABLE,
    Instance,
    as_dict,
    as_dicts,
    assert_same,
    assert_same_set,
    instances,
    make,
    shuffled,
    unchanged,
)

every = pytest.mark.parametrize("name", ALL)
every_sparse = pytest.mark.parametrize("name", SPARSE)
TWINS = [name for name in ALL if TABLE[name].twin is not None]


def subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_every_registered_sparsifier_is_in_the_table() -> None:
    # By class, since other tests may register sparsifiers of their own.
    every = [c for c in subclasses(Sparsifier) if c.__module__.startswith("gradsift.") and c is not CheckedSparsifier]
    ours = {c.name for c in every if not inspect.isabstract(c)}
    assert ours == set(TABLE)
    assert set(TABLE) <= set(gradsift.sparsifiers())


def test_every_twin_is_held_to_its_sparsifier() -> None:
    assert {name: TABLE[name].twin for name in TWINS} == literal.PROCEDURES


@every
def test_it_knows_its_name_and_whether_it_is_dense(name: str) -> None:
    assert make(name).name == name
    assert make(name).dense == TABLE[name].dense


@every
@given(case=instances())
@examples(60)
def test_the_size_of_an_upload_is_known_without_the_data(name: str, case: Instance) -> None:
    made = make(name)
    assert made.upload_size(case.residual.shape[1], case.rnd) == made.upload(case.residual, case.rnd).size


@pytest.mark.parametrize("name", TWINS)
@given(case=instances())
@examples(120)
def test_all_phases_equal_the_literal_procedure(name: str, case: Instance) -> None:
    fast, slow = make(name), literal.procedure(name, case.residual.shape[1])
    share = case.share.tolist()
    upload = fast.upload(case.residual, case.rnd)
    sent = [slow.upload(row, case.rnd) for row in case.residual.tolist()]
    assert as_dicts(upload) == sent

    merged = fast.merge(upload, case.share, case.rnd)
    kept = slow.merge(sent, share, case.rnd)
    assert as_dict(merged) == kept

    settled = fast.settle(case.residual, upload, merged)
    rows = zip(case.residual.tolist(), sent, strict=True)
    assert settled.tolist() == [slow.settle(row, message, kept) for row, message in rows]

    if not fast.dense:
        for probe_k in range(1, case.rnd.k):
            probed = fast.probe(upload, case.share, case.rnd, probe_k)
            assert as_dict(probed) == slow.probe(sent, share, case.rnd, probe_k)


@every
@given(case=instances())
@examples(50)
def test_an_upload_holds_elements_of_the_residual(name: str, case: Instance) -> None:
    upload = make(name).upload(case.residual, case.rnd)
    clients, dim = case.residual.shape
    assert upload.dim == dim
    assert upload.indices.dtype == torch.int64
    assert upload.indices.shape == upload.values.shape == (clients, upload.size)
    assert upload.size in (0, dim) if TABLE[name].dense else 1 <= upload.size <= case.rnd.k
    for row, message in zip(case.residual.tolist(), as_dicts(upload), strict=True):
        assert all(0 <= j < dim and row[j] == value for j, value in message.items())


@every
@given(case=instances())
@examples(60)
def test_merged_is_the_share_weighted_sum_of_exactly_the_kept_values(name: str, case: Instance) -> None:
    sparsifier = make(name)
    upload = sparsifier.upload(case.residual, case.rnd)
    sent = as_dicts(upload)
    merged = sparsifier.merge(upload, case.share, case.rnd)
    assert merged.dim == upload.dim
    assert merged.indices.shape == merged.values.shape == (merged.size,)
    for j, value in as_dict(merged).items():
        assert any(j in message for message in sent)
        expected = 0.0
        for share, message in zip(case.share.tolist(), sent, strict=True):
            expected += share * message.get(j, 0.0)
        assert value == expected
    union = len({j for message in sent for j in message})
    assert merged.size == (min(union, case.rnd.k) if TABLE[name].down_limited else union)


@every
@given(case=instances())
@examples(50)
def test_settling_forgets_what_was_sent_and_kept_and_nothing_else(name: str, case: Instance) -> None:
    sparsifier = make(name)
    upload = sparsifier.upload(case.residual, case.rnd)
    merged = sparsifier.merge(upload, case.share, case.rnd)
    settled = sparsifier.settle(case.residual, upload, merged).tolist()
    kept = as_dict(merged)
    for before, after, message in zip(case.residual.tolist(), settled, as_dicts(upload), strict=True):
        assert after == [0.0 if j in message and j in kept else value for j, value in enumerate(before)]


@every_sparse
@given(case=instances())
@examples(60)
def test_a_probe_equals_a_fresh_merge_at_its_k(name: str, case: Instance) -> None:
    sparsifier = make(name)
    upload = sparsifier.upload(case.residual, case.rnd)
    for probe_k in range(1, case.rnd.k):
        smaller = case.rnd._replace(k=probe_k)
        fresh = sparsifier.merge(sparsifier.upload(case.residual, smaller), case.share, smaller)
        assert_same_set(sparsifier.probe(upload, case.share, case.rnd, probe_k), fresh)


@pytest.mark.parametrize("name", DENSE)
@given(case=instances())
@examples(10)
def test_a_dense_one_refuses_to_probe_by_name(name: str, case: Instance) -> None:
    sparsifier = make(name)
    upload = sparsifier.upload(case.residual, case.rnd)
    with unchanged(case, upload), pytest.raises(GradsiftError, match=f"'{name}' is dense: it has no probe at k' = 1"):
        sparsifier.probe(upload, case.share, case.rnd, 1)


@every
@given(case=instances(), seed=st.integers(0, 1000))
@examples(40)
def test_the_order_inside_an_upload_means_nothing(name: str, case: Instance, seed: int) -> None:
    sparsifier = make(name)
    upload = sparsifier.upload(case.residual, case.rnd)
    other = shuffled(upload, seed)
    merged = sparsifier.merge(upload, case.share, case.rnd)
    assert_same_set(sparsifier.merge(other, case.share, case.rnd), merged)
    settled = sparsifier.settle(case.residual, upload, merged)
    assert_same(sparsifier.settle(case.residual, other, shuffled(merged, seed)), settled)
    if not sparsifier.dense:
        for probe_k in range(1, case.rnd.k):
            probed = sparsifier.probe(upload, case.share, case.rnd, probe_k)
            assert_same_set(sparsifier.probe(other, case.share, case.rnd, probe_k), probed)


@every
# Sums that are exact in any order: which |b_j| are largest must not turn on rounding.
@given(case=instances(kind="dyadic", share="dyadic"), order=st.randoms(use_true_random=False))
@examples(40)
def test_the_order_of_the_clients_means_nothing(name: str, case: Instance, order: Random) -> None:
    sparsifier = make(name)
    clients = list(range(case.residual.shape[0]))
    order.shuffle(clients)
    upload = sparsifier.upload(case.residual, case.rnd)
    other = sparsifier.upload(case.residual[clients], case.rnd)
    merged = sparsifier.merge(upload, case.share, case.rnd)
    permuted = sparsifier.merge(other, case.share[clients], case.rnd)
    assert as_dict(permuted) == as_dict(merged)
    settled = sparsifier.settle(case.residual, upload, merged)
    assert torch.equal(sparsifier.settle(case.residual[clients], other, permuted), settled[clients])


@every
@given(case=instances())
@examples(50)
def test_one_client_and_all_clients_agree_row_by_row(name: str, case: Instance) -> None:
    sparsifier = make(name)
    upload = sparsifier.upload(case.residual, case.rnd)
    alone = [sparsifier.upload(row, case.rnd) for row in case.residual]
    assert_same_set(gradsift.stack(alone), upload)
    merged = sparsifier.merge(gradsift.stack(alone), case.share, case.rnd)
    assert_same_set(merged, sparsifier.merge(upload, case.share, case.rnd))
    settled = sparsifier.settle(case.residual, upload, merged)
    for row, message, after in zip(case.residual, alone, settled, strict=True):
        assert_same(sparsifier.settle(row, message, merged), after)

    # A federation of one: [k] in place of [1, k].
    first, whole = Sparse(upload.indices[:1], upload.values[:1], upload.dim), torch.ones(1, dtype=torch.float64)
    one = sparsifier.merge(alone[0], whole, case.rnd)
    assert_same_set(one, sparsifier.merge(first, whole, case.rnd))
    assert torch.equal(gradsift.densify(one), case.residual[0] - sparsifier.settle(case.residual[0], alone[0], one))


@every
@given(case=instances(kind="ties", share="dyadic"))
@examples(40)
def test_float32_and_float64_agree_where_both_are_exact(name: str, case: Instance) -> None:
    sparsifier = make(name)
    results = []
    for dtype in (torch.float64, torch.float32):
        residual, share = case.residual.to(dtype), case.share.to(dtype)
        upload = sparsifier.upload(residual, case.rnd)
        merged = sparsifier.merge(upload, share, case.rnd)
        settled = sparsifier.settle(residual, upload, merged)
        assert upload.values.dtype == merged.values.dtype == settled.dtype == dtype
        results.append((as_dicts(upload), as_dict(merged), settled.tolist()))
    assert results[0] == results[1]


@every
@given(case=instances(kind="normal", share="any"))
@examples(20)
def test_shares_may_be_of_another_precision(name: str, case: Instance) -> None:
    sparsifier = make(name)
    upload = sparsifier.upload(case.residual.float(), case.rnd)
    merged = sparsifier.merge(upload, case.share, case.rnd)
    assert_same_set(merged, sparsifier.merge(upload, case.share.float(), case.rnd))
    assert merged.values.dtype == torch.float32


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_uploads_are_summed_in_single(name: str, dtype: torch.dtype) -> None:
    # 1 + 2047 / 2048 a client: a half-precision sum of many small parts would stall or drift.
    clients, dim = 512, 4
    sparsifier, rnd = make(name), gradsift.Round(number=1, k=dim)
    residual = torch.full((clients, dim), 1.75)
    share = torch.full((clients,), 1 / clients)
    upload = sparsifier.upload(residual, rnd)
    merged = sparsifier.merge(upload._replace(values=upload.values.to(dtype)), share, rnd)
    torch.testing.assert_close(gradsift.densify(merged).float(), torch.full((dim,), 1.75), rtol=1e-6, atol=0)


@every
@given(case=instances())
@examples(30)
def test_nothing_is_written_to_and_nothing_is_shared(name: str, case: Instance) -> None:
    sparsifier = make(name)
    with unchanged(case):
        upload = sparsifier.upload(case.residual, case.rnd)
    with unchanged(case, upload):
        merged = sparsifier.merge(upload, case.share, case.rnd)
    with unchanged(case, upload):
        if not sparsifier.dense and case.rnd.k > 1:
            sparsifier.probe(upload, case.share, case.rnd, 1)
    with unchanged(case, upload, merged):
        settled = sparsifier.settle(case.residual, upload, merged)
    # A client goes on accumulating in place: messages on their way must not change with it.
    with unchanged(upload, merged, settled):
        case.residual.add_(1.0)
    with unchanged(case, upload, merged):
        settled.add_(1.0)


@every
@given(case=instances())
@examples(30)
def test_the_bare_object_does_what_the_checked_one_does(name: str, case: Instance) -> None:
    """A driver that checks once a round calls the sparsifier behind the checks, which settles in place."""
    checked = make(name)
    upload = checked.upload(case.residual, case.rnd)
    merged = checked.merge(upload, case.share, case.rnd)
    settled = checked.settle(case.residual, upload, merged)
    probe_ks = range(1, 1 if checked.dense else case.rnd.k)
    probes = [checked.probe(upload, case.share, case.rnd, probe_k) for probe_k in probe_ks]

    bare, residual = unchecked(checked), case.residual.clone()
    assert bare is not checked
    assert (bare.name, bare.dense, bare.local) == (checked.name, checked.dense, checked.local)
    with unchanged(residual):
        sent = bare.upload(residual, case.rnd)
        assert_same_set(sent, upload)
        kept = bare.merge(sent, case.share, case.rnd)
        assert_same_set(kept, merged)
        for probe_k, probed in zip(probe_ks, probes, strict=True):
            assert_same_set(bare.probe(sent, case.share, case.rnd, probe_k), probed)
            smaller = case.rnd.at(probe_k)
            assert_same_set(bare.truncate(sent, smaller), checked.truncate(upload, smaller))
            assert_same_set(bare.merge(bare.truncate(sent, smaller), case.share, smaller), probed)
    assert bare.settle(residual, sent, kept) is residual
    assert_same(residual, settled)


@every
@given(case=instances())
@examples(20)
def test_writing_to_a_message_does_not_reach_later_rounds(name: str, case: Instance) -> None:
    sparsifier = make(name)
    for residual in (case.residual, case.residual[0]):
        first = sparsifier.upload(residual, case.rnd)
        copy = Sparse(first.indices.clone(), first.values.clone(), first.dim)
        if residual.dim() == 1 and first.indices.is_contiguous():
            first.indices.zero_()  # a codec that works in place
        assert_same_set(sparsifier.upload(residual, case.rnd), copy)


@every
@given(case=instances())
@examples(20)
def test_strided_input_is_as_good_as_contiguous(name: str, case: Instance) -> None:
    sparsifier = make(name)
    strided = torch.stack([case.residual.T, torch.zeros_like(case.residual.T)], dim=-1)[..., 0].T
    assert torch.equal(strided, case.residual)
    upload = sparsifier.upload(case.residual, case.rnd)
    other = sparsifier.upload(strided, case.rnd)
    assert_same_set(other, upload)
    columns = Sparse(other.indices.T.contiguous().T, other.values.T.contiguous().T, other.dim)
    merged = sparsifier.merge(upload, case.share, case.rnd)
    assert_same_set(sparsifier.merge(columns, case.share, case.rnd), merged)
    assert_same(sparsifier.settle(strided, columns, merged), sparsifier.settle(case.residual, upload, merged))


@every
@pytest.mark.parametrize("device", DEVICES)
@given(case=instances(kind="dyadic", share="dyadic"))
@examples(25)
def test_every_device_gives_the_same(name: str, device: str, case: Instance) -> None:
    sparsifier = make(name)
    upload = sparsifier.upload(case.residual, case.rnd)
    merged = sparsifier.merge(upload, case.share, case.rnd)
    residual, share = case.residual.to(device), case.share.to(device)
    there = sparsifier.upload(residual, case.rnd)
    assert there.indices.device.type == there.values.device.type == device
    back = sparsifier.merge(there, share, case.rnd)
    assert as_dicts(there) == as_dicts(upload)
    assert as_dict(back) == as_dict(merged)
    settled = sparsifier.settle(residual, there, back)
    assert settled.device.type == device
    assert torch.equal(settled.cpu(), sparsifier.settle(case.residual, upload, merged))
    if not sparsifier.dense:
        for probe_k in range(1, case.rnd.k):
            probed = sparsifier.probe(there, share, case.rnd, probe_k)
            assert as_dict(probed) == as_dict(sparsifier.probe(upload, case.share, case.rnd, probe_k))


def gradient_point(local: LocalComputation, residual: Tensor, weights: Tensor, lr: float, target: Tensor) -> Tensor:
    """Where a client takes its one gradient, that of |w - target|^2 / 2, which is added to ``residual``."""
    points: list[Tensor] = []

    def add_gradients(total: Tensor, point: Tensor, step: int) -> None:
        assert step == len(points)
        points.append(point)
        total += point - target

    local.accumulate(residual, weights, lr, add_gradients)
    assert len(points) == 1
    return points[0]


@every
def test_clients_that_settle_alone_hold_the_same_weights_after_each_round(name: str) -> None:
    """Each client keeps weights of its own; only inside a FedAvg period may they differ."""
    clients, dim, k, lr, rounds = 4, 12, 2, 0.125, 12
    source = torch.Generator().manual_seed(0)
    target = torch.randn(clients, dim, generator=source, dtype=torch.float64)
    share = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64)
    sparsifier = make(name)
    period = sparsifier.local.period(dim, k)
    weights = [torch.zeros(dim, dtype=torch.float64) for _ in range(clients)]
    residual = [torch.zeros(dim, dtype=torch.float64) for _ in range(clients)]
    offset, differed = 0, []
    for number in range(1, rounds + 1):
        rnd = gradsift.Round(number=number, k=k, offset=offset)
        points = [gradient_point(sparsifier.local, residual[i], weights[i], lr, target[i]) for i in range(clients)]
        if not all(torch.equal(point, points[0]) for point in points):
            differed.append(number)
        if number % period:
            continue
        uploads = [sparsifier.upload(a, rnd) for a in residual]
        merged = sparsifier.merge(gradsift.stack(uploads), share, rnd)
        residual = [sparsifier.settle(a, upload, merged) for a, upload in zip(residual, uploads, strict=True)]
        weights = [gradsift.apply(w, merged, lr) for w in weights]
        offset += uploads[0].size
    assert period == (dim // (2 * k) if name == "fedavg" else 1)
    inside = [number for number in range(1, rounds + 1) if (number - 1) % period]
    assert differed == inside
    assert not torch.equal(weights[0], torch.zeros(dim, dtype=torch.float64))
