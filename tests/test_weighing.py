"""What waits in the residuals, and whether clients agree: by the slow obvious way, and by cases with known answers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsift import weighing
from gradsift.sparse import Sparse, everything, top_k
from gradsift.sparsify import Round, sparsifier
from tests.examples import examples


def by_hand(residual: torch.Tensor, uploads: Sparse, merged: Sparse, share: torch.Tensor) -> tuple[float, float]:
    """Waiting time and agreement, client by client and element by element."""
    kept = set(merged.indices.tolist())
    value = dict(zip(merged.indices.tolist(), merged.values.tolist(), strict=True))
    mass = sent = left = 0.0
    for i, weight in enumerate(share.tolist()):
        row = residual[i].tolist()
        mass += weight * sum(map(abs, row))
        for j, x in zip(uploads.indices[i].tolist(), uploads.values[i].tolist(), strict=True):
            if j in kept:
                sent += weight * abs(x)
                row[j] -= x
        left += weight * sum(row[j] * b for j, b in value.items())
    return mass / sent - 1, 1 + left / sum(b * b for b in value.values())


@pytest.mark.parametrize("name", ["fab-top-k", "fub-top-k", "unidirectional-top-k", "periodic-k", "send-all"])
@given(data=st.data())
@examples(40)
def test_both_are_as_by_hand(name: str, data: st.DataObject) -> None:
    clients, dim = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 30))
    k = dim if name == "send-all" else data.draw(st.integers(1, dim))
    numbers = torch.tensor(data.draw(st.lists(st.integers(1, 99), min_size=clients, max_size=clients)))
    share = numbers.double() / numbers.sum()
    residual = torch.randn(clients, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(k + 31 * dim))
    ours, rnd = sparsifier(name), Round(1, k, 0)
    uploads = ours.upload(residual, rnd)
    merged = ours.merge(uploads, share, rnd)
    waiting, agreement = by_hand(residual, uploads, merged, share)
    mass = weighing.residual_mass(residual)
    assert float(weighing.waiting(uploads, merged, share, mass)) == pytest.approx(waiting, abs=1e-9)
    settled = ours.settle(residual.clone(), uploads, merged)
    left = weighing.left_over(settled, merged)
    assert float(weighing.agreement(left, share, merged)) == pytest.approx(agreement, abs=1e-9)


def weigh(residual: torch.Tensor, k: int) -> tuple[float, float]:
    """Waiting time and agreement after a round of FAB-top-k with equal shares."""
    share, rnd = torch.full((len(residual),), 1 / len(residual)), Round(1, k, 0)
    ours = sparsifier("fab-top-k")
    mass, uploads = weighing.residual_mass(residual), ours.upload(residual, rnd)
    merged = ours.merge(uploads, share, rnd)
    waiting = float(weighing.waiting(uploads, merged, share, mass))
    left = weighing.left_over(ours.settle(residual, uploads, merged), merged)
    return waiting, float(weighing.agreement(left, share, merged))


def test_if_everything_is_sent_nothing_waits() -> None:
    assert weigh(torch.tensor([[1.0, -2.0], [3.0, 4.0]]), 2) == (0.0, 1.0)


def test_a_quarter_sent_means_three_rounds_of_waiting() -> None:
    assert weigh(torch.ones(1, 8), 2) == pytest.approx((3.0, 1.0))


def test_clients_that_hold_the_opposite_agree_in_nothing() -> None:
    """Each client sends what the other holds with the other sign: all of what was sent is taken back later."""
    residual = torch.tensor([[2.0, -1.0], [-1.0, 2.0]])
    one = Sparse(torch.tensor([[0], [1]]), torch.tensor([[2.0], [2.0]]), 2)
    merged = Sparse(torch.tensor([0, 1]), torch.tensor([1.0, 1.0]), 2)
    settled = sparsifier("fab-top-k").settle(residual, one, merged)
    left = weighing.left_over(settled, merged)
    assert float(weighing.agreement(left, torch.full((2,), 0.5), merged)) == pytest.approx(0.5)


def test_values_that_are_not_finite_are_left_out() -> None:
    values = {"waiting": torch.tensor(math.inf), "agreement": torch.tensor(0.5), "other": torch.tensor(1.0)}
    assert weighing.weighed(values) == {"agreement": 0.5}


def test_many_elements_and_few_give_the_same() -> None:
    residual = torch.randn(3, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    dense = everything(residual[0])
    few = top_k(residual[0], 4)
    for merged in (dense, few, top_k(residual[0], 40)):
        by_index = residual[:, merged.indices] @ merged.values
        torch.testing.assert_close(weighing.left_over(residual, merged), by_index)
