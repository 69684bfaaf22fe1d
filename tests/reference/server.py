"""The server's step in plain Python: the slow obvious twin of ``gradsift.server`` and ``gradsift.server_step``.

A message is a dict from index to value, the error memory too; weights and velocities are lists.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradsift.method import Method
from gradsift.server import Server
from gradsift.server_step import SGD, Momentum, ServerOptimizer
from gradsift.sparse import Sparse
from gradsift.values import Exact
from tests.reference.literal import Message, Vector, as_message, as_sparse


def advance(method: Method, server: Server, merged: Sparse, lr: float) -> tuple[Server, Sparse]:
    """The server after the step of a round, and what it sends."""
    sent = as_message(merged)
    if not sent or (isinstance(method.down_values, Exact) and method.server == SGD()):
        step = {j: lr * value for j, value in sent.items()}
        return replace(server, weights=_moved(server.weights, step)), merged
    update, memory = {j: lr * value for j, value in sent.items()}, dict(server.memory)
    if not isinstance(method.down_values, Exact):
        error: Message = dict(enumerate(memory["error"].tolist()))
        wanted = {j: value + error[j] for j, value in update.items()}
        update = as_message(method.down_values.rounded(as_sparse(wanted, merged.dim)))
        for j, value in wanted.items():
            error[j] = value - update[j]
        memory["error"] = _tensor([error[j] for j in range(merged.dim)])
    own = {name: value.tolist() for name, value in memory.items() if name != "error"}
    own, step = stepped(method.server, own, update, merged.dim)
    memory |= {name: _tensor(values) for name, values in own.items()}
    return replace(server, weights=_moved(server.weights, step), memory=memory), as_sparse(update, merged.dim)


def stepped(
    optimizer: ServerOptimizer, memory: dict[str, Vector], update: Message, dim: int
) -> tuple[dict[str, Vector], Message]:
    """The optimizer's memory and its step, coordinate by coordinate."""
    options: Any = optimizer
    if optimizer.name == SGD.name:
        return memory, {j: options.rate * value for j, value in update.items()}
    assert optimizer.name == Momentum.name
    velocity, step = list(memory["velocity"]), {}
    for j in range(dim):
        new = update.get(j, 0.0)
        velocity[j] = options.momentum * velocity[j] + new
        step[j] = options.rate * (new + options.momentum * velocity[j] if options.nesterov else velocity[j])
    return {"velocity": velocity}, step


def _moved(weights: Tensor, step: Message) -> Tensor:
    return _tensor([weight - step.get(j, 0.0) for j, weight in enumerate(weights.tolist())])


def _tensor(values: Vector) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
