"""Every command in the README and the docs is run here, or listed with the reason why not and then parsed."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from gradsift.cli.parser import parser
from tests.doc_pages import ROOT, blocks, read
from tests.test_docs import PAGES

pytestmark = pytest.mark.slow  # starts processes

# What is not run, by how it starts, and why. Commands of gradsift are parsed all the same.
NOT_RUN = {
    "make": "sets up an environment of its own and takes minutes; these tests are part of it",
    **dict.fromkeys(("pip install", "env/bin/pip install"), "needs a package index, and changes the environment"),
    "gradsift run --data femnist": "needs FEMNIST, a GPU and an hour",
    "gradsift data get": "needs a network",
    "flwr run": "leaves a SuperLink behind; tests/flower/test_simulation.py runs these apps and stops it",
    "sudo": "changes the machine",
    "python3 -m venv": "makes an environment, which is then empty",
    **dict.fromkeys(
        ("openssl", "printf", "chmod", "ssh-keygen", "export", "flower-superlink", "flower-supernode", "flwr"),
        "tests/flower/test_deploy_page.py runs these, in a deployment",
    ),
    "gradsift paper --scale paper": "needs FEMNIST and a GPU",
    "gradsift regret --like": "needs FEMNIST or CIFAR-10, and a GPU",
    "gradsift regret --rounds 900": "takes several minutes",
    "python -m benchmarks.local_steps run": "needs FEMNIST or CIFAR-10, and a GPU",
}


class Command(NamedTuple):
    page: str
    line: int
    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def why_not(self) -> str | None:
        return next((why for start, why in NOT_RUN.items() if self.text.startswith(start)), None)


def commands() -> list[Command]:
    found = []
    for page in PAGES:
        for block in blocks(read(page)):
            if block.language not in ("sh", "bash", "console", "shell"):
                continue
            for number, line in enumerate(block.text.replace("\\\n", "  ").splitlines()):
                words = shlex.split(line.removeprefix("$ "), comments=True)
                variables = []
                while words and "=" in words[0] and words[0].split("=")[0].isidentifier():
                    name, value = words.pop(0).split("=", 1)
                    variables.append((name, value))
                if words:
                    found.append(Command(page, block.line + number, tuple(words), tuple(variables)))
    return found


COMMANDS = commands()


def name(command: Command) -> str:
    return f"{command.page}:{command.line}: {command.text}"


def test_there_are_commands_and_every_reason_is_needed() -> None:
    assert any(command.page == "README.md" for command in COMMANDS)
    for start in NOT_RUN:
        assert any(command.text.startswith(start) for command in COMMANDS), start


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.words[0] == "gradsift"], ids=name)
def test_every_command_of_ours_parses(command: Command) -> None:
    given, extra = parser().parse_known_args(list(command.words[1:]))
    assert extra == []
    assert given.command is not None


@pytest.mark.parametrize("page", sorted({c.page for c in COMMANDS if c.why_not is None}))
def test_the_commands_of_a_page_run_in_their_order(page: str, tmp_path: Path) -> None:
    """In one folder, since a later one may use what an earlier one made."""
    _what_the_pages_speak_of(tmp_path)
    for block in blocks(read(page)):
        named = re.match(r"# ([\w-]+\.toml)\n", block.text)
        if named:  # a file that the page shows
            (tmp_path / named[1]).write_text(block.text)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in COMMANDS:
        if command.page != page or command.why_not is not None:
            continue
        assert command.words[0] in ("gradsift", "python", "python3"), f"{name(command)}: run it here, or say why not"
        work = tmp_path if command.words[0] == "gradsift" else ROOT
        done = subprocess.run(
            command.words,
            cwd=work,
            env={**environment, **dict(command.variables)},
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, f"{name(command)}\n{done.stdout}\n{done.stderr}"


def _what_the_pages_speak_of(folder: Path) -> None:
    """A reader's own data (mine.npz, a LEAF folder), model (mymodel.py) and parts of a method (mymodule.py)."""
    source = np.random.default_rng(0)
    np.savez(
        folder / "mine.npz",
        x=source.random((400, 8), dtype=np.float32),
        y=source.integers(0, 3, 400),
        client=np.arange(400) % 5,
        split=(np.arange(400) % 10 == 0).astype(np.uint8),
    )
    for part, count in (("train", 40), ("test", 5)):
        samples = {"x": source.random((count, 784)).round(2).tolist(), "y": source.integers(0, 62, count).tolist()}
        content = {"users": ["a", "b"], "num_samples": [count] * 2, "user_data": {"a": samples, "b": samples}}
        place = folder / "leaf/data/femnist/data" / part
        place.mkdir(parents=True)
        (place / "all.json").write_text(json.dumps(content))
    (folder / "mymodel.py").write_text(
        "from torch import nn\n\n\ndef net(data):\n    return nn.Linear(data.x.shape[1], data.classes)\n"
    )
    parts = [block.text for block in blocks(read("docs/extending.md")) if "@gradsift.register" in block.text]
    (folder / "mymodule.py").write_text("\n\n".join(parts))
