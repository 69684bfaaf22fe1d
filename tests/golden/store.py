"""Where the golden runs are kept, and how one is recorded and compared.

A run is compared bit for bit where this machine computes as the one that recorded it did. Another processor may round
the sums inside a matrix product in another order: there, numbers are compared to a tolerance.
"""

import functools
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.golden.cases import Run, convolutions, digits, mlp

FILE = Path(__file__).with_name("golden.json.gz")
SAMPLED = 32  # weights of each run that are kept as numbers; of all of them there is a digest


def summary(run: Run) -> dict[str, Any]:
    """A run as JSON: its records as columns, a digest of its weights, and some of them."""
    names = list(dict.fromkeys(name for record in run.records for name in record))
    step = max(1, len(run.weights) // SAMPLED)
    return {
        "records": {name: [record.get(name) for record in run.records] for name in names},
        "digest": digest(run.weights),
        "weights": run.weights.double()[::step].tolist(),
    }


def digest(values: Tensor) -> str:
    return hashlib.sha256(values.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


@functools.cache
def arithmetic() -> list[str]:
    """How this machine rounds: digests of plain gradients of the networks of the golden runs."""
    data, found = digits(), []
    for make in (mlp, convolutions):
        for dtype in (torch.float64, torch.float32):
            model = make().to(dtype)
            for rows in (8, 64, len(data.x)):
                loss = nn.functional.cross_entropy(model(data.x[:rows].to(dtype)), data.y[:rows])
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                found.append(digest(torch.cat([part.reshape(-1) for part in gradients])))
    return found


@functools.cache
def load() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
    return kept


def save(runs: dict[str, dict[str, Any]]) -> None:
    text = json.dumps({"arithmetic": arithmetic(), "runs": runs}, separators=(",", ":"))
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
