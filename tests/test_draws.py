"""Draws: the key is the whole state."""

import math
import re
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsift import GradsiftError
from gradsift.draws import rng, uniform_rows

words = st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1))


class Key(NamedTuple):
    seed: int
    purpose: str
    client: int = 0
    number: int = 0

    def draw(self, count: int = 4) -> list[float]:
        drawn: list[float] = self.generator().random(count).tolist()
        return drawn

    def generator(self) -> np.random.Generator:
        return rng(self.seed, self.purpose, client=self.client, number=self.number)


keys = st.builds(Key, words, st.sampled_from(["minibatch", "rounding", "permutation", ""]), words, words)


@given(key=keys)
def test_the_same_key_draws_the_same(key: Key) -> None:
    assert key.draw() == key.draw()
    assert key.generator().permutation(9).tolist() == key.generator().permutation(9).tolist()
    assert key.draw(3) == key.draw(8)[:3]


@given(keys=st.lists(keys, min_size=2, max_size=6, unique=True))
def test_different_keys_draw_differently(keys: list[Key]) -> None:
    assert len({tuple(key.draw()) for key in keys}) == len(keys)


@given(key=keys, other=words, purpose=st.text())
def test_each_part_of_the_key_counts_alone(key: Key, other: int, purpose: str) -> None:
    for changed in (
        key._replace(seed=other),
        key._replace(purpose=purpose),
        key._replace(client=other),
        key._replace(number=other),
    ):
        assert (changed.draw() == key.draw()) == (changed == key)


@given(client=words, number=words)
def test_client_and_round_are_not_interchangeable(client: int, number: int) -> None:
    left, right = Key(0, "minibatch", client, number), Key(0, "minibatch", number, client)
    assert (left.draw() == right.draw()) == (client == number)


@given(keys=st.lists(keys, min_size=2, max_size=6, unique=True), order=st.randoms(use_true_random=False))
def test_the_order_of_drawing_means_nothing(keys: list[Key], order: Any) -> None:
    alone = {key: key.draw(6) for key in keys}
    generators = {key: key.generator() for key in keys}
    together: dict[Key, list[float]] = {key: [] for key in keys}
    turns = [key for key in keys for _ in range(6)]
    order.shuffle(turns)
    for key in turns:
        together[key].append(generators[key].random())
    assert together == alone


def test_a_long_draw_does_not_run_into_the_next_key() -> None:
    """Neighbouring rounds and clients are far apart in the counter, not one block apart."""
    long = set(Key(0, "minibatch").draw(4000))
    for neighbour in (Key(0, "minibatch", client=1), Key(0, "minibatch", number=1), Key(1, "minibatch")):
        assert not long & set(neighbour.draw(4000))


def test_the_first_draws_of_consecutive_keys_are_uniform_and_unrelated() -> None:
    """10,000 rounds (clients, seeds) in a row: mean and correlation within 5 standard deviations of 1/2 and 0."""
    count = 10_000
    rows = {
        "seed": [Key(i, "rounding") for i in range(count)],
        "client": [Key(0, "rounding", client=i) for i in range(count)],
        "number": [Key(0, "rounding", number=i) for i in range(count)],
    }
    for keys_in_a_row in rows.values():
        first = np.array([key.draw(1)[0] for key in keys_in_a_row])
        assert abs(first.mean() - 0.5) < 5 * math.sqrt(1 / 12 / count)
        assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 5 / math.sqrt(count)


def test_the_numbers_stay_what_they_are() -> None:
    """Recorded: a change of the key's layout would silently change every published run."""
    raw = rng(7, "minibatch", client=3, number=11).bit_generator.random_raw(2)
    assert raw.tolist() == [6125191296459901212, 5079825521680864244]
    row = uniform_rows(7, "minibatch", 11, range(2, 3), 4).tolist()[0]
    assert row == [0.19998200319290615, 0.6103341399535579, 0.07143787676134772, 0.30831835580168987]


@pytest.mark.parametrize("name", ["seed", "client", "number"])
@pytest.mark.parametrize("value", [-1, 2**64, 1.5, 3.0, math.nan, "1", None])
def test_what_is_no_word_is_refused(name: str, value: Any) -> None:
    key = {"seed": 0, "client": 0, "number": 0, name: value}
    with pytest.raises(GradsiftError, match=re.escape(f"{name} must be an integer in [0, 2**64), got {value!r}")):
        rng(key.pop("seed"), "rounding", **key)


def test_integers_of_numpy_are_as_good() -> None:
    assert rng(np.int64(3), "x", number=np.uint64(2)).random() == rng(3, "x", number=2).random()  # type: ignore[arg-type]


@given(key=keys, start=st.integers(0, 30), length=st.integers(0, 8), count=st.integers(0, 11))
def test_a_row_is_the_same_whoever_else_is_asked_for(key: Key, start: int, length: int, count: int) -> None:
    def rows(clients: range) -> list[list[float]]:
        drawn = uniform_rows(key.seed, key.purpose, key.number, clients, count)
        assert drawn.shape == (len(clients), count)
        listed: list[list[float]] = drawn.tolist()
        return listed

    together = rows(range(start, start + length))
    assert together == rows(range(40))[start : start + length]
    assert together == [rows(range(i, i + 1))[0] for i in range(start, start + length)]


@given(key=keys, other=words)
def test_rows_depend_on_every_part_of_the_key(key: Key, other: int) -> None:
    def rows(key: Key) -> list[float]:
        drawn: list[float] = uniform_rows(key.seed, key.purpose, key.number, range(3), 5).ravel().tolist()
        return drawn

    assert len(set(rows(key))) == 15
    assert all(0 <= value < 1 for value in rows(key))
    for changed in (key._replace(seed=other), key._replace(number=other), key._replace(purpose="another")):
        assert (rows(changed) == rows(key)) == (changed == key)


@pytest.mark.parametrize("clients", [range(0, 6, 2), range(3, 0, -1), range(-1, 2)])
def test_rows_of_scattered_clients_are_refused(clients: range) -> None:
    with pytest.raises(GradsiftError, match=re.escape(repr(clients))):
        uniform_rows(0, "minibatch", 1, clients, 4)
