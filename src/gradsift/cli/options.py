"""The parser of the command line, and flags made from the table of settings."""

import argparse
import re
from collections.abc import Sequence
from typing import Any

from gradsift.errors import UsageError
from gradsift.experiments.settings import GROUPS, PARTS, Option
from gradsift.registry import nearest

_KINDS = {"integer": "a whole number", "float": "a number", "bit_numbers": "one or two whole numbers, such as 2,4"}


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting of a run; the parsed namespace has only the flags that were given."""
    for title, options in GROUPS.items():
        add_options(parser.add_argument_group(title), *options, default=argparse.SUPPRESS)
    add_set(parser, "PART", f"option of a part ({', '.join(PARTS)}), such as local.steps=4 or controller.alpha=2")


def add_options(group: argparse._ActionsContainer, *options: Option, **more: Any) -> None:
    """Add a flag for each option; ``more`` overrides arguments of ``add_argument``."""
    for option in options:
        arguments: dict[str, Any] = {"help": option.help, "default": option.default}
        if option.default is not None and option.default is not False:
            arguments["help"] += f" (default: {option.default})"
        if option.kind is None:
            arguments["action"] = "store_true"
        else:
            arguments |= {"type": option.kind, "metavar": option.metavar or option.name.upper()}
        group.add_argument(option.flag, **{**arguments, **more})


def add_set(parser: argparse.ArgumentParser, part: str, about: str) -> None:
    """Add --set, whose values are in ``set_`` of the parsed namespace."""
    parser.add_argument("--set", dest="set_", action="append", default=[], metavar=f"{part}.OPTION=VALUE", help=about)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors suggest the nearest valid word."""

    def error(self, message: str) -> Any:
        """Raise a UsageError in plain words."""
        if wrong := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            valid = re.findall(r"[\w-]+", wrong[2])
            message = f"{message[: wrong.start()]}unknown {wrong[1]!r}{nearest(wrong[1], valid)}"
        if wrong := re.fullmatch(rf"argument (\S+): invalid ({'|'.join(_KINDS)}) value: (.*)", message, re.DOTALL):
            message = f"{wrong[1]} must be {_KINDS[wrong[2]]}, got {wrong[3]}"
        raise UsageError(f"{message} (try: {self.prog} --help)")

    def refuse_unknown(self, extra: Sequence[str]) -> None:
        """Refuse the arguments that parse_known_args did not recognise."""
        if extra and not extra[0].startswith("-"):
            raise UsageError(f"unexpected argument {extra[0]!r}")
        if extra:
            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            raise UsageError(f"unknown option {extra[0]!r}{nearest(extra[0], flags)}")
