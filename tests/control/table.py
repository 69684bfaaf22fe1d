"""Every controller of the package, for the tests that run them all: a new one gets its line here."""

from dataclasses import dataclass
from typing import Any

ROUNDS = 150


@dataclass(frozen=True)
class Row:
    """How to build a controller, where its k must lie, and whether it must end near k*."""

    options: dict[str, Any]
    low: float
    high: float
    finds: bool = False


TABLE: dict[str, Row] = {
    "fixed": Row({"k": 137.5}, 137.5, 137.5),
    "replay": Row({"sequence": [3.5 + 7 * (m % 11) for m in range(ROUNDS)]}, 3.5, 73.5),
    "sign": Row({"k_min": 20, "k_max": 9000}, 20, 9000, finds=True),
    "extended-sign": Row({"k_min": 20, "k_max": 9000}, 20, 9000, finds=True),
    "value": Row({"k_min": 20, "k_max": 9000, "scale": 1000.0}, 20, 9000),
    "exp3": Row({"k_min": 20, "k_max": 9000}, 20, 9000),
    "continuous-bandit": Row({"k_min": 20, "k_max": 9000}, 20, 9000),
    "planned": Row({"k_min": 20, "k_max": 9000}, 20, 9000),
}
