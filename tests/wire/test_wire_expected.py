"""The expected size of a message is near the real one, for random messages and for those of training."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from benchmarks.low_bits import rounded
from gradsift import GradsiftError
from gradsift.data import load
from gradsift.models import model
from gradsift.values import Exact
from gradsift.wire import VALUE_TYPES, encoded_size, expected_size

LAPLACE = torch.distributions.Laplace(0.0, 1.0)


@pytest.mark.parametrize("dim", [1_000, 30_000, 1_000_000])
@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("tail", ["normal", "exponential"])
def test_the_size_of_random_top_k_messages_to_five_percent(dim: int, share: float, tail: str) -> None:
    k = int(dim * share)
    if k < 20:
        return
    torch.manual_seed(0)
    vector = torch.randn(dim) if tail == "normal" else LAPLACE.sample(torch.Size([dim]))
    assert expected_size(dim, k) == pytest.approx(int(Exact().encoded_size(gradsift.top_k(vector, k))), rel=0.05)


@pytest.mark.parametrize("k", [1, 2, 5, 10])
def test_the_size_of_short_messages_to_ten_bytes(k: int) -> None:
    torch.manual_seed(0)
    for dim in (10, 1_000, 1_000_000):
        assert abs(expected_size(dim, k) - int(encoded_size(gradsift.top_k(torch.randn(dim), k)))) < 10


@pytest.mark.parametrize("values", VALUE_TYPES)
def test_the_size_of_every_value_type_to_five_percent(values: str) -> None:
    torch.manual_seed(0)
    vector = LAPLACE.sample(torch.Size([100_000]))
    for k in (100, 1_000, 10_000, 100_000):
        real = int(encoded_size(gradsift.top_k(vector, k), values=values))
        assert expected_size(100_000, k, values=values) == pytest.approx(real, rel=0.05)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("dim", [1_000, 30_000, 1_000_000])
@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.9, 1.0])
def test_the_size_of_values_of_a_few_bits_to_a_few_percent(bits: int, dim: int, share: float) -> None:
    """Near D it depends on the tail: two thirds of the normal's values are below its standard deviation."""
    k = int(dim * share)
    if k < 100:
        return
    torch.manual_seed(0)
    for tail in (LAPLACE, torch.distributions.Normal(0.0, 1.0)):
        real = int(encoded_size(rounded(gradsift.top_k(tail.sample(torch.Size([dim])), k), bits)))
        assert expected_size(dim, k, bits=bits) == pytest.approx(real, rel=0.06 if share <= 0.5 else 0.2)


def test_the_levels_of_a_table_may_be_float64() -> None:
    torch.manual_seed(0)
    upload = rounded(gradsift.top_k(LAPLACE.sample(torch.Size([20_000])).double(), 3_000), 8)
    assert expected_size(20_000, 3_000, values="float64", bits=8) == pytest.approx(int(encoded_size(upload)), rel=0.05)


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_a_short_message_of_a_few_bits_takes_no_more_than_an_exact_one(bits: int) -> None:
    for k in (1, 2, 5, 30):
        assert 20 < expected_size(1_000, k, bits=bits) <= expected_size(1_000, k)


@pytest.mark.parametrize("k", [50, 600])
def test_the_bytes_of_a_round_of_training_to_five_percent(k: int) -> None:
    data = load("digits", clients=10)
    network = model("small-cnn", data)
    dim = sum(weights.numel() for weights in network.parameters())
    result = gradsift.simulate(
        network,
        torch.nn.functional.cross_entropy,
        data,
        sparsifier="fab-top-k",
        controller=gradsift.controller("fixed", k=k),
        cost=gradsift.LinkTime(1.0, 1.0),
        rounds=20,
        lr=0.3,
        batch_size=32,
        encoded_bytes=True,
    )
    sent = np.mean([record["up_bytes"] + record["down_bytes"] for record in result.records]) / 10
    assert 2 * expected_size(dim, k) == pytest.approx(sent, rel=0.05)


@given(dim=st.integers(1, 10**9), share=st.floats(0, 1), step=st.floats(1, 3))
def test_it_grows_with_k_and_is_below_four_bytes_a_number(dim: int, share: float, step: float) -> None:
    k = max(1.0, share * dim)
    more = min(float(dim), k * step)
    small, large = expected_size(dim, k), expected_size(dim, more)
    assert 20 < small < 50 + 4 * dim
    assert more == dim or small <= large * (1 + 1e-9)  # the set of all indices takes no bytes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1), "dim must be at least 1, got 0"),
        ((10, 0), r"k must be in \[1, 10\], got 0"),
        ((10, 11), r"k must be in \[1, 10\], got 11"),
        ((10, float("nan")), "k must be a finite number, got nan"),
    ],
)
def test_bad_sizes_are_refused(arguments: tuple[int, float], message: str) -> None:
    with pytest.raises(GradsiftError, match=message):
        expected_size(*arguments)


@pytest.mark.parametrize("bits", [0, 9, 2.0, True])
def test_bits_that_no_table_has_are_refused(bits: int) -> None:
    with pytest.raises(GradsiftError, match="bits must be"):
        expected_size(10, 1, bits=bits)


def test_levels_are_not_rounded_a_second_time() -> None:
    with pytest.raises(GradsiftError, match="float32 or float64, not int8"):
        expected_size(10, 1, values="int8", bits=2)


def test_an_unknown_value_type_is_refused() -> None:
    with pytest.raises(GradsiftError, match="unknown value type 'int4'"):
        expected_size(10, 1, values="int4")
