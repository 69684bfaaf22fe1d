"""The server's state between two rounds, and the step by which a round changes its weights.

Shapes: D weights; merged and update [k], or [D] if they are dense.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradsift import check, check_tensors
from gradsift.errors import GradsiftError
from gradsift.method import Method
from gradsift.server_step import Named, ServerOptimizer
from gradsift.sparse import Sparse, Whole
from gradsift.values import Exact

ERROR = "error"  # in the memory: what rounding has left of the updates, by coordinate; no optimizer may use this name


@dataclass(frozen=True)
class Server:
    """The server's state between two rounds. Checkpoints store the fields under these names."""

    weights: Tensor  # [D]
    control: Any  # the controller's state
    number: int = 0  # the number of the last completed round
    steps: int = 0  # gradients computed so far by a client that took part in every round
    offset: int = 0  # elements uploaded so far by such a client: ``Round.offset`` of the next round
    spent: float = 0.0  # total cost of all rounds
    memory: Named = field(default_factory=dict)  # [D] each: the optimizer's, and ``ERROR`` if updates are rounded


def initial_memory(method: Method, weights: Tensor) -> Named:
    """The memory before the first round."""
    memory = method.server.init(weights)
    for name, value in memory.items():
        if name == ERROR or value.shape != weights.shape or value.dtype != weights.dtype:
            raise GradsiftError(
                f"the memory of server optimizer {method.server.name!r} must be like the weights, and not called"
                f" {ERROR!r}, got {name!r}: {value.dtype} {list(value.shape)}"
            )
    return memory if type(method.down_values) is Exact else {**memory, ERROR: torch.zeros_like(weights)}


def advance(method: Method, server: Server, merged: Sparse, lr: float) -> tuple[Server, Sparse]:
    """The server after the step of a round, and what it sends for it.

    Plainly, the message is the merged gradient. Otherwise it is the update, lr times the merged gradient, rounded; what
    rounding leaves stays in the server's memory, and is added when its coordinate is merged again.
    """
    if method.plain_step or not merged.size:
        return replace(server, weights=stepped(server.weights, merged, lr)), merged
    update, memory = merged.with_values(merged.values.to(server.weights) * lr), dict(server.memory)
    if ERROR in memory:
        wanted = update.with_values(update.values + memory[ERROR][update.indices])
        update = method.down_values.rounded(wanted)
        error = (wanted.values - update.values).to(wanted.values)
        memory[ERROR] = memory[ERROR].index_copy(0, update.indices, error)
    weights, memory = taken(method.server, server.weights, memory, update)
    return replace(server, weights=weights, memory=memory), update


def taken(optimizer: ServerOptimizer, weights: Tensor, memory: Named, update: Sparse) -> tuple[Tensor, Named]:
    """The weights and the memory after the step that ``optimizer`` makes of a received update."""
    own = {name: value for name, value in memory.items() if name != ERROR}
    changed, step = optimizer.step(own, update.with_values(update.values.to(weights)))
    return stepped(weights, step, 1.0), {**memory, **changed}


def stepped(weights: Tensor, merged: Sparse, lr: float) -> Tensor:
    """Equation (1): the weights after a step of size ``lr`` along the sparse gradient ``merged``."""
    if isinstance(merged, Whole):
        return weights.sub(merged.values.to(weights), alpha=lr)
    return weights.index_add(0, merged.indices, merged.values.to(weights), alpha=-lr)


def apply(weights: Tensor, merged: Sparse, lr: float) -> Tensor:
    """``stepped``, with its arguments checked."""
    check.real("lr", lr, low=0.0)
    check_tensors.sparse("merged", merged, rows=False)
    if weights.dim() != 1 or weights.shape[0] != merged.dim:
        raise GradsiftError(f"weights must have shape [{merged.dim}], as merged has, got {list(weights.shape)}")
    check_tensors.finite("weights", weights)
    return stepped(weights, merged, lr)
