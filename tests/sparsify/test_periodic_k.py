"""Periodic-k covers every coordinate before any repeats (Section V-A, item 3)."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from gradsift import Round
from tests.examples import examples

PERIODIC = gradsift.sparsifier("periodic-k")
seeds = st.integers(0, 2**64 - 1)


def sequence(dim: int, ks: list[int], seed: int) -> list[list[int]]:
    """The coordinates of each round of a run, as a driver gets them: it advances offset by what was sent."""
    rounds, offset = [], 0
    for number, k in enumerate(ks, start=1):
        upload = PERIODIC.upload(torch.zeros(dim), Round(number=number, k=k, seed=seed, offset=offset))
        rounds.append(upload.indices.tolist())
        offset += upload.size
    return rounds


@given(data=st.data(), dim=st.integers(1, 20), seed=seeds)
@examples(200)
def test_every_coordinate_comes_once_a_pass_also_when_k_changes_every_round(
    data: st.DataObject, dim: int, seed: int
) -> None:
    ks = data.draw(st.lists(st.integers(1, dim), min_size=1, max_size=60))
    covered: list[int] = []
    for k, coordinates in zip(ks, sequence(dim, ks, seed), strict=True):
        # As many as asked for, but never past the end of a pass.
        assert len(coordinates) == min(k, dim - len(covered))
        covered += coordinates
        assert len(set(covered)) == len(covered)
        if len(covered) == dim:
            assert sorted(covered) == list(range(dim))
            covered = []


@given(data=st.data(), dim=st.integers(1, 20), seed=seeds)
def test_the_order_of_a_pass_does_not_depend_on_k(data: st.DataObject, dim: int, seed: int) -> None:
    ones = [coordinates[0] for coordinates in sequence(dim, [1] * dim, seed)]
    ks = data.draw(st.lists(st.integers(1, dim), min_size=dim, max_size=dim))
    assert [j for coordinates in sequence(dim, ks, seed) for j in coordinates][:dim] == ones


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    dim = 30
    orders = {tuple(order) for seed in range(5) for order in sequence(dim, [dim] * 5, seed)}
    assert len(orders) == 25


def test_all_clients_send_the_same_coordinates_whatever_their_values() -> None:
    residual = torch.randn(5, 17, generator=torch.Generator().manual_seed(0))
    upload = PERIODIC.upload(residual, Round(number=3, k=4, seed=1, offset=9))
    assert upload.indices.shape == (5, 4)
    assert (upload.indices == upload.indices[0]).all()


def test_coordinates_are_chosen_evenly() -> None:
    """Each of 8 coordinates comes first in a pass about as often: 800 passes, 100 each, +- 5 standard deviations."""
    firsts = [sequence(8, [8], seed)[0][0] for seed in range(800)]
    counts = torch.tensor(firsts).bincount(minlength=8)
    assert (counts - 100).abs().max() < 5 * (800 * 1 / 8 * 7 / 8) ** 0.5


def test_the_round_before_the_end_of_a_pass_probes_what_it_would_have_sent() -> None:
    """Three coordinates are left: k = 5 sends three, and so does k' = 4; k' = 2 sends the first two."""
    dim, share = 13, torch.ones(1)
    rnd = Round(number=9, k=5, seed=2, offset=2 * dim + 10)
    residual = torch.arange(1.0, dim + 1)[None]
    upload = PERIODIC.upload(residual, rnd)
    order = sequence(dim, [dim] * 3, seed=2)[2]
    assert upload.indices.tolist() == [order[10:]]
    for probe_k, expected in ((4, order[10:]), (2, order[10:12]), (1, order[10:11])):
        probed = PERIODIC.probe(upload, share, rnd, probe_k)
        assert sorted(probed.indices.tolist()) == sorted(expected)
