"""The table of settings: flags, files and their errors."""

import re
from pathlib import Path
from typing import Any

import pytest

from gradsift.cli.options import Parser, add_settings
from gradsift.control import unchecked
from gradsift.control.exp3 import Exp3
from gradsift.errors import UsageError
from gradsift.experiments import settings as options
from gradsift.experiments.build import make_controller
from gradsift.experiments.settings import DEFAULTS


def gathered(*flags: str, file: Path | None = None) -> dict[str, Any]:
    parser = Parser()
    add_settings(parser)
    given = parser.parse_args(flags)
    return options.gather(vars(given), given.set_, file)


def written(text: str) -> Path:
    path = Path("settings.toml")
    path.write_text(text)
    return path


def test_defaults_are_complete() -> None:
    settings = gathered()
    assert set(settings) == {option.name for option in options.RUN} | {"set"}
    assert settings["data"] == "digits"
    assert settings["set"] == {}


def test_flags_win_over_the_file_and_the_file_over_the_defaults() -> None:
    file = written('rounds = 7\nlr = 0.5\nsparsifier = "fub-top-k"\n[set.controller]\nalpha = 2.0\nwindow = 5\n')
    settings = gathered("--rounds", "9", "--set", "controller.window=6", file=file)
    assert (settings["rounds"], settings["lr"], settings["sparsifier"]) == (9, 0.5, "fub-top-k")
    assert settings["set"] == {"controller": {"alpha": 2.0, "window": 6}}
    assert settings["batch_size"] == 32


def test_every_setting_can_stand_in_a_file_under_its_own_name_or_with_dashes() -> None:
    lines = []
    for option in options.RUN:
        kinds: dict[Any, str] = {str: '"x"', None: "true", float: "1.5", options.integer: "3"}
        kinds[options.bit_numbers] = "[2, 4]"
        value = kinds[option.kind]
        lines.append(f"{option.name.replace('_', '-')} = {value}")
    settings = options.read_toml(written("\n".join(lines)))
    assert set(settings) == {option.name for option in options.RUN}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("round = 3", r"unknown key 'round'; did you mean 'rounds'\?"),
        ('rounds = "many"', "rounds cannot be 'many'"),
        ("rounds = 2.5", r"rounds cannot be 2\.5"),
        ("rounds = true", "rounds cannot be True"),
        ("data = 3", "data cannot be 3"),
        ("charge_probe = 1", "charge_probe must be true or false, got 1"),
        ("rounds = [3]", r"rounds cannot be \[3\]"),
        ("bits = [2, 4, 8]", r"bits cannot be \[2, 4, 8\]"),
        ("bits = [2.5, 4]", r"bits cannot be \[2\.5, 4\]"),
        ("bits = [true, 4]", r"bits cannot be \[True, 4\]"),
        ("bits = []", r"bits cannot be \[\]"),
        ("bits = true", "bits cannot be True"),
        ("local-steps = 2.5", r"local_steps cannot be 2\.5"),
        ("[server]\nmomentum = 0.5", r"\[server\] must be \[set\.server\]"),
        ("[set.controler]\nalpha = 1", r"unknown part 'controler' in \[set\]; did you mean 'controller'\?"),
        ("[controller]\nalpha = 2", r"\[controller\] must be \[set\.controller\]"),
        ("set = 3", r"\[set\] must have one table per part"),
        ("rounds =", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options.read_toml(written(text))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"cannot read nowhere\.toml: No such file"):
        options.read_toml(Path("nowhere.toml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alpha=2", r"--set takes PART\.OPTION=VALUE, got 'alpha=2'"),
        ("controller.alpha", "--set takes"),
        ("modle.width=2", "unknown part 'modle'; did you mean 'model'"),
    ],
)
def test_a_wrong_set_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gathered("--set", text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("2.5", 2.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("1,2,2", [1, 2, 2]),
        ("a,b", "a,b"),
        ("cosine", "cosine"),
        ('"2"', "2"),
        ("", ""),
    ],
)
def test_values_are_read_as_toml(text: str, value: Any) -> None:
    got = options.literal(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("text", "value"), [("100", 100), ("1e5", 100_000), ("100_000", 100_000), ("9007199254740993", 2**53 + 1)]
)
def test_whole_numbers(text: str, value: int) -> None:
    assert options.integer(text) == value


@pytest.mark.parametrize("text", ["2.5", "nan", "inf", "x"])
def test_what_is_not_whole_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=rf"^--rounds must be a whole number, got '{re.escape(text)}' \(try"):
        gathered("--rounds", text)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--lr must be a number, got 'x' \(try"):
        gathered("--lr", "x")


def test_bandits_expect_no_more_rounds_than_a_budget_pays_for() -> None:
    base = DEFAULTS | {"controller": "exp3", "rounds": 1_000_000, "set": {}}
    for settings, horizon in (
        ({}, 1_000_000),
        ({"cost_budget": 249.5}, 250),
        ({"cost_budget": 9.0, "cost": "money"}, 1_000_000),
    ):
        made = unchecked(make_controller(base | settings, dim=100))
        assert isinstance(made, Exp3)
        assert made.horizon == horizon
