"""FAB-top-k against the paper's literal procedure, and what the paper promises of it (Section III-B).

Shapes: residual [N, D], upload [N, k].
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from gradsift import Round, Sparse
from gradsift.sparsify.fab_top_k import fair_selection
from tests.examples import examples
from tests.reference import literal
from tests.sparsify.cases import WAYS, Instance, as_dict, as_dicts, going, instances

FAB = gradsift.sparsifier("fab-top-k")


def selected(residual: torch.Tensor, k: int) -> set[int]:
    """J, by the fast way, after holding it to the literal one."""
    upload = FAB.upload(residual, Round(number=1, k=k))
    fast = fair_selection(upload, k).tolist()
    assert len(set(fast)) == len(fast)
    assert set(fast) == literal.FabTopK.select(as_dicts(upload), k)
    return set(fast)


def test_it_equals_the_procedure_on_every_small_case() -> None:
    """All 729 pairs of clients with three elements out of {0, 1, 2}, and all k: every pattern of ties there is."""
    for elements in itertools.product((0.0, 1.0, 2.0), repeat=6):
        residual = torch.tensor(elements).view(2, 3)
        for k in (1, 2, 3):
            selected(residual, k)


@st.composite
def matrices(draw: st.DrawFn) -> torch.Tensor:
    """Drawn element by element, so that a failure shrinks to the elements that matter."""
    dim = draw(st.integers(1, 7))
    element = draw(st.sampled_from([st.integers(-2, 2), st.floats(-10, 10)]))
    row = st.lists(element, min_size=dim, max_size=dim)
    return torch.tensor(draw(st.lists(row, min_size=1, max_size=6)), dtype=torch.float64)


@given(residual=matrices())
@examples(400)
def test_it_equals_the_procedure_at_every_k(residual: torch.Tensor) -> None:
    for k in range(1, residual.shape[1] + 1):
        selected(residual, k)


@pytest.mark.slow
def test_it_equals_the_procedure_on_larger_cases() -> None:
    source = np.random.default_rng(0)
    for trial in range(1500):
        clients, dim = int(source.integers(1, 40)), int(source.integers(1, 80))
        k = int(source.integers(1, dim + 1))
        # Few distinct values tie often; a scale for each coordinate makes the clients want the same ones.
        wanted = source.exponential(size=dim) ** (trial % 4)
        drawn = source.normal(size=(clients, dim)) * wanted
        residual = torch.from_numpy(drawn if trial % 2 else np.round(drawn))
        assert len(selected(residual, k)) == k


@pytest.mark.parametrize(
    ("clients", "dim", "k"), [(1, 6, 1), (1, 6, 6), (1, 1, 1), (9, 4, 2), (9, 4, 1), (3, 5, 5), (30, 5, 3)]
)
@pytest.mark.parametrize("kind", ["zeros", "equal", "ties", "normal"])
def test_it_equals_the_procedure_at_the_edges(clients: int, dim: int, k: int, kind: str) -> None:
    source = np.random.default_rng(clients * dim + k)
    for _ in range(5):
        row = {"zeros": np.zeros(dim), "equal": source.normal(size=dim)}.get(kind)
        drawn = source.integers(-1, 2, (clients, dim)) if kind == "ties" else source.normal(size=(clients, dim))
        residual = torch.from_numpy((np.tile(row, (clients, 1)) if row is not None else drawn).astype(np.float64))
        chosen = selected(residual, k)
        if kind == "zeros":
            assert chosen == set(range(k))
        if kind == "equal" or clients == 1:
            assert chosen == set(gradsift.top_k(residual[0], k).indices.tolist())


@given(case=instances(max_clients=8, max_dim=24))
@examples(200)
def test_every_client_contributes_its_fair_part(case: Instance) -> None:
    clients, dim = case.residual.shape
    for k in range(1, dim + 1):
        upload = FAB.upload(case.residual, Round(number=1, k=k))
        chosen = set(fair_selection(upload, k).tolist())
        assert len(chosen) == k
        for sent in upload.indices.tolist():
            assert len(chosen & set(sent)) >= k // clients


def test_fairness_is_a_guarantee_that_fub_does_not_give() -> None:
    """A client with small gradients is heard by FAB alone: else the test above would prove little."""
    residual = torch.tensor([[9.0, 8, 7, 6, 0, 0, 0, 0], [0, 0, 0, 0, 1, 2, 3, 4]])
    rnd, share = Round(number=1, k=4), torch.tensor([0.5, 0.5])
    merged = {}
    for name in ("fab-top-k", "fub-top-k"):
        sparsifier = gradsift.sparsifier(name)
        merged[name] = set(sparsifier.merge(sparsifier.upload(residual, rnd), share, rnd).indices.tolist())
    assert merged == {"fab-top-k": {0, 1, 6, 7}, "fub-top-k": {0, 1, 2, 3}}


@given(case=instances(max_clients=8, max_dim=16))
@examples(100)
def test_a_smaller_k_selects_a_subset(case: Instance) -> None:
    larger: set[int] = set()
    for k in range(1, case.residual.shape[1] + 1):
        smaller, larger = larger, set(fair_selection(FAB.upload(case.residual, Round(number=1, k=k)), k).tolist())
        assert smaller < larger


@given(case=instances(), order=st.permutations(range(6)))
@examples(150)
def test_any_order_of_the_clients_gives_the_same_set(case: Instance, order: list[int]) -> None:
    """Whatever the floats are: a set of coordinates, not a sum, decides."""
    clients = [i for i in order if i < case.residual.shape[0]]
    upload = FAB.upload(case.residual, case.rnd)
    permuted = Sparse(upload.indices[clients], upload.values[clients], upload.dim)
    merged = FAB.merge(upload, case.share, case.rnd)
    assert torch.equal(FAB.merge(permuted, case.share[clients], case.rnd).indices, merged.indices)


def test_a_worked_example_with_a_fill() -> None:
    """Top 1 of everyone: {0, 1}. Top 2: {0, 1, 2, 3}, too many for k = 3, so kappa = 1 and one element fills up.

    At rank 2, index 2 has |a| = 4 and index 3 has |a| = 5: 3 is taken. The aggregate would choose otherwise (client 1
    also sent index 2, so |b_2| = 4.75 > |b_3| = 2.5), and so would the largest |a_ij| of anyone (5.5, at rank 3).
    """
    residual = torch.tensor([[9.0, 0, 4, 0], [0, 7, 5.5, 6]])
    rnd, share = Round(number=1, k=3), torch.tensor([0.5, 0.5])
    upload = FAB.upload(residual, rnd)
    assert [set(row) for row in upload.indices.tolist()] == [{0, 2, 1}, {1, 3, 2}]
    merged = FAB.merge(upload, share, rnd)
    assert as_dict(merged) == {0: 4.5, 1: 3.5, 3: 3.0}
    # Client 0 sent 0, 2 and (a zero) 1; client 1 sent 1, 3 and 2. Nobody forgets index 2.
    assert FAB.settle(residual, upload, merged).tolist() == [[0, 0, 4, 0], [0, 0, 5.5, 0]]


def test_a_client_that_ranks_an_element_lower_still_contributes_its_value() -> None:
    """b_j sums over everyone who sent j; of the probe, over everyone who would have sent it (so b'_j is not b_j)."""
    residual = torch.tensor([[8.0, 4, 0, 0], [2, 0, 0, 6]])
    rnd, share = Round(number=1, k=2), torch.tensor([0.5, 0.5])
    upload = FAB.upload(residual, rnd)
    assert as_dict(FAB.merge(upload, share, rnd)) == {0: 5.0, 3: 3.0}
    assert as_dict(FAB.probe(upload, share, rnd, probe_k=1)) == {0: 4.0}


def test_an_empty_upload_merges_to_nothing() -> None:
    empty = Sparse(torch.empty(3, 0, dtype=torch.int64), torch.empty(3, 0), 5)
    assert FAB.merge(empty, torch.full((3,), 1 / 3), Round(number=1, k=2)).size == 0


@pytest.mark.parametrize("way", WAYS)
def test_uploads_may_hold_fewer_than_k(way: str) -> None:
    """A codec that drops zeros: what is there is ranked as ever, and all of it fits."""
    upload = Sparse(torch.tensor([[0, 1], [1, 2]]), torch.tensor([[3.0, 2], [4, 1]]), 6)
    share, rnd = torch.tensor([0.5, 0.5]), Round(number=1, k=5)
    with going(way):
        assert as_dict(FAB.merge(upload, share, rnd)) == {0: 1.5, 1: 3.0, 2: 0.5}
        assert set(fair_selection(upload, 2).tolist()) == literal.FabTopK.select(as_dicts(upload), 2) == {0, 1}
        unequal = gradsift.stack([gradsift.top_k(torch.tensor([0.0, 0, 2, 1]), 2), gradsift.top_k(torch.ones(4), 1)])
        assert as_dict(FAB.merge(unequal, share, Round(number=1, k=4))) == {0: 0.5, 2: 1.0, 3: 0.5}
