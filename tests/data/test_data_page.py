"""docs/data.md does what it says: its examples run in order, in one namespace, and print what is shown."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from gradsift.cli import main as command_line
from gradsift.data import FederatedData, load
from gradsift.data.partition import PARTITIONS
from tests.doc_pages import Block, blocks, read, run_blocks

PAGE = "docs/data.md"
REAL = "FEMNIST and CIFAR-10 as in the paper"


def run(examples: list[Block], **names: Any) -> int:
    return run_blocks(examples, PAGE, **names)[1]


def parts() -> tuple[list[Block], list[Block]]:
    """The blocks that run anywhere, and those of the section that needs the real data."""
    text = read(PAGE)
    start = text[: text.index(f"## {REAL}")].count("\n")
    section = text[text.index(f"## {REAL}") :]
    end = start + section[: section.index("\n## ")].count("\n")
    everywhere = [block for block in blocks(text) if not start <= block.line <= end]
    return everywhere, [block for block in blocks(text) if start <= block.line <= end]


@pytest.mark.slow
def test_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    assert run(parts()[0]) == 5
    commands = [line for block in parts()[0] if block.language == "sh" for line in block.text.splitlines()]
    own = [shlex.split(line)[1:] for line in commands if "mine.npz" in line]
    assert len(own) == 2
    for words in own:  # on the file that the page has just written
        assert command_line.main(words) == 0


@pytest.mark.slow
def test_the_examples_on_real_data(
    real_data: Path, real_cifar10: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADSIFT_DATA", os.fspath(real_data))

    def loaded(name: str) -> FederatedData:
        return real_cifar10 if name == "cifar10" else load(name)  # which takes seconds, and is here already

    assert run(parts()[1], load=loaded) == 1


def test_every_partition_is_listed() -> None:
    listed = [line.split('"')[1] for line in read(PAGE).splitlines() if line.startswith('| `"')]
    assert listed == PARTITIONS
