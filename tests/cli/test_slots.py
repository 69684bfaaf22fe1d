"""The five slots of a method on the command line: by name, as module:Class, from a file, in a resumed run."""

import json
from pathlib import Path
from typing import Any

import pytest

import gradsift
from tests.cli.test_commands import QUICK, ok, records, refused
from tests.registered import own_names

OWN = '''
from dataclasses import dataclass

import gradsift
from gradsift import LocalSteps, NormalizedTime
from gradsift.control.fixed import Fixed
from gradsift.sparsify.fab_top_k import FabTopK
from gradsift.values import ValueType


@gradsift.register_local_computation("own-local")
@dataclass(frozen=True)
class Local(LocalSteps):
    """Steps of my own."""


@gradsift.register_sparsifier("own-sparsifier")
class Sparsifier(FabTopK):
    """Elements of my own."""


@gradsift.register_value_type("own-values")
@dataclass(frozen=True)
class Values(ValueType):
    """Signs, of one size."""

    size: float = 0.5

    def rounded(self, message):
        return message.with_values(message.values.sign() * self.size)


@gradsift.register_controller("own-controller")
@dataclass(frozen=True)
class Controller(Fixed):
    """A k of my own."""


@gradsift.register_cost_model("own-cost")
@dataclass(frozen=True)
class Cost(NormalizedTime):
    """A price of my own."""


class Unregistered(FabTopK):
    """A class without a name."""
'''
PARTS = {
    "--local": "{}:Local",
    "--sparsifier": "{}:Sparsifier",
    "--values": "{}:Values",
    "--controller": "{}:Controller",
    "--cost": "{}:Cost",
}


def method_of(folder: str) -> dict[str, Any]:
    """The parts of the method of a run."""
    loaded: dict[str, Any] = json.loads(Path(folder, "config.json").read_text())
    return {slot: loaded[slot] for slot in ("local", "sparsifier", "values", "controller", "cost")}


@pytest.fixture
def module(request: pytest.FixtureRequest) -> Any:
    """A module in this folder that registers one part for each slot; it is imported again in every test."""
    name = f"own_{abs(hash(request.node.name))}"
    Path(f"{name}.py").write_text(OWN)
    with own_names():
        yield name


@pytest.mark.parametrize("name", gradsift.local_computations())
def test_every_local_computation_by_name(name: str) -> None:
    options = {"local-steps": ["--set", "local.steps=2"], "periodic-averaging": ["--sparsifier", "send-all"]}
    ok("run", *QUICK, "--rounds", "4", "--quiet", "--out", "a", "--local", name, "--k", "9", *options.get(name, []))
    assert method_of("a")["local"]["name"] == name


@pytest.mark.parametrize("name", gradsift.value_types())
def test_every_value_type_by_name(name: str) -> None:
    ok("run", *QUICK, "--rounds", "4", "--quiet", "--out", "a", "--values", name, "--encoded-bytes")
    assert method_of("a")["values"]["name"] == name
    assert all(record["up_bytes"] > 0 for record in records("a"))


def test_local_steps_are_counted_and_paid_for() -> None:
    options = ["--rounds", "3", "--quiet", "--k", "9", "--local", "local-steps", "--set", "local.steps=4"]
    ok("run", *QUICK, *options, "--out", "a")
    ok("run", *QUICK, *options[:-4], "--out", "b")
    four, one = records("a"), records("b")
    assert [record["steps"] for record in four] == [4, 4, 4]
    # Computing one gradient costs 1 in normalised time; the messages are the same.
    assert [x["round_cost"] - y["round_cost"] for x, y in zip(four, one, strict=True)] == pytest.approx([3, 3, 3])


def test_all_five_as_module_and_class(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [word for flag, name in PARTS.items() for word in (flag, name.format(module))]
    options = ["--set", "local.steps=2", "--set", "values.size=0.25", "--set", "controller.k=7"]
    ok("run", *QUICK, *parts, *options, "--set", "cost.comm_time=3", "--rounds", "3", "--quiet", "--out", "a")
    method = method_of("a")
    assert method["cost"]["class"].endswith("Cost")
    assert all(method[slot]["name"] == f"own-{slot}" for slot in method.keys() - {"cost"})
    assert (method["local"]["steps"], method["values"]["size"], method["cost"]["comm_time"]) == (2, 0.25, 3)
    assert [record["up_elements"] for record in records("a")] == [7, 7, 7]
    ok("list")
    listed = capsys.readouterr().out
    assert "own-values             Signs, of one size." in listed


def test_a_part_that_another_module_registers_is_known_by_its_name(module: str) -> None:
    ok("run", *QUICK, "--sparsifier", f"{module}:Sparsifier", "--values", "own-values", "--rounds", "2", "--out", "a")
    assert method_of("a")["values"]["name"] == "own-values"


def test_a_file_names_them_too(module: str) -> None:
    Path("my.toml").write_text(
        f'local = "local-steps"\nvalues = "{module}:Values"\nrounds = 2\nk = 5\n[set.local]\nsteps = 3\n'
    )
    ok("run", "my.toml", *QUICK, "--quiet", "--out", "a")
    method = method_of("a")
    assert (method["local"]["name"], method["local"]["steps"], method["values"]["name"]) == (
        "local-steps",
        3,
        "own-values",
    )


def test_a_resumed_run_has_the_same_parts(module: str) -> None:
    parts = [
        "--local",
        f"{module}:Local",
        "--set",
        "local.steps=2",
        "--values",
        f"{module}:Values",
        "--eval-every",
        "4",
    ]
    ok("run", *QUICK, *parts, "--rounds", "8", "--quiet", "--out", "whole")
    ok("run", *QUICK, *parts, "--rounds", "4", "--quiet", "--out", "a")
    ok("resume", "a", "--rounds", "8", "--quiet")
    assert records("a") == records("whole")


@pytest.mark.slow
def test_a_comparison_takes_them_and_stands_beside_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    ok("run", *QUICK, "--rounds", "3", "--quiet", "--out", "earlier", "--k", "4")
    common = ["--rounds", "3", "--quiet", "--local", "local-steps", "--set", "local.steps=2", "--values", "int8"]
    methods = ["--methods", "fixed,send-all,fedavg"]
    ok("compare", *QUICK, *common, *methods, "--k", "6", "--out", "c", "--beside", "earlier")
    assert method_of("c/fedavg-seed0")["local"] == {"name": "periodic-averaging"}  # its own
    for method in ("fixed", "send-all"):
        made = method_of(f"c/{method}-seed0")
        assert (made["local"]["steps"], made["values"]["name"]) == (2, "int8")
    page = Path("c/report/index.html").read_text()
    assert "int8" in page
    assert capsys.readouterr().out.count("k = 4") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--local", "local-step"], "--local: unknown local computation 'local-step'; did you mean 'local-steps'?"),
        (["--values", "int9"], "--values: unknown value type 'int9'; did you mean 'int8'?"),
        (["--values", "fab-top-k"], "--values: unknown value type 'fab-top-k'; valid: bfloat16, exact"),
        (["--local", "local-steps"], "local 'local-steps' needs --set local.steps=VALUE"),
        (["--local", "local-steps", "--set", "local.steps=0"], "steps must be at least 1, got 0"),
        (["--set", "local.steps=2"], "--set local.steps needs --local NAME"),
        (["--values", "int8", "--set", "values.bits=3"], "value type 'int8' has no option 'bits'"),
        (["--sparsifier", "{}:Unregistered"], "'{}:Unregistered' is not registered as a sparsifier"),
        (["--values", "{}:Sparsifier"], "'{}:Sparsifier' is not registered as a value type"),
        (["--values", "{}:Nothing"], "has no 'Nothing'"),
    ],
)
def test_wrong_parts_are_refused(
    options: list[str], message: str, module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    given = [option.format(module) for option in options]
    assert message.format(module) in refused(capsys, "run", *QUICK, "--rounds", "2", "--out", "a", *given)


def test_a_run_to_stand_beside_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    said = refused(capsys, "compare", *QUICK, "--rounds", "2", "--out", "c", "--beside", "empty")
    assert "--beside empty" in said
