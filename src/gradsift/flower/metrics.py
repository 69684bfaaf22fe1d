"""The metrics that the user's own functions report, averaged over the clients by their numbers of examples."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from logging import WARNING
from typing import Any

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore import log

from gradsift.errors import GradsiftError

Aggregate = Callable[[list[RecordDict], str], MetricRecord]  # as Flower's strategies take it


def examples(content: RecordDict, key: str) -> float:
    """The number of examples that a client reports; anything but a positive finite number is refused."""
    for metrics in content.metric_records.values():
        if key in metrics:
            value = metrics[key]
            if isinstance(value, int | float) and math.isfinite(value) and 0 < value < 2**53:
                return float(value)
            raise GradsiftError(f"{key} must be a positive finite number, got {value!r:.80}")
    raise GradsiftError(f"its metrics have no {key!r}")


def averaged(contents: Iterable[RecordDict], key: str, aggregate: Aggregate | None = None) -> dict[str, Any]:
    """The mean metrics of the largest group of clients that report the same names; ``aggregate`` replaces the mean.

    Returns an empty dict if that group does not report its numbers of examples.
    """
    reported = [(_names(content, key), content) for content in contents if content.metric_records]
    if not reported:
        return {}
    usual, count = Counter(names for names, _ in reported).most_common(1)[0]
    unlike = len(reported) - count
    if unlike:
        log(WARNING, "gradsift: %d of %d clients report other metrics than most: not averaged", unlike, len(reported))
    if usual is None:
        return {}
    return dict((aggregate or aggregate_metricrecords)([c for names, c in reported if names == usual], key))


def _names(content: RecordDict, key: str) -> frozenset[tuple[str, int | None]] | None:
    """The names of a client's metrics with the lengths of lists, or None if they cannot be averaged."""
    if len(content.metric_records) != 1:
        return None
    try:
        examples(content, key)
    except GradsiftError:
        return None
    (metrics,) = content.metric_records.values()
    return frozenset((name, len(value) if isinstance(value, list) else None) for name, value in metrics.items())
