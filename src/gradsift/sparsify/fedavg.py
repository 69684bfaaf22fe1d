"""FedAvg in the paper's comparison (Section V-A, item 4): McMahan et al. (AISTATS 2017).

The local steps between its dense exchanges are those of ``PeriodicAveraging``, its default local computation.
``LocalSteps`` with ``send-all`` is the same training with one record per exchange instead of one per local step.
"""

from dataclasses import dataclass
from typing import ClassVar

from gradsift.local import LocalComputation, PeriodicAveraging
from gradsift.sparsify.send_all import SendAll


@dataclass(frozen=True)
class FedAvg(SendAll):
    """Up and down: all D elements, without indices, every max(1, floor(D / 2k)) rounds; nothing in between."""

    local: ClassVar[LocalComputation] = PeriodicAveraging()
