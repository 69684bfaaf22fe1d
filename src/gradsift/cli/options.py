"""The command line's parser, and the flags that it makes from the table of settings."""

import argparse
import re
from collections.abc import Sequence
from typing import Any

from gradsift.errors import UsageError
from gradsift.experiments.settings import PARTS, RUN
from gradsift.registry import nearest


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting of a run; a flag that is not given is not in the parsed namespace."""
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(option.group for option in RUN)}
    for option in RUN:
        group = groups[option.group]
        shown = option.help if option.default in (None, False) else f"{option.help} (default: {option.default})"
        if option.kind is None:
            group.add_argument(option.flag, action="store_true", default=argparse.SUPPRESS, help=shown)
        else:
            metavar = option.metavar or option.name.upper()
            group.add_argument(option.flag, type=option.kind, default=argparse.SUPPRESS, help=shown, metavar=metavar)
    add_set(parser, "PART", f"any option of a part ({', '.join(PARTS)}), such as controller.alpha=2 or model.width=0.5")


def add_set(parser: argparse.ArgumentParser, part: str, about: str) -> None:
    """Add --set, whose values are in ``set_`` of the parsed namespace."""
    parser.add_argument("--set", dest="set_", action="append", default=[], metavar=f"{part}.OPTION=VALUE", help=about)


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
        """Refuse the arguments that parse_known_args did not recognise."""
        if extra:
            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            known = f"unknown option {extra[0]!r}{nearest(extra[0], flags)}"
            raise UsageError(known if extra[0].startswith("-") else f"unexpected {extra[0]!r}")
