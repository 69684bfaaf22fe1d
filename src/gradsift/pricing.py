"""The price of any k: the cost of a round with the traffic that is expected before anything is sent."""

from typing import Any

import numpy as np

from gradsift.control.law import Prices
from gradsift.cost import NUMBER_BYTES, Traffic, checked_cost
from gradsift.method import EXACT, Method
from gradsift.sampling import participants
from gradsift.values import ValueType

EXAMPLES = 8  # rounds whose participation stands for all


def expected_traffic(
    dim: int,
    k: float,
    *,
    encoded_bytes: bool = True,
    values: ValueType = EXACT,
    down_values: ValueType = EXACT,
    buffers: int = 0,
    **others: Any,
) -> Traffic:
    """A round in which every client sends and receives k of ``dim`` elements, for any real k from 1 to ``dim``.

    Clients send ``values`` of this type, the server ``down_values``. Without ``encoded_bytes`` an element takes 8
    bytes. ``others`` are arguments of ``Traffic.of``.
    """
    if encoded_bytes:
        others["up_bytes"] = values.expected_size(dim, k) + NUMBER_BYTES * buffers
        others["down_bytes"] = down_values.expected_size(dim, k) + NUMBER_BYTES * buffers
    return Traffic.of(dim, k, k, buffers=buffers, **others)


def prices(method: Method, dim: int, clients: int, per_round: int | None = None, buffers: int = 0) -> Prices | None:
    """The expected cost of a round at any k, in which ``per_round`` of all ``clients`` take part.

    None if it can only be measured.
    """
    if method.cost.measured:
        return None
    how: dict[str, Any] = {"values": method.values, "down_values": method.down_values}
    how |= {
        "encoded_bytes": method.encoded_bytes,
        "buffers": buffers,
        "dense_fallback": method.dense_fallback,
        "steps": method.local.computations,
    }
    rounds = 1 if per_round is None or per_round >= clients else EXAMPLES
    took_part = np.zeros((rounds, clients), dtype=bool)
    for number, row in enumerate(took_part, start=1):
        row[participants(clients, per_round, method.seed, number)] = True

    def price(k: float) -> float:
        costs = [checked_cost(method.cost, expected_traffic(dim, k, took_part=row, **how)) for row in took_part]
        return float(np.mean(costs))

    return Prices.of(price, dim)
