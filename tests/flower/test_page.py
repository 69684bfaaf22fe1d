"""docs/flower.md is true: its app runs, its table of arguments is complete, the quickstart takes five lines."""

import inspect
import re
from typing import Any

import pytest
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from gradsift.flower import SparseMod, SparseStrategy
from tests.doc_pages import ROOT, blocks, read, run_blocks
from tests.flower.grid import LocalGrid

PAGE = "docs/flower.md"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    return run_blocks(blocks(read(PAGE)), PAGE)[0]


def test_the_app_of_the_page_runs(names: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    grid = LocalGrid(lambda: names["app"], 4)
    names["server"](grid, Context(1, 0, {}, RecordDict(), {}))
    assert "k, at most 650, is chosen by Planned(" in caplog.text
    assert "refused" not in caplog.text.replace("gradsift-refused", "")
    assert caplog.text.count("2 of 4 clients") == 3


def test_with_the_probe_of_the_page_k_is_learned(names: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    app = ClientApp(mods=[names["probing"]])
    app.train()(names["train"])
    weights = ArrayRecord(nn.Linear(64, 10).state_dict())
    names["papers"].start(LocalGrid(lambda: app, 4), weights, num_rounds=2)
    assert "is chosen by ExtendedSign" in caplog.text
    last = names["papers"].records[-1]
    assert None not in (last["probe_k"], last["loss_before"], last["loss_after"], last["loss_probe"])


@pytest.mark.parametrize("which", ["small", "fast"])
def test_few_bits_and_momentum_for_the_app_of_the_page(names: dict[str, Any], which: str) -> None:
    strategy, weights = names[which], ArrayRecord(nn.Linear(64, 10).state_dict())
    strategy.start(LocalGrid(lambda: names["app"], 4), weights, num_rounds=4)
    assert strategy.refused == []
    assert strategy.records[-1]["clients"] == 4


def test_every_record_is_on_the_page(names: dict[str, Any]) -> None:
    strategy = names["strategy"]  # the one with a cost in seconds
    strategy.fraction_evaluate = 0
    weights = ArrayRecord(nn.Linear(64, 10).state_dict())
    result = strategy.start(LocalGrid(lambda: names["app"], 4), weights, num_rounds=2)
    table = re.search(r"^\| record \| is \|\n.*\n((?:\|.*\n)+)", read(PAGE), re.MULTILINE)
    assert table
    listed = {name for row in table[1].splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert listed == set(strategy.records[-1])
    numbers = {name for name, value in strategy.records[-1].items() if isinstance(value, int | float)}
    assert {f"gradsift-{name.replace('_', '-')}" for name in numbers} <= set(result.train_metrics_clientapp[2])
    assert numbers >= {"used_k", "c", "waiting", "agreement", "up_bytes"}
    assert strategy.records[0]["round_cost"] > 2 * 0.05 + 0.2  # two messages and the computation


@pytest.mark.parametrize("function", [SparseStrategy, SparseMod])
def test_every_argument_is_on_the_page(function: type) -> None:
    text = read(PAGE)
    for argument in inspect.signature(function).parameters:
        assert f"`{argument}`" in text, argument


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `?([^`|]+)`? \|", read(PAGE), re.MULTILINE)
    defaults = {name: p.default for name, p in inspect.signature(SparseStrategy).parameters.items()}
    stated = {name: value.strip() for name, value in rows if name in defaults}
    said_otherwise = {"model", "controller", "cost", "k"}  # what None stands for
    assert len(stated) > 8
    for name, value in stated.items():
        assert name in said_otherwise or repr(defaults[name]) == value.replace('"', "'"), name


def test_the_quickstart_takes_five_lines() -> None:
    sources = (ROOT / "examples/flower-quickstart/quickstart").glob("*.py")
    marked = [line for source in sources for line in source.read_text().splitlines() if line.endswith("# gradsift")]
    assert len(marked) == 5
    unmarked = [
        line
        for source in (ROOT / "examples/flower-quickstart/quickstart").glob("*_app.py")
        for line in source.read_text().splitlines()
        if not line.endswith("# gradsift") and not line.startswith('"""')
    ]
    assert not [line for line in unmarked if re.search(r"gradsift|Sparse|[Pp]robe", line)]
