"""The settings of a run in one table, from which the flags, the keys of a TOML file and their errors are made."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradsift.errors import UsageError
from gradsift.registry import nearest

PARTS = ("data", "model", "local", "sparsifier", "values", "controller", "cost", "lr")  # that --set can reach


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
        """Its name on the command line."""
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
    Option(
        "local",
        str,
        None,
        "what is sent",
        "what a client computes in a round: one-gradient, local-steps (with --set local.steps=H), ..."
        " (default: what goes with the sparsifier)",
    ),
    Option("sparsifier", str, "fab-top-k", "what is sent", "how elements are chosen; `gradsift list` names them all"),
    Option(
        "values", str, None, "what is sent", "how values are rounded: float16, bfloat16, int8, ... (default: exact)"
    ),
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
DEFAULTS = {option.name: option.default for option in RUN}


def gather(flags: Mapping[str, Any], assignments: Sequence[str], file: Path | None) -> dict[str, Any]:
    """Every setting of a run: the defaults, overridden by the file, overridden by the flags.

    ``assignments`` are the values of --set; they and the [set] tables of the file become ``set``, options by part.
    """
    chosen = read_toml(file) if file is not None else {}
    parts: dict[str, dict[str, Any]] = chosen.pop("set", {})
    chosen |= {name: value for name, value in flags.items() if name in BY_NAME}
    for text in assignments:
        part, option, value = _assignment(text)
        parts.setdefault(part, {})[option] = value
    settings = DEFAULTS | chosen
    if settings["cost"] != "normalized-time" and "comm_time" in chosen:
        raise UsageError(f"--comm-time has no meaning with --cost {settings['cost']}: it is of normalized-time")
    return {**settings, "set": parts}


def asked(flags: Mapping[str, Any], file: Path | None) -> set[str]:
    """The names of the settings that the flags or the file give, ``set`` excepted."""
    return (set(flags) | set(read_toml(file) if file is not None else ())) & set(BY_NAME)


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
    """A value as TOML would read it, and 1,2,2 as a list; what is not TOML stays a string."""
    for form in (text, f"[{text}]") if "," in text else (text,):
        try:
            return tomllib.loads(f"value = {form}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return text
