"""What a run can be told, in one table: it makes the flags, the keys of a TOML file, and the errors about both."""

import argparse
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradsift.errors import GradsiftError
from gradsift.registry import nearest

PARTS = ("data", "model", "sparsifier", "controller", "cost", "lr")  # what --set PART.OPTION=VALUE can reach


class UsageError(GradsiftError):
    """The command cannot be carried out as it was given: exit code 2."""


@dataclass(frozen=True)
class Option:
    """One setting: --its-name on the command line, its_name in a file."""

    name: str
    kind: Callable[[str], Any] | None  # None: a switch
    default: Any
    group: str
    help: str
    metavar: str | None = None

    @property
    def flag(self) -> str:
        """As written on the command line."""
        return "--" + self.name.replace("_", "-")


def whole(text: str) -> int:
    """An integer, also written 1e5 or 100_000."""
    try:
        return int(text)  # exact, where a float is not
    except ValueError:
        value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


RUN = (
    Option(
        "data",
        str,
        "digits",
        "data and model",
        "digits, femnist, cifar10, a .npz file, a folder of LEAF or of CIFAR-10 batches, or package.module:function",
    ),
    Option("clients", whole, None, "data and model", "how many clients (default: what the data set has)", "N"),
    Option("partition", str, None, "data and model", "split among clients: natural, iid, one-class or dirichlet:ALPHA"),
    Option(
        "model",
        str,
        None,
        "data and model",
        "small-cnn, mlp, paper-cnn, or package.module:function"
        " (default: small-cnn for digits, paper-cnn for femnist and cifar10, else mlp)",
    ),
    Option("loss", str, None, "data and model", "package.module:function (default: cross-entropy, or squared error)"),
    Option("sparsifier", str, "fab-top-k", "what is sent", "how elements are chosen; `gradsift list` names them all"),
    Option("controller", str, None, "what is sent", "who decides k (default: extended-sign; fixed if --k is given)"),
    Option(
        "k",
        float,
        None,
        "what is sent",
        "elements a round, for the fixed controller (default: the paper's 1,000/444,062 of D, at least 1)",
        "K",
    ),
    Option("k_min", float, None, "what is sent", "least k of a search (default: 0.002 D, at least 2)", "K"),
    Option("k_max", float, None, "what is sent", "largest k of a search (default: D)", "K"),
    Option(
        "cost",
        str,
        "normalized-time",
        "what it costs",
        "normalized-time, link-time, energy or money; their options: --set cost.OPTION",
    ),
    Option("comm_time", float, 10.0, "what it costs", "normalised time of one dense exchange; computing is 1", "T"),
    Option("charge_probe", None, False, "what it costs", "count the probe's message in the cost"),
    Option("dense_fallback", None, False, "what it costs", "count a message as dense where that is smaller"),
    Option("encoded_bytes", None, False, "what it costs", "count bytes of the wire format, not 4 for each number"),
    Option("rounds", whole, 300, "training", "stop after so many rounds", "N"),
    Option("cost_budget", float, None, "training", "stop when this much is spent", "C"),
    Option("target_loss", float, None, "training", "stop when the global loss is this low", "L"),
    Option("target_accuracy", float, None, "training", "stop when the test accuracy is this high", "A"),
    Option("lr", float, None, "training", "step size (default: 0.3 for the digits, else the paper's 0.01)", "ETA"),
    Option("batch_size", whole, 32, "training", "samples in a client's minibatch", "B"),
    Option("clients_per_round", whole, None, "training", "how many clients take part in a round (default: all)", "N"),
    Option("delay", whole, 0, "training", "1: the controller hears of a round one round late", "ROUNDS"),
    Option("probe_samples", whole, 1, "training", "samples of each minibatch that the probe looks at", "N"),
    Option("buffers", str, "refuse", "training", "BatchNorm and the like: refuse or average"),
    Option("seed", whole, 0, "training", "decides every random draw", "N"),
    Option("eval_every", whole, 10, "training", "rounds between evaluations", "N"),
    Option("device", str, "auto", "running", "cpu, cuda, or auto"),
    Option("dtype", str, "float32", "running", "float32 or float64"),
    Option("checkpoint_every", whole, 100, "running", "rounds between checkpoints", "N"),
)
BY_NAME = {option.name: option for option in RUN}


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give a parser the flags of the table; what was not given stays out of the result."""
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(option.group for option in RUN)}
    for option in RUN:
        group = groups[option.group]
        shown = option.help if option.default in (None, False) else f"{option.help} (default: {option.default})"
        if option.kind is None:
            group.add_argument(option.flag, action="store_true", default=argparse.SUPPRESS, help=shown)
        else:
            metavar = option.metavar or option.name.upper()
            group.add_argument(option.flag, type=option.kind, default=argparse.SUPPRESS, help=shown, metavar=metavar)
    parser.add_argument(
        "--set",
        dest="set_",
        action="append",
        default=[],
        metavar="PART.OPTION=VALUE",
        help=f"any option of a part ({', '.join(PARTS)}), such as controller.alpha=2 or model.width=0.5",
    )


def gather(given: argparse.Namespace, file: Path | None) -> dict[str, Any]:
    """Every setting of a run: the defaults, over them the file, over that the flags; and ``set``, by part."""
    chosen = read_toml(file) if file is not None else {}
    parts: dict[str, dict[str, Any]] = chosen.pop("set", {})
    chosen |= {name: value for name, value in vars(given).items() if name in BY_NAME}
    settings = {option.name: option.default for option in RUN} | chosen
    for text in given.set_:
        part, option, value = _assignment(text)
        parts.setdefault(part, {})[option] = value
    if settings["cost"] != "normalized-time" and "comm_time" in chosen:
        raise UsageError(f"--comm-time has no meaning with --cost {settings['cost']}: it is of normalized-time")
    return {**settings, "set": parts}


def asked(given: argparse.Namespace, file: Path | None) -> set[str]:
    """The settings that are not left to their defaults: the flags and the keys of the file, without ``set``."""
    return (set(vars(given)) | set(read_toml(file) if file is not None else ())) & set(BY_NAME)


def read_toml(file: Path) -> dict[str, Any]:
    """The settings in a TOML file; unknown keys and wrong types are refused by name."""
    try:
        read = tomllib.loads(file.read_text())
    except OSError as problem:
        raise UsageError(f"cannot read {file}: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UsageError(f"{file} is not TOML: {problem}") from problem
    settings: dict[str, Any] = {}
    for key, value in read.items():
        name = key.replace("-", "_")
        if name in PARTS and isinstance(value, dict):
            raise UsageError(f"{file}: [{key}] must be [set.{key}], where the options of a part stand")
        if name == "set":
            settings["set"] = _parts(file, value)
        elif name not in BY_NAME:
            raise UsageError(f"{file}: unknown key {key!r}{nearest(name, [*BY_NAME, 'set'])}")
        else:
            settings[name] = _typed(file, BY_NAME[name], value)
    return settings


def _parts(file: Path, value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(options, dict) for options in value.values()):
        raise UsageError(f"{file}: [set] holds one table a part, such as [set.controller]; got {value!r}")
    for part in value:
        if part not in PARTS:
            raise UsageError(f"{file}: unknown part {part!r} in [set]{nearest(part, list(PARTS))}")
    return value


def _typed(file: Path, option: Option, value: Any) -> Any:
    if option.kind is None:
        if not isinstance(value, bool):
            raise UsageError(f"{file}: {option.name} must be true or false, got {value!r}")
        return value
    wrong = isinstance(value, bool) or (option.kind is str) != isinstance(value, str)
    try:
        if wrong or not isinstance(value, str | int | float):
            raise ValueError
        return option.kind(str(value))
    except ValueError:
        raise UsageError(f"{file}: {option.name} cannot be {value!r}") from None


def _assignment(text: str) -> tuple[str, str, Any]:
    left, equals, right = text.partition("=")
    part, dot, option = left.partition(".")
    if not (equals and dot and option):
        raise UsageError(f"--set takes PART.OPTION=VALUE, got {text!r}")
    if part not in PARTS:
        raise UsageError(f"--set {text}: unknown part {part!r}{nearest(part, list(PARTS))}")
    return part, option.replace("-", "_"), literal(right)


def literal(text: str) -> Any:
    """A value as TOML would read it, 1,2,2 as a list; a word that is none stays a string."""
    for form in (text, f"[{text}]") if "," in text else (text,):
        try:
            return tomllib.loads(f"value = {form}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return text


class Parser(argparse.ArgumentParser):
    """An argument parser that answers a wrong word with the nearest right one."""

    def error(self, message: str) -> Any:
        """Exit 2, with a suggestion."""
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if wrong is not None:
            known = re.findall(r"[\w-]+", wrong[2])
            message = f"{message[: wrong.start()]}unknown {wrong[1]!r}{nearest(wrong[1], known)}"
        wrong = re.fullmatch(r"argument (\S+): invalid (whole|float) value: (.*)", message, re.DOTALL)
        if wrong is not None:
            kind = "a whole number" if wrong[2] == "whole" else "a number"
            message = f"{wrong[1]} must be {kind}, got {wrong[3]}"
        raise UsageError(f"{message} (try: {self.prog} --help)")

    def refuse_unknown(self, extra: Sequence[str]) -> None:
        """What parse_known_args left over."""
        if extra:
            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            known = f"unknown option {extra[0]!r}{nearest(extra[0], flags)}"
            raise UsageError(known if extra[0].startswith("-") else f"unexpected {extra[0]!r}")
