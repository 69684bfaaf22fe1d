"""The parts of the codec by themselves, where whole messages seldom go: wide numbers, deep codes, long varints."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsift.wire import CodecError, huffman, integers, sets, values
from gradsift.wire.bits import (
    Reader,
    byte_count,
    fixed_size,
    pack_fixed,
    pack_varied,
    read_fixed,
    read_varied,
    varint,
)
from gradsift.wire.number_types import number_type
from tests.examples import examples


def reader_of(data: bytes) -> Reader:
    return Reader(np.frombuffer(data, np.uint8))


def plain_bits(numbers: list[int], widths: list[int]) -> bytes:
    """The definition: lowest bit first, one after the other."""
    total = place = 0
    for number, width in zip(numbers, widths, strict=True):
        total |= number << place
        place += width
    return total.to_bytes(byte_count(place), "little")


@st.composite
def sized_numbers(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(number, width) pairs."""
    widths = draw(st.lists(st.one_of(st.integers(0, 62), st.integers(0, 3), st.just(62)), min_size=1, max_size=60))
    source = np.random.default_rng(draw(st.integers(0, 2**32)))
    full = draw(st.booleans())
    return [((1 << w) - 1 if full else int(source.integers(0, 1 << w)), w) for w in widths]


@given(pairs=sized_numbers())
@examples(300)
def test_varied_widths(pairs: list[tuple[int, int]]) -> None:
    numbers, widths = [n for n, _ in pairs], [w for _, w in pairs]
    packed = pack_varied(np.array(numbers, np.int64), np.array(widths, np.int64))
    assert packed == plain_bits(numbers, widths)
    reader = reader_of(packed)
    assert read_varied(reader, np.array(widths, np.int64)).tolist() == numbers
    assert reader.left == 0


@given(
    width=st.integers(0, 62), count=st.integers(0, 40), seed=st.integers(0, 99), itemsize=st.sampled_from([1, 2, 4, 8])
)
@examples(300)
def test_fixed_widths(width: int, count: int, seed: int, itemsize: int) -> None:
    width = min(width, 8 * itemsize - 1)
    numbers = np.random.default_rng(seed).integers(0, 1 << width, count).astype(f"u{itemsize}")
    packed = pack_fixed(numbers, width)
    whole, rest = divmod(width, 8)
    low = b"".join(int(n % (1 << 8 * whole)).to_bytes(whole, "little") for n in numbers.tolist())
    assert packed == low + plain_bits([n >> (8 * whole) for n in numbers.tolist()], [rest] * count)
    assert len(packed) == fixed_size(count, width)
    reader = reader_of(packed)
    assert read_fixed(reader, count, width, itemsize).tolist() == numbers.tolist()
    assert reader.left == 0


@given(number=st.one_of(st.integers(0, 2**63 - 1), st.integers(0, 300), st.sampled_from([127, 128, 2**62, 2**63 - 1])))
def test_varints(number: int) -> None:
    data = varint(number)
    assert reader_of(data).varint() == number
    assert len(data) == max(1, -(-number.bit_length() // 7))
    longer = data[:-1] + bytes([data[-1] | 128, 0])
    with pytest.raises(CodecError, match=r"shortest form|longer than 9"):
        reader_of(longer).varint()


def test_a_varint_ends_after_nine_bytes() -> None:
    with pytest.raises(CodecError, match="longer than 9 bytes"):
        reader_of(b"\xff" * 9 + b"\x01").varint()
    with pytest.raises(CodecError, match="ends early"):
        reader_of(b"\xff" * 8).varint()


def kraft(lengths: list[int]) -> float:
    return sum(2.0**-length for length in lengths if length)


def optimal_bits(counts: list[int]) -> int:
    """Huffman's total, by the book: join the two lightest until one is left."""
    weights = sorted(count for count in counts if count)
    total = 0
    while len(weights) > 1:
        joined = weights.pop(0) + weights.pop(0)
        total += joined
        weights = sorted([*weights, joined])
    return total


@given(counts=st.lists(st.one_of(st.just(0), st.integers(1, 50), st.integers(1, 10**6)), min_size=1, max_size=60))
@examples(300)
def test_code_lengths_are_huffmans(counts: list[int]) -> None:
    if not any(counts):
        counts = [*counts, 1]
    lengths = huffman.code_lengths(counts)
    assert [length > 0 for length in lengths] == [count > 0 for count in counts]
    if sum(count > 0 for count in counts) == 1:
        assert max(lengths) == 1
        return
    assert kraft(lengths) == 1
    spent = sum(length * count for length, count in zip(lengths, counts, strict=True))
    if sum(counts) < 2584:  # the 18th Fibonacci number: fewer make no code longer than the limit
        assert spent == optimal_bits(counts)
    assert optimal_bits(counts) <= spent <= 1.01 * optimal_bits(counts)
    assert max(lengths) <= huffman.MAX_LENGTH


@given(
    rows=st.lists(
        st.one_of(
            st.lists(st.one_of(st.just(0), st.integers(1, 4), st.integers(1, 10**6)), max_size=60),
            st.lists(st.integers(0, 3), max_size=256),
            # Nearly as deep as trees get, so that codes are longer than the limit.
            st.lists(st.integers(0, 2), min_size=1, max_size=40).map(
                lambda more: [fibonacci(i) + m for i, m in enumerate(more)]
            ),
            st.permutations([1 << place for place in range(40)]),
        ),
        min_size=1,
        max_size=8,
    )
)
@examples(500)
def test_sizes_of_many_codes_are_those_of_each(rows: list[list[int]]) -> None:
    counts = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, numbers in zip(counts, rows, strict=True):
        row[: len(numbers)] = numbers
    expected = [huffman.plan(np.zeros(0, np.uint8), np.trim_zeros(row, "b")).size if row.any() else 0 for row in counts]
    assert huffman.sizes(counts).tolist() == expected


def fibonacci(place: int) -> int:
    first, second = 1, 1
    for _ in range(place):
        first, second = second, first + second
    return first


@given(
    rows=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=254).filter(any), min_size=1, max_size=5),
    low_bits=st.integers(0, 30),
    even=st.booleans(),
)
@examples(300)
def test_low_bits_of_many_messages_are_those_of_each(rows: list[list[int]], low_bits: int, even: bool) -> None:
    """Also where several numbers of low bits are as good."""
    if even:
        rows = [[8 * (number > 2) for number in row[:9]] for row in rows]
    total = max(map(sum, rows)) or 8
    counts = np.zeros((len(rows), 254), np.int64)
    for row, numbers in zip(counts, rows, strict=True):
        row[: len(numbers)] = numbers
        row[0] += total - sum(numbers)
    kind = number_type("float32")
    least = np.full(len(rows), low_bits)
    best, symbols = values.best_symbols(counts, least, total, kind)
    for row, bits, found in zip(counts, best, symbols, strict=True):
        expected, chosen = values.best_low_bits(np.trim_zeros(row, "b"), low_bits, kind.width)
        assert bits == expected
        assert np.trim_zeros(found, "b").tolist() == [0, 0, *chosen.tolist()]


def test_codes_longer_than_the_limit_are_shortened_at_little_cost() -> None:
    counts = [1, 1]
    while len(counts) < 25:  # Fibonacci: the deepest tree there is, 24 levels
        counts.append(counts[-1] + counts[-2])
    lengths = huffman.code_lengths(counts)
    assert max(lengths) <= huffman.MAX_LENGTH
    assert kraft(lengths) == 1
    spent = sum(length * count for length, count in zip(lengths, counts, strict=True))
    assert optimal_bits(counts) < spent < 1.01 * optimal_bits(counts)
    symbols = np.repeat(np.arange(25), counts).astype(np.uint8)
    symbols = np.random.default_rng(0).permutation(symbols)
    part = huffman.plan(symbols, np.bincount(symbols))
    data = part.write()
    assert len(data) == part.size
    assert np.array_equal(huffman.read(reader_of(data), len(symbols)), symbols)


@given(
    symbols=st.one_of(
        st.lists(st.integers(0, 255), min_size=1, max_size=300),
        st.lists(st.sampled_from([0, 7, 8, 255]), min_size=1, max_size=300),
        st.integers(0, 255).map(lambda symbol: [symbol] * 100),
    )
)
@examples(200)
def test_symbols(symbols: list[int]) -> None:
    array = np.array(symbols, np.uint8)
    part = huffman.plan(array, np.bincount(array))
    data = part.write()
    assert len(data) == part.size
    reader = reader_of(data)
    assert huffman.read(reader, len(symbols)).tolist() == symbols
    assert reader.left == 0
    assert 8 * len(data) >= len(symbols)  # at least one bit each, whatever they are


@given(bits=st.lists(st.integers(0, 47), min_size=1, max_size=80), seed=st.integers(0, 2**32))
@examples(200)
def test_integers_up_to_the_limit_and_no_further(bits: list[int], seed: int) -> None:
    source = np.random.default_rng(seed)
    numbers = np.array([int(source.integers(1 << b >> 1, 1 << b)) if b else 0 for b in bits], np.int64)
    part = integers.plan(numbers)
    data = part.write()
    assert len(data) == part.size
    total = int(numbers.sum())
    assert integers.read(reader_of(data), len(bits), total).tolist() == numbers.tolist()
    if total:
        with pytest.raises(CodecError):
            integers.read(reader_of(data), len(bits), total - 1)


def test_numbers_whose_sum_would_overflow_are_refused() -> None:
    count = 2**16 + 2
    part = integers.plan(np.full(count, 2**48 - 1))  # together a little more than 2**64: it would come round
    with pytest.raises(CodecError, match="sum to more than"):
        integers.read(reader_of(part.write()), count, 2**48 - 1)


@given(mask=st.lists(st.booleans(), min_size=0, max_size=200), repeat=st.integers(1, 30))
@examples(300)
def test_masks_and_index_sets_in_every_mode(mask: list[bool], repeat: int) -> None:
    array = np.repeat(np.array(mask, np.bool_), repeat)
    part = sets.plan_mask(array)
    data = part.write()
    assert len(data) == part.size <= 1 + byte_count(len(array))
    assert np.array_equal(sets.read_mask(reader_of(data), len(array)), array)

    indices = np.flatnonzero(array)
    smallest = sets.plan_indices(indices, len(array))
    data = smallest.write()
    assert len(data) == smallest.size
    assert np.array_equal(sets.read_indices(reader_of(data), len(indices), len(array)), indices)
    if 0 < len(indices) < len(array):
        edges = np.flatnonzero(np.diff(array, prepend=False, append=False))
        for other in (
            sets._plan_bitmap(array),
            sets._plan_gaps(indices, len(array)),
            sets._plan_runs(edges, len(array)),
        ):
            written = other.write()
            assert len(written) == other.size
            assert np.array_equal(sets.read_indices(reader_of(written), len(indices), len(array)), indices)
        # Runs may be passed over where they would hardly pay; the other two are always weighed.
        assert smallest.size <= min(sets._plan_bitmap(array).size, sets._plan_gaps(indices, len(array)).size)


def test_runs_for_which_there_is_no_room_are_refused() -> None:
    for total in (1, 5):
        for runs in (total, total + 1, 2**60):
            with pytest.raises(CodecError, match=f"{runs + 1} runs are more than the set can have"):
                sets.read_mask(reader_of(bytes([sets.RUNS]) + varint(runs) + bytes(50)), total)
