"""Reading the pages under docs/ and the README: their references to code, their examples, their links."""

import contextlib
import importlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]

_REFERENCE = re.compile(r"`((?:src|tests|docs|examples|benchmarks)/[\w./-]+)(?::([\w.]+))?`")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Reference(NamedTuple):
    """A file of this repository, and a symbol in it where one is named."""

    path: str
    symbol: str | None


class Block(NamedTuple):
    """A fenced block: its language, its text and the line of the page where the text starts."""

    language: str
    text: str
    line: int


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def references(text: str) -> list[Reference]:
    return [Reference(match[1], match[2]) for match in _REFERENCE.finditer(text)]


def blocks(text: str) -> list[Block]:
    return [Block(match[1], match[2], text[: match.start(2)].count("\n") + 1) for match in _BLOCK.finditer(text)]


def local_links(text: str) -> Iterator[str]:
    for match in _LINK.finditer(text):
        if not re.match(r"[a-z]+:", match[1]):
            yield match[1]


def problem(reference: Reference) -> str | None:
    """Why a reference leads nowhere, or None if it leads somewhere."""
    path, symbol = reference
    if not (ROOT / path).exists():
        return f"{path} does not exist"
    if symbol is None:
        return None
    if not (path.startswith("src/") and path.endswith(".py")):
        return f"{path}:{symbol}: symbols are looked up in modules under src/ only"
    name = ".".join(Path(path).relative_to("src").with_suffix("").parts).removesuffix(".__init__")
    found: object = importlib.import_module(name)
    for part in symbol.split("."):
        if not hasattr(found, part):
            return f"{path} has no {symbol}"
        found = getattr(found, part)
    # A name that is only imported there would send the reader to the wrong file; constants do not say where they live.
    home = getattr(found, "__module__", name)
    return None if home == name else f"{symbol} is defined in {home}, not in {path}"


def run_blocks(examples: list[Block], page: str, **names: Any) -> tuple[dict[str, Any], int]:
    """Run python blocks in one namespace; a text block after one is what it must print.

    Returns the namespace, and how many text blocks there were.
    """
    namespace: dict[str, Any] = {"__name__": "page", **names}
    printed, shown = "", 0
    for block in examples:
        if block.language == "python":
            # Blank lines before it, so that a traceback names the line of the page.
            code = compile("\n" * (block.line - 1) + block.text, page, "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, namespace)
            printed = out.getvalue()
        elif block.language == "text":
            assert printed == block.text, f"{page}, line {block.line}"
            shown += 1
    return namespace, shown
