"""FedAvg, as the paper compares it: McMahan et al. (AISTATS 2017), with local steps between dense exchanges.

The paper's Section V-A, item 4. All of it is in the local computation that comes with it; ``LocalSteps`` over
``send-all`` is the same training with one record an exchange instead of one a local step.
"""

from dataclasses import dataclass
from typing import ClassVar

from gradsift.local import LocalComputation, PeriodicAveraging
from gradsift.sparsify.send_all import SendAll


@dataclass(frozen=True)
class FedAvg(SendAll):
    """Up and down: all D elements, without indices, every max(1, floor(D / 2k)) rounds; nothing in between."""

    local: ClassVar[LocalComputation] = PeriodicAveraging()
