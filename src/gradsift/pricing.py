"""The price of any k: the cost of a round with the traffic that is expected before anything is sent."""

from typing import Any

import numpy as np

from gradsift import unequal
from gradsift.control.law import Prices
from gradsift.cost import NUMBER_BYTES, Traffic, checked_cost
from gradsift.method import EXACT, Method
from gradsift.sampling import participants
from gradsift.values import ValueType

EXAMPLES = 8  # rounds whose participation stands for all


def expected_traffic(
    dim: int,
    k: float,
    down_k: float | None = None,
    *,
    encoded_bytes: bool = True,
    values: ValueType = EXACT,
    down_values: ValueType = EXACT,
    buffers: int = 0,
    **others: Any,
) -> Traffic:
    """A round in which every client sends and receives k of ``dim`` elements, or receives ``down_k``: real numbers.

    Clients send ``values`` of this type, the server ``down_values``. Without ``encoded_bytes`` an element takes 8
    bytes. ``others`` are arguments of ``Traffic.of``.
    """
    down_k = k if down_k is None else down_k
    if encoded_bytes:
        others["up_bytes"] = values.expected_size(dim, k) + NUMBER_BYTES * buffers
        others["down_bytes"] = down_values.expected_size(dim, down_k) + NUMBER_BYTES * buffers
    return Traffic.of(dim, k, down_k, buffers=buffers, **others)


def prices(method: Method, dim: int, clients: int, per_round: int | None = None, buffers: int = 0) -> Prices | None:
    """The expected cost of a round at any k, in which ``per_round`` of all ``clients`` take part.

    Where the links of clients differ, each has a k of its own. None if the cost can only be measured.
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

    def of_all(k: float, down_k: float) -> Traffic:
        return expected_traffic(dim, k, down_k, clients=clients, **how)

    alike = Prices.of(price, dim)
    found = unequal.prices(method, dim, np.array(alike.k), of_all) or alike
    return found._replace(gradients=method.local.computations)
