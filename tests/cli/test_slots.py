"""The slots of a method on the command line: by name, as module:Class, from a file, in a resumed run."""

import json
from pathlib import Path
from typing import Any

import pytest

import gradsift
from gradsift import FewBits, LocalSteps, Method
from gradsift.server_step import Momentum
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


def config(folder: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(folder, "config.json").read_text())
    return loaded


def method_of(folder: str) -> dict[str, Any]:
    """The parts of the method of a run."""
    loaded = config(folder)
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


@pytest.mark.parametrize("name", gradsift.server_optimizers())
def test_every_server_optimizer_by_name(name: str) -> None:
    ok("run", *QUICK, "--rounds", "3", "--quiet", "--out", "a", "--server", name, "--set", "server.rate=0.5")
    assert config("a")["server"]["name"] == name
    assert config("a")["server"]["rate"] == 0.5


# Each short form, and the long one that it stands for.
FORMS: dict[str, tuple[list[str], list[str], dict[str, Any]]] = {
    "local steps": (
        ["--local-steps", "3"],
        ["--local", "local-steps", "--set", "local.steps=3"],
        {"local": LocalSteps(3)},
    ),
    "local momentum": (
        ["--local-steps", "3", "--set", "local.momentum=0.9", "--set", "local.weight-decay=0.01"],
        [
            *("--local", "local-steps", "--set", "local.steps=3"),
            *("--set", "local.momentum=0.9", "--set", "local.weight_decay=0.01"),
        ],
        {"local": LocalSteps(3, momentum=0.9, weight_decay=0.01)},
    ),
    "bits": (
        ["--bits", "2,4"],
        ["--values", "few-bits", "--down-values", "few-bits", "--set", "down_values.bits=4", "--encoded-bytes"],
        {"values": FewBits(2), "down_values": FewBits(4)},
    ),
    "the same bits": (
        ["--bits", "3"],
        [
            *("--values", "few-bits", "--set", "values.bits=3"),
            *("--down-values", "few-bits", "--set", "down_values.bits=3", "--encoded-bytes"),
        ],
        {"values": FewBits(3), "down_values": FewBits(3)},
    ),
    "bits up": (
        ["--bits", "1,32", "--set", "values.stochastic=true"],
        ["--values", "few-bits", "--set", "values.bits=1", "--set", "values.stochastic=true", "--encoded-bytes"],
        {"values": FewBits(1, stochastic=True)},
    ),
    "momentum": (
        ["--server", "momentum", "--set", "server.momentum=0.5"],
        ["--server", "gradsift.server_step:Momentum", "--set", "server.momentum=0.5", "--set", "server.rate=1"],
        {"server": Momentum(0.5)},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_short_forms_are_the_long_ones(form: str) -> None:
    short, long, slots = FORMS[form]
    for name, flags in (("short", short), ("long", long)):
        ok("run", *QUICK, "--rounds", "3", "--quiet", "--out", name, *flags)
    assert records("short") == records("long")
    described = Method.of(**slots).describe()
    for slot in ("local", "values", "down_values", "server"):
        assert config("short")[slot] == config("long")[slot] == described[slot]
    assert config("short")["settings"]["encoded_bytes"] == ("bits" in form)


def test_a_file_says_the_same_as_flags() -> None:
    Path("my.toml").write_text(
        'rounds = 3\nlocal-steps = 2\nbits = [2, 4]\nserver = "momentum"\n[set.local]\nmomentum = 0.9\n'
        "[set.server]\nmomentum = 0.5\nnesterov = true\n[set.down_values]\nstochastic = true\n"
    )
    ok("run", "my.toml", *QUICK, "--quiet", "--out", "file")
    flags = ["--local-steps", "2", "--bits", "2,4", "--server", "momentum", "--set", "local.momentum=0.9"]
    flags += ["--set", "server.momentum=0.5", "--set", "server.nesterov=true", "--set", "down_values.stochastic=true"]
    ok("run", *QUICK, *flags, "--rounds", "3", "--quiet", "--out", "flags")
    assert records("file") == records("flags")
    made = config("file")
    assert made["local"] == config("flags")["local"] == Method.of(local=LocalSteps(2, momentum=0.9)).describe()["local"]
    assert made["down_values"] == {"name": "few-bits", "bits": 4, "stochastic": True}
    assert made["server"] == {"name": "momentum", "momentum": 0.5, "nesterov": True, "rate": 1.0}


def test_one_number_in_a_file_is_for_both() -> None:
    Path("my.toml").write_text("rounds = 2\nbits = 3\n")
    ok("run", "my.toml", *QUICK, "--quiet", "--out", "a")
    assert (config("a")["values"]["bits"], config("a")["down_values"]["bits"]) == (3, 3)


def test_a_run_with_short_forms_is_resumed() -> None:
    flags = ["--local-steps", "2", "--bits", "2,4", "--server", "momentum", "--eval-every", "4"]
    ok("run", *QUICK, *flags, "--rounds", "8", "--quiet", "--out", "whole")
    ok("run", *QUICK, *flags, "--rounds", "4", "--quiet", "--out", "a")
    ok("resume", "a", "--rounds", "8", "--quiet")
    assert records("a") == records("whole")


def test_a_list_names_the_flags_that_take_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    ok("list")
    listed = capsys.readouterr().out
    assert listed.count("value types (--values and --down-values)") == 1
    assert "server optimizers (--server)" in listed
    for name in (*gradsift.server_optimizers(), *gradsift.value_types(), *gradsift.local_computations()):
        assert listed.count(f"\n  {name} ") == 1


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
    fixed, dense = (method_of(f"c/{method}-seed0") for method in ("fixed", "send-all"))
    assert (fixed["local"]["steps"], fixed["values"]["name"]) == (2, "int8")
    assert (dense["local"]["name"], dense["values"]["name"]) == ("one-gradient", "exact")  # as it is usually meant
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
        (["--down-values", "int9"], "--down-values: unknown value type 'int9'; did you mean 'int8'?"),
        (["--server", "momentun"], "--server: unknown server optimizer 'momentun'; did you mean 'momentum'?"),
        (["--server", "{}:Values"], "'{}:Values' is not registered as a server optimizer"),
        (["--set", "server.momentum=0.5"], "server optimizer 'sgd' has no option 'momentum'"),
        (["--server", "momentum", "--set", "server.momentum=2"], "momentum must be in [0.0, 1.0], got 2"),
        (["--local-steps", "0"], "steps must be at least 1, got 0"),
        (["--local-steps", "x"], "--local-steps must be a whole number, got 'x'"),
        (
            ["--local-steps", "2", "--local", "one-gradient"],
            "--local-steps and --local one-gradient both say what a client computes",
        ),
        (["--local-steps", "2", "--set", "local.momentun=1"], "has no option 'momentun'; did you mean 'momentum'?"),
        (["--bits", "9"], "bits must be in [1, 8], got 9"),
        (["--bits", "2,16"], "bits must be in [1, 8], got 16"),
        (["--bits", "two"], "--bits must be one or two whole numbers, such as 2,4, got 'two'"),
        (["--bits", "2,4,8"], "--bits must be one or two whole numbers, such as 2,4, got '2,4,8'"),
        (["--bits", "2", "--values", "int8"], "--bits and --values int8 both say how values are rounded"),
        (["--bits", "2", "--down-values", "int8"], "--bits and --down-values int8 both say how values are rounded"),
        (["--bits", "32", "--set", "values.stochastic=true"], "value type 'exact' has no option 'stochastic'"),
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
