"""The settings of a run in one table, which makes the flags of the command line and the keys of a TOML file."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradsift.errors import UsageError
from gradsift.registry import nearest

DEFAULT_CONTROLLER = "planned"
# Valid parts in --set.
PARTS = ("data", "model", "local", "sparsifier", "values", "down_values", "server", "controller", "cost", "lr")


@dataclass(frozen=True)
class Option:
    """One setting: ``--batch-size`` on the command line and ``batch_size`` in a file."""

    name: str
    kind: Callable[[str], Any] | None  # None: a switch, which is on or off
    default: Any
    help: str
    metavar: str | None = None

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + self.name.replace("_", "-")


def integer(text: str) -> int:
    """Parse an integer, which may also be written as 1e5 or 100_000."""
    try:
        return int(text)  # exact, where a float is not
    except ValueError:
        value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


def bit_numbers(text: str) -> tuple[int, int]:
    """Parse the numbers of bits up and down; one number is for both."""
    up, _, down = text.partition(",")
    return integer(up), integer(down or up)


GROUPS = {
    "data and model": (
        Option("data", str, "digits", "digits, femnist, cifar10, .npz file, LEAF or CIFAR folder, or module:function"),
        Option("clients", integer, None, "number of clients (default: as many as the data set has)", "N"),
        Option("partition", str, None, "split among clients: natural, iid, one-class or dirichlet:ALPHA"),
        Option(
            "model", str, None, "small-cnn (default for digits), paper-cnn (femnist, cifar10), mlp, or module:function"
        ),
        Option("loss", str, None, "module:function (default: cross-entropy for labels, else squared error)"),
    ),
    "method, each part by a name from `gradsift list` or as module:Class": (
        Option("local", str, None, "what a client computes in a round (default: what goes with the sparsifier)"),
        Option("sparsifier", str, "fab-top-k", "which elements are sent"),
        Option("local_steps", integer, None, "steps of a client from the global weights in a round (default: 1)", "H"),
        Option(
            "values", str, None, "how the values that clients send are rounded: few-bits, int8, ...; default: exact"
        ),
        Option("down_values", str, None, "how the values that the server sends are rounded (default: exact)"),
        Option("bits", bit_numbers, None, "bits of a value up and down, such as 2,4: 1 to 8, or 32 if exact", "N,N"),
        Option("server", str, None, "the server's optimizer: sgd (default) or momentum"),
        Option(
            "controller",
            str,
            None,
            f"chooses k, how many are sent (default: {DEFAULT_CONTROLLER}; fixed if --k is given)",
        ),
        Option("k", float, None, "elements to send, if fixed (default: 1,000/444,062 of D, the model's size)", "K"),
        Option(
            "k_min",
            float,
            None,
            "smallest k to try (default: sqrt(D)/5 if planned, else 0.002 D)",
            "K",
        ),
        Option("k_max", float, None, "largest k to try (default: D)", "K"),
        Option("cost", str, "normalized-time", "what a round costs: normalized-time, link-time, energy or money"),
        Option("comm_time", float, 10.0, "time of one dense exchange, in units of one gradient's time", "T"),
        Option("charge_probe", None, False, "include the message for the trial at a smaller k in the cost"),
        Option("dense_fallback", None, False, "count a message as dense if that is smaller"),
        Option("encoded_bytes", None, False, "count the bytes of the wire format, not 4 for each number"),
    ),
    "training": (
        Option("rounds", integer, 300, "stop after this many rounds", "N"),
        Option("cost_budget", float, None, "stop when this much is spent", "C"),
        Option("target_loss", float, None, "stop when the global loss is this low", "L"),
        Option("target_accuracy", float, None, "stop when the test accuracy is this high", "A"),
        Option("lr", float, None, "step size (default: 0.3 for the digits, else the paper's 0.01)", "ETA"),
        Option("batch_size", integer, 32, "samples in a client's minibatch", "B"),
        Option("clients_per_round", integer, None, "number of clients that take part in a round (default: all)", "N"),
        Option("delay", integer, 0, "rounds by which the controller learns late: 0 or 1", "ROUNDS"),
        Option("probe_samples", integer, 1, "samples of each minibatch to compare k with a smaller k on", "N"),
        Option("buffers", str, "refuse", "buffers that training changes, as in BatchNorm: refuse or average"),
        Option("seed", integer, 0, "seed of all random draws", "N"),
        Option("eval_every", integer, 10, "rounds between evaluations", "N"),
    ),
    "running": (
        Option("device", str, "auto", "cpu, cuda, or auto"),
        Option("dtype", str, "float32", "float32 or float64"),
        Option("checkpoint_every", integer, 100, "rounds between checkpoints", "N"),
    ),
}
RUN = tuple(option for group in GROUPS.values() for option in group)
BY_NAME = {option.name: option for option in RUN}
DEFAULTS = {option.name: option.default for option in RUN}


def gather(flags: Mapping[str, Any], assignments: Sequence[str], file: Path | None) -> dict[str, Any]:
    """Return every setting of a run: the defaults, overridden by the file, overridden by the flags.

    ``assignments`` are the values of --set. Together with the [set] tables of the file they become the setting ``set``,
    a dict from each part to its options.
    """
    chosen = read_toml(file) if file is not None else {}
    parts: dict[str, dict[str, Any]] = chosen.pop("set", {})
    chosen |= {name: value for name, value in flags.items() if name in BY_NAME}
    for text in assignments:
        part, option, value = _assignment(text)
        parts.setdefault(part, {})[option] = value
    settings = DEFAULTS | chosen
    if settings["cost"] != "normalized-time" and "comm_time" in chosen:
        raise UsageError(
            f"--comm-time has no meaning with --cost {settings['cost']}: it is an option of normalized-time"
        )
    return {**settings, "set": parts}


def explicit(flags: Mapping[str, Any], file: Path | None) -> set[str]:
    """Return the names of the settings that the flags or the file give, except ``set``."""
    return (set(flags) | set(read_toml(file) if file is not None else ())) & set(BY_NAME)


def read_toml(file: Path) -> dict[str, Any]:
    """Read the settings in a TOML file; the error for an unknown key or a wrong type names it."""
    try:
        content = tomllib.loads(file.read_text())
    except OSError as problem:
        raise UsageError(f"cannot read {file}: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UsageError(f"{file} is not TOML: {problem}") from problem
    settings: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name == "set":
            settings["set"] = _parts(file, value)
        elif name in PARTS and isinstance(value, dict):
            raise UsageError(f"{file}: [{key}] must be [set.{key}], the table of options of this part")
        elif name not in BY_NAME:
            raise UsageError(f"{file}: unknown key {key!r}{nearest(name, [*BY_NAME, 'set'])}")
        else:
            settings[name] = _typed(file, BY_NAME[name], value)
    return settings


def _parts(file: Path, value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(options, dict) for options in value.values()):
        raise UsageError(f"{file}: [set] must have one table per part, such as [set.controller], got {value!r}")
    for part in value:
        if part not in PARTS:
            raise UsageError(f"{file}: unknown part {part!r} in [set]{nearest(part, list(PARTS))}")
    return value


def _typed(file: Path, option: Option, value: Any) -> Any:
    if option.kind is None:
        if not isinstance(value, bool):
            raise UsageError(f"{file}: {option.name} must be true or false, got {value!r}")
        return value
    try:
        if option.kind is bit_numbers and isinstance(value, list):
            return option.kind(",".join(map(str, value)))
        if type(value) not in ((str,) if option.kind is str else (int, float)):
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
    """Parse a value as TOML does, and 1,2,2 as a list; text that is not TOML stays a string."""
    for form in (text, f"[{text}]") if "," in text else (text,):
        try:
            return tomllib.loads(f"value = {form}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return text
