"""How long elements wait in the residuals, and whether the clients agree on what was sent: docs/theory.md.

Both are sums over clients of one number that each client knows after a round, so they cost next to nothing to send.

Shapes: n clients of a round, D weights, k elements; residual [n, D] or, of one client, [D].
"""

import math

import torch
from torch import Tensor

from gradsift.sparse import Sparse, Whole, densify, kept


def residual_mass(residual: Tensor) -> Tensor:
    """[n] or []: the sum of the absolute values of each residual."""
    mass: Tensor = torch.linalg.vector_norm(residual, 1, dim=-1)
    return mass


def waiting(uploads: Sparse, merged: Sparse, share: Tensor, mass: Tensor) -> Tensor:
    """[] the mass that is left in the residuals over the mass that was sent and kept, for all clients together."""
    sent = uploads.values.abs()
    if not isinstance(uploads, Whole):
        sent = sent * kept(uploads, merged)
    share, mass = share.to(sent.device).double(), mass.to(sent.device).double()
    return (share @ mass / (share @ sent.double().sum(dim=-1)) - 1).clamp(min=0)


def left_over(residual: Tensor, merged: Sparse) -> Tensor:
    """[n] or []: the products of each residual, settled, with the merged gradient."""
    if isinstance(merged, Whole) or merged.size * 8 > merged.dim:
        return residual @ densify(merged).to(residual)
    return residual[..., merged.indices] @ merged.values.to(residual)


def agreement(left: Tensor, share: Tensor, merged: Sparse) -> Tensor:
    """[] what the clients held before they settled, projected on what was merged, as a part of it.

    It is 1 if no other client holds anything where something was sent, 0 if the others hold the opposite of it.
    """
    values = merged.values.double()
    return 1 + share.double() @ left.double() / (values @ values)


def weighed(values: dict[str, Tensor]) -> dict[str, float]:
    """``waiting`` and ``agreement`` from the counts of a round, on the host, if they are known."""
    numbers = {name: float(values[name]) for name in ("waiting", "agreement") if name in values}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}
