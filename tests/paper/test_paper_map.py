"""docs/paper_map.md is complete and true: every item of the paper has a row, every symbol that a row names exists."""

import re
from typing import NamedTuple

import pytest

from tests.doc_pages import Reference, problem, read, references

PAGE = "docs/paper_map.md"

# What the paper has, counted in its LaTeX source, appendix included.
NUMBERED = {
    "Algorithm {}": 3,
    "Definition {}": 4,
    "Assumption {}": 2,
    "Proposition {}": 1,
    "Lemma {}": 3,
    "Theorem {}": 2,
    "Equation ({})": 21,
    "Figure {}": 8,
    "Footnote {}": 6,
    "V-A item {}": 5,  # the methods compared with FAB-top-k
    "V-B item {}": 3,  # the methods compared with Algorithm 3
}
EXPECTED = [form.format(number) for form, count in NUMBERED.items() for number in range(1, count + 1)]

# The items that are algorithms or formulas a run evaluates: none of these may be "not code".
CODE = [
    *("Algorithm 1", "Algorithm 2", "Algorithm 3", "Definition 2", "Definition 4"),
    *("Equation (1)", "Equation (9)", "Equation (10)", "Equation (11)"),
    *("Figure 1", *(f"Figure {number}" for number in range(3, 9))),
    *("Footnote 3", "Footnote 4", "Footnote 5"),
    *(item for item in EXPECTED if item.startswith("V-")),
]


class Row(NamedTuple):
    """One line of the table."""

    item: str
    meaning: str
    where: str


def rows(text: str) -> list[Row]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    assert cells[:2] == [["Item", "In the paper", "In gradsift"], ["---"] * 3]
    assert all(len(row) == 3 for row in cells), [row for row in cells if len(row) != 3]
    return [Row(*row) for row in cells[2:]]


def says_nothing(row: Row) -> bool:
    """Neither a symbol nor a reason of a few words."""
    excuse = re.match(r"not (?:code|yet): (.+)", row.where)
    if excuse:
        return len(excuse[1].split()) < 3
    return not any(reference.symbol for reference in references(row.where))


TABLE = rows(read(PAGE))


def test_the_expected_items_are_those_of_the_paper() -> None:
    assert len(EXPECTED) == 3 + 4 + 2 + 1 + 3 + 2 + 21 + 8 + 6 + 8
    assert set(CODE) <= set(EXPECTED)


def test_every_item_of_the_paper_has_exactly_one_row_in_order() -> None:
    assert [row.item for row in TABLE if not row.item.startswith("Text: ")] == EXPECTED
    items = [row.item for row in TABLE]
    assert len(set(items)) == len(items)


@pytest.mark.parametrize("row", TABLE, ids=[row.item for row in TABLE])
def test_row(row: Row) -> None:
    assert row.meaning
    assert not says_nothing(row), f"{row.item} names neither a symbol nor a reason: {row.where!r}"
    if row.item in CODE or row.item.startswith("Text: "):
        assert not row.where.startswith("not "), f"{row.item} is code"
    assert [found for reference in references(row.where) if (found := problem(reference))] == []


@pytest.mark.parametrize(
    "where",
    ["", "elsewhere", "not code", "not code: ", "not code: because", "`src/gradsift/round.py`", "not yet: soon"],
)
def test_a_row_that_says_nothing_is_caught(where: str) -> None:
    assert says_nothing(Row("Equation (1)", "the update", where))


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        (Reference("src/gradsift/gone.py", None), "does not exist"),
        (Reference("src/gradsift/gone.py", "apply"), "does not exist"),
        (Reference("src/gradsift/round.py", "gone"), "has no gone"),
        (Reference("src/gradsift/round.py", "Plan.gone"), "has no Plan.gone"),
        (Reference("src/gradsift/control/__init__.py", "Search"), "is defined in gradsift.control.base"),
        (Reference("tests/paper/test_paper_map.py", "rows"), "under src/ only"),
    ],
)
def test_a_reference_that_leads_nowhere_is_caught(reference: Reference, why: str) -> None:
    assert why in (problem(reference) or "")


def test_a_reference_that_leads_somewhere_is_not() -> None:
    assert references("see `src/gradsift/round.py:Plan.for_clients`, `docs/paper_map.md`") == [
        Reference("src/gradsift/round.py", "Plan.for_clients"),
        Reference("docs/paper_map.md", None),
    ]
    assert problem(Reference("src/gradsift/round.py", "Plan.for_clients")) is None
    assert problem(Reference("docs/paper_map.md", None)) is None
