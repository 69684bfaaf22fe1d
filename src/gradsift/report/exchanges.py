"""What a run computed and sent: gradients, exchanges, and the bits of an element."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Exchanges(NamedTuple):
    """The numbers of a whole run."""

    gradients: int  # that a client computed which took part in every round
    exchanges: int  # rounds in which something was sent
    up_bits: float  # the mean of an element, with its index; NaN if nothing was sent
    down_bits: float

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]]) -> "Exchanges":
        """Count over the records of a run; those of older versions have fewer columns."""
        up = down = 0
        for record in records:
            each = record.get("client_k") or [record.get("up_elements") or 0] * (record.get("clients") or 0)
            up, down = up + sum(each), down + (record.get("down_elements") or 0) * len(record["contribution"])
        sent, received = (math.fsum(record[name] for record in records) for name in ("up_bytes", "down_bytes"))
        return cls(
            sum(record.get("steps", 1) for record in records),
            sum(record.get("up_elements", 1) > 0 for record in records),
            8 * sent / up if up else math.nan,
            8 * received / down if down else math.nan,
        )
