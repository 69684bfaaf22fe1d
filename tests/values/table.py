"""Every value type of the package, for the tests that run them all: a new one gets its line here."""

from typing import Any, NamedTuple

import torch


class Row(NamedTuple):
    """How to build a value type, and what it makes of values."""

    options: dict[str, Any]
    arrives: torch.dtype | None  # None: as they are
    largest_error: float  # of a value, as a part of the largest of its message


TABLE: dict[str, Row] = {
    "exact": Row({}, None, 0.0),
    "float64": Row({}, torch.float64, 0.0),
    "float32": Row({}, torch.float32, 2.0**-24),
    "float16": Row({}, torch.float32, 2.0**-11),
    "bfloat16": Row({}, torch.float32, 2.0**-8),
    "few-bits": Row({}, None, 1.0),
    "int8": Row({}, torch.float32, 0.5 / 127 * (1 + 1e-6)),
}
