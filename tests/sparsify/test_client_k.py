"""Clients that send different numbers of elements: every sparsifier against its literal twin, on the CPU and as queued.

Shapes: residual [N, D], upload [N, max k_i], share [N], merged [k].
"""

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradsift
from gradsift import GradsiftError, Round, Sparse
from gradsift.sparse import Ragged, stack
from gradsift.sparsify import unchecked
from gradsift.sparsify.fab_top_k import fair_selection
from tests.examples import examples
from tests.reference import literal
from tests.reference.literal import Literal
from tests.sparsify.cases import (
    ALL,
    DEVICES,
    SPARSE,
    WAYS,
    Instance,
    as_dict,
    as_dicts,
    assert_same,
    going,
    instances,
    make,
    shuffled,
    unchanged,
)

pytestmark = pytest.mark.slow  # many runs

every = pytest.mark.parametrize("name", ALL)
every_sparse = pytest.mark.parametrize("name", SPARSE)
ways = pytest.mark.parametrize("way", WAYS)


def ks(rnd: Round) -> tuple[int, ...]:
    assert rnd.client_k is not None
    return rnd.client_k


def literal_uploads(slow: Literal, case: Instance) -> list[Sparse]:
    return [slow.upload(row, case.rnd.at(k)) for row, k in zip(case.residual, ks(case.rnd), strict=True)]


def smaller_ks(data: st.DataObject, rnd: Round) -> int | tuple[int, ...]:
    """k' as a driver makes it: one below each client's k, where there is one, or one for all."""
    if data.draw(st.booleans()):
        return data.draw(st.integers(1, rnd.k - 1))
    return tuple(data.draw(st.integers(1, max(1, k - 1))) for k in ks(rnd))


@every
@given(case=instances(client_k=True), data=st.data())
@examples(120)
def test_all_phases_equal_the_literal_twin(name: str, case: Instance, data: st.DataObject) -> None:
    compare(name, case, data)


@every
@pytest.mark.parametrize("way", WAYS[1:])
@given(case=instances(client_k=True, kind="dyadic", share="dyadic"), data=st.data())
@examples(80)
def test_as_queued_all_phases_equal_the_literal_twin(name: str, way: str, case: Instance, data: st.DataObject) -> None:
    with going(way):
        compare(name, case, data)


@every
@ways
@given(case=instances(client_k=True, kind="ties", share="dyadic"), data=st.data())
@examples(60)
def test_ties_are_broken_as_the_literal_twin_breaks_them(
    name: str, way: str, case: Instance, data: st.DataObject
) -> None:
    with going(way):
        compare(name, case, data)


def compare(name: str, case: Instance, data: st.DataObject) -> None:
    """Every phase, to the bit."""
    fast, slow, rnd = make(name), Literal(name), case.rnd
    upload, sent = fast.upload(case.residual, rnd), literal_uploads(slow, case)
    assert as_dicts(upload) == [as_dict(message) for message in sent]
    assert upload.lengths == [message.size for message in sent]
    assert fast.upload_size(case.residual.shape[1], rnd) == upload.size

    merged, kept = fast.merge(upload, case.share, rnd), slow.merge(stack(sent), case.share, rnd)
    assert as_dict(merged) == as_dict(kept)

    settled = fast.settle(case.residual, upload, merged)
    for row, before, message in zip(settled, case.residual, sent, strict=True):
        assert_same(row + 0.0, slow.settle(before, message, kept) + 0.0)  # but for the sign of a zero

    if not fast.dense and rnd.k > 1:
        probe_k = smaller_ks(data, rnd)
        smaller = rnd.at(probe_k)
        fewer = slow.truncate(stack(sent), smaller)
        assert as_dicts(fast.truncate(upload, smaller)) == as_dicts(fewer)
        probed = fast.probe(upload, case.share, rnd, probe_k)
        assert as_dict(probed) == as_dict(slow.probe(stack(sent), case.share, rnd, probe_k))


@every_sparse
@ways
@given(case=instances(client_k=True, kind="dyadic", share="dyadic"), data=st.data())
@examples(40)
def test_a_probe_equals_a_fresh_round_at_its_k(name: str, way: str, case: Instance, data: st.DataObject) -> None:
    if case.rnd.k == 1:
        return
    sparsifier = make(name)
    smaller = case.rnd.at(tuple(data.draw(st.integers(1, max(1, k - 1))) for k in ks(case.rnd)))
    with going(way):
        fresh = sparsifier.merge(sparsifier.upload(case.residual, smaller), case.share, smaller)
        upload = sparsifier.upload(case.residual, case.rnd)
        assert as_dict(sparsifier.probe(upload, case.share, case.rnd, ks(smaller))) == as_dict(fresh)


@every
@ways
@given(case=instances())
@examples(40)
def test_equal_numbers_give_what_one_number_gives(name: str, way: str, case: Instance) -> None:
    sparsifier, clients = make(name), len(case.residual)
    each = case.rnd.at([case.rnd.k] * clients)
    with going(way):
        results = []
        for rnd in (case.rnd, each):
            upload = sparsifier.upload(case.residual, rnd)
            merged = sparsifier.merge(upload, case.share, rnd)
            probes = [] if sparsifier.dense else [1] * (rnd.k > 1)
            probed = [as_dict(sparsifier.probe(upload, case.share, rnd, k)) for k in probes]
            settled = sparsifier.settle(case.residual, upload, merged)
            results.append((as_dicts(upload), as_dict(merged), probed, settled.tolist()))
        if not sparsifier.dense and case.rnd.k > 1:
            upload = sparsifier.upload(case.residual, each)
            several = sparsifier.probe(upload, case.share, each, [1] * clients)
            assert [as_dict(several)] == results[0][2]
    assert results[0] == results[1]


@every
@given(case=instances(client_k=True))
@examples(40)
def test_one_client_and_all_clients_agree_row_by_row(name: str, case: Instance) -> None:
    sparsifier = make(name)
    upload = sparsifier.upload(case.residual, case.rnd)
    alone = [sparsifier.upload(row, case.rnd.at(k)) for row, k in zip(case.residual, ks(case.rnd), strict=True)]
    assert as_dicts(upload) == [as_dict(message) for message in alone]
    merged = sparsifier.merge(gradsift.stack(alone), case.share, case.rnd)
    assert as_dict(merged) == as_dict(sparsifier.merge(upload, case.share, case.rnd))
    settled = sparsifier.settle(case.residual, upload, merged)
    for row, message, after in zip(case.residual, alone, settled, strict=True):
        assert torch.equal(sparsifier.settle(row, message, merged), after)


@every
@given(case=instances(client_k=True), seed=st.integers(0, 1000))
@examples(40)
def test_the_order_inside_an_upload_means_nothing(name: str, case: Instance, seed: int) -> None:
    """Nor where in a row the places are that are not used."""
    sparsifier = make(name)
    upload = sparsifier.upload(case.residual, case.rnd)
    other = shuffled(upload, seed)
    merged = sparsifier.merge(upload, case.share, case.rnd)
    assert as_dict(sparsifier.merge(other, case.share, case.rnd)) == as_dict(merged)
    assert torch.equal(
        sparsifier.settle(case.residual, other, shuffled(merged, seed)),
        sparsifier.settle(case.residual, upload, merged),
    )
    if not sparsifier.dense and case.rnd.k > 1:
        fewer = tuple(max(1, k - 1) for k in ks(case.rnd))
        probed = sparsifier.probe(upload, case.share, case.rnd, fewer)
        assert as_dict(sparsifier.probe(other, case.share, case.rnd, fewer)) == as_dict(probed)


@every
@given(case=instances(client_k=True, kind="dyadic", share="dyadic"), order=st.randoms(use_true_random=False))
@examples(40)
def test_the_order_of_the_clients_means_nothing(name: str, case: Instance, order: Random) -> None:
    sparsifier = make(name)
    clients = list(range(len(case.residual)))
    order.shuffle(clients)
    other = case.rnd.at([ks(case.rnd)[i] for i in clients])
    merged = sparsifier.merge(sparsifier.upload(case.residual, case.rnd), case.share, case.rnd)
    permuted = sparsifier.merge(sparsifier.upload(case.residual[clients], other), case.share[clients], other)
    assert as_dict(permuted) == as_dict(merged)


@every
@given(case=instances(client_k=True))
@examples(30)
def test_nothing_is_written_to_and_nothing_is_shared(name: str, case: Instance) -> None:
    sparsifier = make(name)
    with unchanged(case):
        upload = sparsifier.upload(case.residual, case.rnd)
    with unchanged(case, upload):
        merged = sparsifier.merge(upload, case.share, case.rnd)
        if not sparsifier.dense and case.rnd.k > 1:
            sparsifier.probe(upload, case.share, case.rnd, 1)
    with unchanged(case, upload, merged):
        settled = sparsifier.settle(case.residual, upload, merged)
    with unchanged(upload, merged, settled):
        case.residual.add_(1.0)


@every_sparse
@given(case=instances(client_k=True))
@examples(30)
def test_the_bare_object_settles_in_place(name: str, case: Instance) -> None:
    checked = make(name)
    bare, residual = unchecked(checked), case.residual.clone()
    upload = bare.upload(residual, case.rnd)
    assert isinstance(upload, Ragged)
    merged = bare.merge(upload, case.share, case.rnd)
    settled = checked.settle(case.residual, upload, merged)
    assert bare.settle(residual, upload, merged) is residual
    assert_same(residual, settled)


@every
@pytest.mark.parametrize("device", DEVICES)
@given(case=instances(client_k=True, kind="dyadic", share="dyadic"))
@examples(25)
def test_every_device_gives_the_same(name: str, device: str, case: Instance) -> None:
    results = []
    for place in ("cpu", device):
        sparsifier, residual, share = make(name), case.residual.to(place), case.share.to(place)
        upload = sparsifier.upload(residual, case.rnd)
        merged = sparsifier.merge(upload, share, case.rnd)
        settled = sparsifier.settle(residual, upload, merged)
        assert upload.values.device.type == merged.indices.device.type == settled.device.type == place
        fewer = tuple(max(1, k - 1) for k in ks(case.rnd))
        probed = (
            {} if sparsifier.dense or case.rnd.k == 1 else as_dict(sparsifier.probe(upload, share, case.rnd, fewer))
        )
        results.append((as_dicts(upload), upload.lengths, as_dict(merged), probed, settled.tolist()))
    assert results[0] == results[1]


@every_sparse
@given(case=instances(client_k=True), data=st.data())
@examples(40)
def test_some_of_the_clients_are_a_round_of_their_own(name: str, case: Instance, data: st.DataObject) -> None:
    """A driver may make the uploads of a part of the clients at a time."""
    sparsifier, clients = make(name), len(case.residual)
    first = data.draw(st.integers(0, clients - 1))
    part = slice(first, data.draw(st.integers(first + 1, clients)))
    upload = sparsifier.upload(case.residual[part], case.rnd.at(ks(case.rnd)[part]))
    assert as_dicts(upload) == as_dicts(sparsifier.upload(case.residual, case.rnd))[part]


# FAB-top-k: the fair choice, with unequal uploads.


@ways
@given(case=instances(client_k=True, max_clients=8, max_dim=24))
@examples(200)
def test_the_fair_choice_equals_the_procedure(way: str, case: Instance) -> None:
    upload = make("fab-top-k").upload(case.residual, case.rnd)
    with going(way):
        for k in range(1, case.rnd.k + 1):
            chosen = fair_selection(upload, k).tolist()
            assert len(set(chosen)) == len(chosen) == k
            assert set(chosen) == literal.FabTopK.select(as_dicts(upload), k)


@given(case=instances(client_k=True, max_clients=8, max_dim=24))
@examples(200)
def test_every_client_contributes_its_fair_part_as_far_as_it_sent_it(case: Instance) -> None:
    upload = make("fab-top-k").upload(case.residual, case.rnd)
    clients = len(case.residual)
    chosen = set(fair_selection(upload, case.rnd.k).tolist())
    for sent, k in zip(as_dicts(upload), ks(case.rnd), strict=True):
        assert len(chosen & set(sent)) >= min(k, case.rnd.k // clients)


def test_a_worked_example() -> None:
    """Client 0 sends three elements, client 1 one. Top 1 of both: {0, 3}. Client 0's second fills up: 2, not 1."""
    residual = torch.tensor([[9.0, 3, 4, 0], [1, 0, 0, 7]])
    rnd, share = Round(number=1, k=3).at((3, 1)), torch.tensor([0.5, 0.5])
    fab = make("fab-top-k")
    upload = fab.upload(residual, rnd)
    assert as_dicts(upload) == [{0: 9, 2: 4, 1: 3}, {3: 7}]
    merged = fab.merge(upload, share, rnd)
    assert as_dict(merged) == {0: 4.5, 3: 3.5, 2: 2.0}
    assert fab.settle(residual, upload, merged).tolist() == [[0, 3, 0, 0], [1, 0, 0, 0]]
    assert as_dict(fab.probe(upload, share, rnd, (2, 1))) == {0: 4.5, 3: 3.5}


# What is refused.

RESIDUAL, SHARE = torch.arange(1.0, 16.0).view(3, 5), torch.tensor([0.5, 0.25, 0.25])
UNEQUAL = Round(number=1, k=3).at((3, 1, 2))


def with_ks(client_k: Any, k: int = 3) -> Round:
    return Round(number=1, k=k, client_k=client_k)


@every
@pytest.mark.parametrize(
    ("rnd", "residual", "named"),
    [
        (with_ks((3, 1)), RESIDUAL, "client_k has 2 entries for residual [3, 5]"),
        (with_ks((3,)), RESIDUAL[0], "client_k has 1 entries for residual [5]"),
        (with_ks((3, 0, 2)), RESIDUAL, "k of client 1 must be in [1, 3], got 0"),
        (with_ks((3, 4, 2)), RESIDUAL, "k of client 1 must be in [1, 3], got 4"),
        (with_ks((3, 1.0, 2)), RESIDUAL, "k of client 1 must be an integer, got 1.0"),
        (with_ks((2, 1, 2)), RESIDUAL, "k must be the largest of [2, 1, 2], got 3"),
        (with_ks((), 3), RESIDUAL, "k must be the largest of [], got 3"),
        (with_ks((6, 1, 2), 6), RESIDUAL, "k must be in [1, 5], got 6"),
    ],
)
def test_bad_rounds(name: str, rnd: Round, residual: Tensor, named: str) -> None:
    with unchanged(residual), pytest.raises(GradsiftError, match=re.escape(named)):
        make(name).upload(residual, rnd)


@every_sparse
@pytest.mark.parametrize(
    ("rnd", "probe_k", "named"),
    [
        (UNEQUAL.at((3, 1)), (2, 1), "client_k has 2 entries for 3 uploads"),
        (UNEQUAL.at((3, 1, 1)), (2, 1, 1), "the upload in row 2 holds 2 elements, more than its client's k = 1"),
        (UNEQUAL, (2, 1), "probe_k has 2 entries for 3 uploads"),
        (UNEQUAL, (2, 1, 3), "probe_k must be in [1, 2], got 3"),
        (UNEQUAL, (2, 0, 1), "probe_k must be in [1, 2], got 0"),
        (UNEQUAL, 3, "probe_k must be in [1, 2], got 3"),
    ],
)
def test_bad_merges_and_probes(name: str, rnd: Round, probe_k: int | Sequence[int], named: str) -> None:
    sparsifier = make(name)
    upload = sparsifier.upload(RESIDUAL, UNEQUAL)
    calls: list[Callable[[], object]] = [lambda: sparsifier.probe(upload, SHARE, rnd, probe_k)]
    if rnd is not UNEQUAL:
        calls.append(lambda: sparsifier.merge(upload, SHARE, rnd))
    for call in calls:
        with unchanged(upload), pytest.raises(GradsiftError, match=re.escape(named)):
            call()


@every_sparse
def test_a_row_that_was_padded_can_be_merged_alone(name: str) -> None:
    sparsifier = make(name)
    upload = sparsifier.upload(RESIDUAL, UNEQUAL)
    row = Ragged(upload.indices[1], upload.values[1], upload.dim)
    merged = sparsifier.merge(row, torch.ones(1), UNEQUAL.at(3))
    assert torch.equal(gradsift.densify(merged), gradsift.densify(row))
