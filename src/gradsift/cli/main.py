"""The ``gradsift`` command. Exit codes: 0 done, 1 a run failed, 2 wrong arguments or settings, 130 interrupted."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from gradsift.cli.options import Parser
from gradsift.cli.parser import COMMANDS, parser
from gradsift.errors import GradsiftError, RunError
from gradsift.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command; returns the exit code."""
    top = parser()
    try:
        given, extra = top.parse_known_args(arguments)
        _parser_of(top, given).refuse_unknown(extra)
        if given.version:
            print(f"gradsift {__version__}")
            return 0
        if given.command is None:
            top.print_help()
            return 0
        module, _, function = COMMANDS[given.command].function.partition(":")
        # Imported here, since torch takes longer to import than --help should take.
        code: int = getattr(importlib.import_module(f"gradsift.cli.{module}"), function)(given)
        return code
    except GradsiftError as problem:
        print(f"gradsift: {problem}", file=sys.stderr)
        return 2
    except RunError as problem:
        print(f"gradsift: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gradsift: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def _parser_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Parser:
    """Return the parser of the command, or of its action, which knows its flags."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = action.choices.get(str(getattr(given, action.dest, None)))
            if chosen is not None:
                return _parser_of(chosen, given)
    assert isinstance(parser, Parser)
    return parser
