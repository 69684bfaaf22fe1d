"""What FUB-top-k and unidirectional top-k send down (Section V-A, items 1 and 2)."""

import pytest
import torch
from hypothesis import given

import gradsift
from gradsift import Round
from tests.examples import examples
from tests.sparsify.cases import WAYS, Instance, as_dict, going, instances

FUB = gradsift.sparsifier("fub-top-k")
UNIDIRECTIONAL = gradsift.sparsifier("unidirectional-top-k")


@given(case=instances())
@examples(200)
def test_fub_keeps_the_largest_of_what_unidirectional_sends(case: Instance) -> None:
    upload = FUB.upload(case.residual, case.rnd)
    whole = as_dict(UNIDIRECTIONAL.merge(upload, case.share, case.rnd))
    assert set(whole) == set(upload.indices.flatten().tolist())
    kept = as_dict(FUB.merge(upload, case.share, case.rnd))
    ranked = sorted(whole, key=lambda j: (-abs(whole[j]), j))
    assert kept == {j: whole[j] for j in ranked[: case.rnd.k]}


def test_unidirectional_may_send_down_k_elements_of_every_client() -> None:
    residual = torch.eye(4).repeat_interleave(2, dim=1)  # client i has elements 2i and 2i + 1
    rnd = Round(number=1, k=2)
    merged = UNIDIRECTIONAL.merge(UNIDIRECTIONAL.upload(residual, rnd), torch.full((4,), 0.25), rnd)
    assert as_dict(merged) == dict.fromkeys(range(8), 0.25)


def test_fub_at_a_smaller_k_may_keep_what_it_drops_at_a_larger_one() -> None:
    """Why its probe cannot be cut from its merge: at k = 2 the clients reveal that they cancel at index 0."""
    residual = torch.tensor([[5.0, 4, 0], [0, 3, 0], [-4.9, 0, 5]], dtype=torch.float64)
    share = torch.full((3,), 1 / 3, dtype=torch.float64)
    rnd = Round(number=1, k=2)
    upload = FUB.upload(residual, rnd)
    assert set(FUB.merge(upload, share, rnd).indices.tolist()) == {1, 2}
    assert as_dict(FUB.probe(upload, share, rnd, probe_k=1)) == {0: pytest.approx(5 / 3)}


@pytest.mark.parametrize("way", WAYS)
def test_fub_keeps_what_was_sent_and_cancels_before_what_nobody_sent(way: str) -> None:
    """Both are zero in the sum, and the index that nobody sent is the lower one."""
    residual, share = torch.tensor([[0.0, 2, 0], [0, -2, 0]]), torch.tensor([0.5, 0.5])
    for rnd in (Round(number=1, k=1), Round(number=1, k=1).at((1, 1))):
        with going(way):
            assert as_dict(FUB.merge(FUB.upload(residual, rnd), share, rnd)) == {1: 0.0}


@pytest.mark.parametrize("way", WAYS)
def test_fub_keeps_no_more_than_was_sent(way: str) -> None:
    upload = gradsift.stack([gradsift.top_k(torch.tensor([0.0, 0, 2, 1]), 2), gradsift.top_k(torch.ones(4), 1)])
    with going(way):
        assert as_dict(FUB.merge(upload, torch.tensor([0.5, 0.5]), Round(1, k=4))) == {0: 0.5, 2: 1.0, 3: 0.5}
