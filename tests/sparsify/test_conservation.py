"""Nothing is lost, client by client, over whole runs: the sum of a client's gradients is what it sent and was kept,
plus its residual.

Every gradient is a multiple of 1/64 and small, so that all of these sums are exact in float32 and the laws hold to the
bit. Shapes: residual, gradients, kept [N, D]; upload [n, k] of the n clients that are there; share [N].
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradsift
from gradsift import Round, Sparse
from gradsift.sparse import nothing
from tests.examples import examples
from tests.sparsify.cases import ALL, TABLE, WAYS, as_dict, going, make, shares

every = pytest.mark.parametrize("name", ALL)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


class Setting(NamedTuple):
    clients: int
    dim: int
    k: int | None  # None: another one every round
    rounds: int
    seed: int
    absent: bool = False  # clients miss rounds
    lossy: bool = False  # values are rounded to half precision on their way
    late: bool = False  # gradients arrive between upload and settle
    unequal: bool = False  # each client has a k of its own, another one every round


class Outcome(NamedTuple):
    share: Tensor
    gradients: Tensor  # [N, D]: the sum of all that came
    residual: Tensor  # [N, D]: at the end
    applied: Tensor  # [D]: the sum of all B
    missed: int  # client-rounds without the client
    rounded: int  # values that the way changed


@st.composite
def settings_of_runs(draw: st.DrawFn, /, **fixed: bool) -> Setting:
    dim = draw(st.integers(1, 10))
    return Setting(
        clients=draw(st.integers(1, 5)),
        dim=dim,
        k=draw(st.one_of(st.none(), st.integers(1, dim))),
        rounds=draw(st.integers(1, 10)),
        seed=draw(st.integers(0, 2**32)),
        **fixed,
    )


def gradients_of(source: np.random.Generator, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Multiples of 1/64 up to 64 in size, most of them small: too fine for half precision, not for single."""
    return torch.from_numpy(np.rint(source.uniform(-1, 1, shape) ** 3 * 4096) / 64).to(dtype)


def run(name: str, setting: Setting, dtype: torch.dtype = torch.float64) -> Outcome:
    """A run, checked after every round."""
    sparsifier, source = make(name), np.random.default_rng(setting.seed)
    number_type: Any = np.float32 if dtype == torch.float32 else np.float64
    shape = (setting.clients, setting.dim)
    share_of_all = shares("dyadic", setting.clients, source).to(dtype)
    gradients, residual, kept = (torch.zeros(shape, dtype=dtype) for _ in range(3))
    applied = torch.zeros(setting.dim, dtype=dtype)
    fixed_k = setting.k or max(1, setting.dim // 4)
    offset = missed = rounded = 0

    for number in range(1, setting.rounds + 1):
        varied = setting.k is None and not TABLE[name].dense
        k = int(source.integers(1, setting.dim + 1)) if varied else fixed_k
        rnd = Round(number=number, k=k, seed=setting.seed, offset=offset)
        present, share = np.arange(setting.clients), share_of_all
        if setting.absent:
            present = np.flatnonzero(source.random(setting.clients) < 0.6)
            if not len(present) or share_of_all[present].sum() == 0:
                present = np.arange(setting.clients)
            share = share_of_all[present] / share_of_all[present].sum()
        missed += setting.clients - len(present)
        if setting.unequal and not TABLE[name].dense:
            rnd = rnd.at(source.integers(1, setting.dim + 1, len(present)).tolist())

        # An absentee may have computed its gradient (and its message was lost), or not.
        computed = np.isin(np.arange(setting.clients), present) | (source.random(setting.clients) < 0.5)
        came = gradients_of(source, shape, dtype) * torch.from_numpy(computed)[:, None]
        gradients, residual = gradients + came, residual + came

        here = residual[present]
        exchange = number % sparsifier.local.period(setting.dim, k) == 0
        upload = sparsifier.upload(here, rnd) if exchange else nothing(here)
        if setting.lossy:
            values = upload.values.half().to(dtype)
            sent = upload.with_values(values) if setting.unequal else upload._replace(values=values)
            rounded += int((sent.values != upload.values).sum())
            upload = sent
        merged = sparsifier.merge(upload, share, rnd)
        if setting.late:
            came = gradients_of(source, shape, dtype)
            gradients, residual = gradients + came, residual + came
            here.add_(came[present])  # in place: the message on its way must not feel it
        residual[present] = sparsifier.settle(here, upload, merged)
        offset += upload.size

        # What was kept, by hand; B is the sum of exactly that, in the order of the clients.
        expected = {j: number_type(0) for j in merged.indices.tolist()}
        for i, part, indices, values in zip(present, share.numpy(), *upload[:2], strict=True):
            for j, value in zip(indices.tolist(), values.numpy(), strict=True):
                if j in expected:
                    kept[i, j] += value.item()
                    expected[j] += part * value
        assert as_dict(merged) == expected
        assert torch.equal(gradients, kept + residual)
        applied = applied + gradsift.densify(merged)
    return Outcome(share_of_all, gradients, residual, applied, missed, rounded)


@every
@dtypes
@given(setting=settings_of_runs())
@examples(25)
def test_with_everyone_present_the_law_holds_for_the_whole_federation(
    name: str, dtype: torch.dtype, setting: Setting
) -> None:
    end = run(name, setting, dtype)
    share = end.share[:, None]
    assert torch.equal((share * end.gradients).sum(0), end.applied + (share * end.residual).sum(0))


@every
@dtypes
@given(setting=settings_of_runs(absent=True))
@examples(25)
def test_clients_that_miss_rounds_lose_nothing(name: str, dtype: torch.dtype, setting: Setting) -> None:
    run(name, setting, dtype)


@every
@dtypes
@given(setting=settings_of_runs(lossy=True, late=True))
@examples(25)
def test_lossy_values_and_late_gradients_lose_nothing(name: str, dtype: torch.dtype, setting: Setting) -> None:
    end = run(name, setting, dtype)
    share = end.share[:, None]
    assert torch.equal((share * end.gradients).sum(0), end.applied + (share * end.residual).sum(0))


@every
@given(setting=settings_of_runs(absent=True, lossy=True, late=True))
@examples(25)
def test_everything_at_once_loses_nothing(name: str, setting: Setting) -> None:
    run(name, setting)


@every
@dtypes
@given(setting=settings_of_runs(unequal=True))
@examples(25)
def test_clients_that_send_different_numbers_of_elements_lose_nothing(
    name: str, dtype: torch.dtype, setting: Setting
) -> None:
    end = run(name, setting, dtype)
    share = end.share[:, None]
    assert torch.equal((share * end.gradients).sum(0), end.applied + (share * end.residual).sum(0))


@every
@given(setting=settings_of_runs(unequal=True, absent=True, lossy=True, late=True))
@examples(25)
def test_everything_at_once_with_different_numbers_loses_nothing(name: str, setting: Setting) -> None:
    run(name, setting)


@every
@pytest.mark.parametrize("way", WAYS[1:])
@given(setting=settings_of_runs(unequal=True, lossy=True, late=True))  # absentees would make shares that are not exact
@examples(15)
def test_as_queued_nothing_is_lost_either(name: str, way: str, setting: Setting) -> None:
    with going(way):
        run(name, setting)


@every
def test_these_runs_do_what_they_are_for(name: str) -> None:
    """Clients did miss rounds, values were rounded on their way, something was kept and something stayed behind."""
    setting = Setting(clients=5, dim=10, k=2, rounds=9, seed=1, absent=True, lossy=True, late=True)
    end = run(name, setting)
    assert end.missed > 5
    assert end.rounded > 5
    assert end.applied.any()
    assert end.residual.any()


@every
def test_what_travels_in_half_precision_settles_as_it_travelled(name: str) -> None:
    """An upload whose dtype is float16: the residual keeps its own dtype and what was rounded off."""
    sparsifier, rnd = make(name), Round(number=2, k=1)
    residual = torch.full((1, 4), 1000.25)
    upload = sparsifier.upload(residual, rnd)
    half = Sparse(upload.indices, upload.values.half(), upload.dim)
    merged = sparsifier.merge(half, torch.ones(1), rnd)
    settled = sparsifier.settle(residual, half, merged)
    assert settled.dtype == torch.float32
    assert torch.equal(gradsift.densify(merged).float() + settled[0], residual[0])
    assert 0.25 in settled
