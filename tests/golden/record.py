"""Records the golden runs anew: ``python -m tests.golden.record [WORD ...]``, all or those whose name has a word."""

import sys
import tempfile
from pathlib import Path

import pytest
import torch

from tests.golden.cases import CASES
from tests.golden.store import FILE, load, save, summary


def main(words: list[str]) -> None:
    torch.set_num_threads(1)
    runs = dict(load()["runs"]) if FILE.exists() and words else {}
    for name, case in CASES.items():
        if words and not any(word in name for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            runs[name] = summary(case(Path(folder), patch))
    save({name: runs[name] for name in CASES})


if __name__ == "__main__":
    main(sys.argv[1:])
