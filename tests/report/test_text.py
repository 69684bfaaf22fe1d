"""Numbers, JSON values and arbitrary strings as text."""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsift.report import text


def back(shown: str) -> float:
    return float(shown.replace(",", ""))


@given(st.floats(-1e18, 1e18, allow_nan=False), st.integers(2, 6))
def test_a_number_is_right_to_its_digits(value: float, digits: int) -> None:
    assert back(text.number(value, digits)) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits), abs=1e-300)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.12345, "0.1235"),
        (12.345, "12.35"),
        (1234.5, "1,234"),
        (123456.7, "123,457"),
        (100.0, "100"),
        (1e-7, "1.000e-07"),
        (-2.5, "-2.5"),
        (999.96, "1,000"),
        (1e15, "1.000e+15"),
    ],
)
def test_numbers(value: float, shown: str) -> None:
    assert text.number(value) == shown


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=4))
def test_numbers_side_by_side_have_the_same_decimals(values: list[float]) -> None:
    shown = text.fixed(values)
    assert len({len(one.partition(".")[2]) for one in shown}) == 1
    assert back(max(shown, key=back)) == pytest.approx(max(values), rel=6e-4)


@given(st.lists(st.floats(0, 1e20), min_size=1, max_size=3))
def test_bytes(values: list[float]) -> None:
    shown, unit = text.in_bytes(values)
    scale = 1000.0 ** text.UNITS.index(unit)
    for value, one in zip(values, shown, strict=True):
        assert back(one) * scale == pytest.approx(value, abs=max(values) * 6e-3)
    assert back(max(shown, key=back)) < 1000.5 or unit == text.UNITS[-1]


@given(st.text(st.characters(codec=None)))
def test_cleaned_text_can_be_written_anywhere(value: str) -> None:
    cleaned = text.clean(value)
    cleaned.encode()
    assert len(cleaned) == len(value)
    element = ElementTree.Element("a")
    element.text = cleaned
    assert ElementTree.fromstring(ElementTree.tostring(element, "utf-8")).text == (cleaned or None)


def test_cleaning_leaves_words_alone() -> None:
    assert text.clean("naïve\n\tk < 3 & Ω 日本 😀") == "naïve\n\tk < 3 & Ω 日本 😀"
    assert text.clean("a\x00b\x1b\ud800\ufffe") == "a\ufffdb\ufffd\ufffd\ufffd"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "yes"),
        (None, "none"),
        (3, "3"),
        (50.0, "50"),
        (math.pi, "3.14159"),
        ([1, 2], "[1, 2]"),
        (" a\n b", "a b"),
        ("x" * 30, "x" * 19 + "…"),
    ],
)
def test_shortened(value: object, shown: str) -> None:
    assert text.shortened(value, 20) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (5e7, "50 MB"), (2e13, "20 TB")]
)
def test_one_number_of_bytes(count: float, shown: str) -> None:
    assert text.some_bytes(count) == shown
