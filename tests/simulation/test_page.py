"""docs/simulate.md is true: its examples run and print what it shows, its tables are complete."""

import contextlib
import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from gradsift import (
    Energy,
    LinkTime,
    MeasuredTime,
    Method,
    Money,
    NormalizedTime,
    Settings,
    cost_models,
    local_computations,
    simulate,
    value_types,
)
from gradsift.cli.comparing import COST_BUDGET
from gradsift.experiments.build import LR, PAPER_LR
from gradsift.experiments.settings import RUN
from gradsift.simulation.run import OF_THE_METHOD
from tests.doc_pages import blocks, read, run_blocks

PAGE = "docs/simulate.md"
SETTINGS = (*OF_THE_METHOD, *(field.name for field in dataclasses.fields(Settings)))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The page's blocks, run in a folder of their own: the folder, and the names they made."""
    place = tmp_path_factory.mktemp("page")
    with contextlib.chdir(place):
        names, _ = run_blocks(blocks(read(PAGE)), PAGE)
    return place, names


def table(first: str) -> dict[str, list[str]]:
    """The rows of the table whose head starts with ``first``, by the names in their first cells."""
    found = re.search(rf"^\| {first} \|.*\n\|[ |-]+\n((?:\|.*\n)+)", read(PAGE), re.MULTILINE)
    assert found
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]
    return {name: row[1:] for row in rows for name in re.findall(r"`([^`]+)`", row[0])}


def test_the_examples_run_and_print_what_is_shown(ran: tuple[Path, dict[str, Any]]) -> None:
    assert len(ran[1]["result"].records) > 40


def test_every_column_is_explained(ran: tuple[Path, dict[str, Any]]) -> None:
    assert list(table("column")) == list(ran[1]["result"].records[0])


def test_every_setting_is_explained_with_its_default() -> None:
    fields = (*dataclasses.fields(Method), *dataclasses.fields(Settings))
    defaults = {field.name: field.default for field in fields if field.name in SETTINGS}
    written = {name: row[0] for name, row in table("setting").items()}
    assert written == {name: str(value).replace("refuse", '"refuse"') for name, value in defaults.items()}


def test_every_argument_is_explained_with_its_default() -> None:
    parameters = inspect.signature(simulate).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    written = {name: row[0].strip('"') for name, row in table("argument").items()}
    assert written == {name: str(value) for name, value in defaults.items()}


def test_every_local_computation_and_value_type_is_named() -> None:
    assert set(table("local computation")) >= set(local_computations())
    for name in value_types():
        assert f"`{name}`" in read(PAGE)


def test_the_command_line_has_the_defaults_of_the_page() -> None:
    options = {option.name: option.default for option in RUN}
    differs = {name for name, row in table("argument").items() if row[2]}
    assert differs == {"controller", "lr", "rounds", "device", "out", "resume", "extra_config"}
    for name, row in {**table("argument"), **table("setting")}.items():
        if name in options and name not in differs | {
            "cost",
            "values",
            "down_values",
            "server",
        }:  # None stands for the default of these
            assert str(options[name]) == row[0].strip('"').removeprefix("torch."), name
    assert set(SETTINGS) - set(options) == {"eval_batch", "clients_per_chunk"}
    assert (options["rounds"], options["device"]) == (300, "auto")
    assert LR == {"digits": 0.3}
    assert PAPER_LR == 0.01
    assert COST_BUDGET == 300


def test_every_cost_is_explained_with_its_options() -> None:
    costs, named = table("class"), (NormalizedTime, LinkTime, Energy, Money, MeasuredTime)
    assert {cls.name for cls in named} == set(cost_models())
    assert set(costs) == {cls.__name__ for cls in named} | {"WeightedSum"}
    for cls in named:
        flag, options, _ = costs[cls.__name__]
        assert flag == f"`{cls.name}`"
        for each in inspect.signature(cls).parameters.values():
            default = "" if each.default is each.empty else f"={each.default:g}"
            assert f"`{each.name}{default}`" in options, (cls.name, each.name)


def test_every_file_is_explained(ran: tuple[Path, dict[str, Any]]) -> None:
    def kind(name: str) -> str:
        return re.sub(r"\d{8}", "number", name)

    files = {kind(file.name) for file in (ran[0] / "my-run").iterdir()}
    assert {kind(name) for name in table("file") if "every" not in name} == files
