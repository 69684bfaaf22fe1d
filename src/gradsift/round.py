"""Algorithm 1 as pure steps: what every driver calls around a sparsifier's upload, merge and settle.

One round of the paper's Fig. 3, for a driver that holds ``weights`` [D] and ``residual`` [N, D]:

    residual += gradients at sparsifier.point(weights, residual, lr)         (A)
    upload  = sparsifier.upload(residual, rnd)                               step 1
    merged  = sparsifier.merge(upload, share, rnd)                           step 2
    probed  = sparsifier.probe(upload, share, rnd, probe_k)
    change  = difference(probed, merged)                                     step 3, the probe as one sparse message
    residual = sparsifier.settle(residual, upload, merged)
    after = apply(weights, merged, lr);  probe = apply(after, change, lr)    (B)
    three losses -> Observation -> controller.update -> the next k           (C), (D), steps 4 and 5
"""

from typing import NamedTuple

from torch import Tensor

from gradsift import check, check_tensors
from gradsift.errors import GradsiftError
from gradsift.sparse import Sparse


class Round(NamedTuple):
    """What a sparsifier may know of the round it works in."""

    number: int  # m, counted from 1
    k: int
    seed: int = 0
    offset: int = 0  # elements sent by each client in all earlier rounds: where periodic-k continues

    def validate(self, dim: int) -> None:
        """Refuse a round that cannot be for vectors of ``dim`` elements."""
        check.integer("round number", self.number, 1)
        check.integer("k", self.k, 1, dim)
        check.integer("seed", self.seed, 0, 2**64 - 1)
        check.integer("offset", self.offset, 0)


def apply(weights: Tensor, merged: Sparse, lr: float) -> Tensor:
    """Equation (1): the weights after a step of size ``lr`` along the sparse gradient ``merged``."""
    check.real("lr", lr, low=0.0)
    check_tensors.sparse("merged", merged, rows=False)
    if weights.dim() != 1 or weights.shape[0] != merged.dim:
        raise GradsiftError(f"weights must have shape [{merged.dim}], as merged has, got {list(weights.shape)}")
    check_tensors.finite("weights", weights)
    return weights.index_add(0, merged.indices, merged.values.to(weights), alpha=-lr)
