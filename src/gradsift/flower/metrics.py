"""The metrics of the users' own functions, averaged by their examples; one client's odd ones spoil no round."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from logging import WARNING
from typing import Any

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore import log

from gradsift.errors import GradsiftError

Aggregate = Callable[[list[RecordDict], str], MetricRecord]  # as Flower's strategies take


def examples(content: RecordDict, key: str) -> float:
    """How many examples a client says it has; what cannot be a number of them is refused."""
    for metrics in content.metric_records.values():
        if key in metrics:
            value = metrics[key]
            if isinstance(value, int | float) and math.isfinite(value) and 0 < value < 2**53:
                return float(value)
            raise GradsiftError(f"{key} is {value!r:.80}")
    raise GradsiftError(f"its metrics have no {key!r}")


def averaged(contents: Iterable[RecordDict], key: str, aggregate: Aggregate | None = None) -> dict[str, Any]:
    """The averages of the metrics that most clients report alike; empty if none has any with its examples.

    ``aggregate`` takes the place of the average.
    """
    shapes = [(_shape(content, key), content) for content in contents if content.metric_records]
    if not shapes:
        return {}
    usual, count = Counter(shape for shape, _ in shapes).most_common(1)[0]
    if count < len(shapes):
        log(
            WARNING,
            "gradsift: the metrics of %d of %d clients are unlike the others'",
            len(shapes) - count,
            len(shapes),
        )
    if usual is None:
        return {}
    return dict((aggregate or aggregate_metricrecords)([c for shape, c in shapes if shape == usual], key))


def _shape(content: RecordDict, key: str) -> frozenset[tuple[str, int | None]] | None:
    """The names, and the lengths of lists; None for what cannot be averaged."""
    if len(content.metric_records) != 1:
        return None
    try:
        examples(content, key)
    except GradsiftError:
        return None
    (metrics,) = content.metric_records.values()
    return frozenset((name, len(value) if isinstance(value, list) else None) for name, value in metrics.items())
