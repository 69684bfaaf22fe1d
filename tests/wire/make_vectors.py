"""Adds what is missing to the test vectors of docs/wire.md: ``python -m tests.wire.make_vectors``.

Each was made once, with version 1. A later encoder may make other bytes, and they need no change then: what counts is
that they decode to what they say.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from gradsift import Sparse
from gradsift.wire import VALUE_TYPES, Limits, decode, encode
from tests.wire.messages import Source, Values, block, clustered, corners, message, scattered, sparse_zeros, top, zeros

PATH = Path(__file__).with_name("vectors") / "version1.json"


def levels(count: int, zero: bool = False, odds: float = 0.5) -> Callable[[Source, int], Values]:
    """Values of at most ``count`` magnitudes, each as often as all smaller ones together, or by other odds."""

    def make(source: Source, k: int) -> Values:
        places = np.minimum(source.geometric(odds, k) - 1, count - 1)
        values: Values = np.copysign((places + (not zero)) * 0.37e-3, source.choice([-1.0, 1.0], k))
        return values

    return make


# name: message, value type
CASES: dict[str, tuple[Sparse, str]] = {
    "empty": (message(0, 10, 0), "float32"),
    "one element of one": (Sparse(torch.tensor([0]), torch.tensor([-1.5]), 1), "float32"),
    "three of ten": (Sparse(torch.tensor([2, 3, 7]), torch.tensor([1.0, -0.5, 0.25]), 10), "float32"),
    "gaps": (message(1, 1000, 30, scattered, top), "float32"),
    "gaps of the absent": (message(2, 60, 55, scattered), "float32"),
    "bitmap": (message(3, 64, 32, scattered), "float32"),
    "runs, absent first": (message(4, 500, 60, block, top), "float32"),
    "clusters": (message(4, 500, 60, clustered, top), "float32"),
    "runs, present first": (Sparse(torch.arange(20), message(5, 20, 20, values=top).values, 400), "float32"),
    "dense": (message(6, 20, 20, values=sparse_zeros), "float32"),
    "zeros of both signs": (message(7, 40, 16, block, zeros), "float32"),
    "subnormal and largest": (message(8, 100, 40, scattered, corners), "float32"),
    "large dimension": (Sparse(torch.tensor([0, 1, 2**40, 2**48 - 2]), torch.ones(4), 2**48 - 1), "float32"),
    **{name: (message(9, 300, 40, scattered, top), name) for name in VALUE_TYPES},
    "float64, any": (message(10, 50, 20, scattered, corners, torch.float64), "float64"),
    "int8, all zero": (message(11, 50, 9, scattered, zeros), "int8"),
    "table of one level": (message(12, 200, 30, scattered, levels(1)), "float32"),
    "table of two levels, joined": (message(13, 300, 101, scattered, levels(2, odds=0.9)), "float32"),
    "table of two levels, as a set": (message(18, 600, 301, scattered, levels(2, odds=0.99)), "float32"),
    "table of four levels": (message(14, 300, 40, scattered, levels(4)), "float32"),
    "table with a zero": (message(15, 300, 40, scattered, levels(3, zero=True)), "float32"),
    "table of many levels": (message(16, 900, 400, scattered, levels(100, odds=0.02)), "float32"),
    "float64, table": (message(17, 300, 40, scattered, levels(5), torch.float64), "float64"),
}


def main() -> None:
    vectors = json.loads(PATH.read_text(encoding="utf-8"))
    present = {vector["name"] for vector in vectors}
    for name, (sparse, values) in CASES.items():
        if name in present:
            continue
        data = encode(sparse, values=values)
        arrived = decode(data, Limits.of(sparse.dim))
        vectors.append(
            {
                "name": name,
                "values as": values,
                "dim": sparse.dim,
                "message": data.hex(),
                "indices": arrived.indices.tolist(),
                # Exact, and the sign of a zero is kept.
                "values": [value.hex() for value in arrived.values.tolist()],
            }
        )
    lines = ",\n".join(json.dumps(vector) for vector in vectors)
    PATH.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
