"""Any torch module as a function of one flat weight vector, and the gradients of all clients at once.

Shapes: D trainable weights, n clients of a round, b samples per minibatch. Frozen parameters stay fixed; tied ones
appear once. Moving buffers, which a forward pass in training changes (BatchNorm's running statistics), are kept for
each client, [n, ...], and averaged wherever weights are exchanged.
"""

import copy
import functools
import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradsift.errors import GradsiftError
from gradsift.simulation import one_pass, one_pass_check
from gradsift.simulation.flat_weights import FlatWeights
from gradsift.simulation.losses import BatchLoss, Loss
from gradsift.simulation.one_pass import OnePass

Named = dict[str, Tensor]
_LARGE = 2**20  # with more weights than this, the memory of the trial is freed at once
_LOG = logging.getLogger("gradsift")


class FlatModel:
    """A private copy of a module, on one device in one floating-point type, with its loss."""

    def __init__(self, module: nn.Module, loss: Loss, device: torch.device, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.module = copy.deepcopy(module).to(device=device, dtype=dtype)
        self.loss = BatchLoss(loss, device, dtype)
        if not self.module.training:
            self.module.train()
        parameters = dict(self.module.named_parameters())
        self.shapes = {name: p.shape for name, p in parameters.items() if p.requires_grad}
        if not self.shapes:
            raise GradsiftError(f"{type(module).__name__} has no trainable parameters")
        self.spans: dict[str, slice] = {}
        self.dim = 0
        for name, shape in self.shapes.items():
            self.spans[name] = slice(self.dim, self.dim + shape.numel())
            self.dim += shape.numel()
        buffers = {name: b.detach() for name, b in self.module.named_buffers()}
        self._constants = {name: p.detach() for name, p in parameters.items() if name not in self.shapes} | buffers
        self.moving: tuple[str, ...] = ()  # the names of the moving buffers
        self._can_vmap = True
        self._one_pass: OnePass | None = None
        self._warned = False  # whether it was logged that clients with weights of their own are slower

    def weights(self) -> Tensor:
        """[D] the module's present weights."""
        parameters = dict(self.module.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.shapes])

    def trained(self, weights: Tensor, buffers: Named) -> nn.Module:
        """A module with these weights and buffers, on the device of the run, in training mode."""
        module = copy.deepcopy(self.module)
        state = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in (self._unflatten(weights) | buffers).items():
                state[name].copy_(value)
        return module

    def buffers(self) -> Named:
        """The initial moving buffers."""
        return {name: self._constants[name].clone() for name in self.moving}

    @functools.cached_property
    def _evaluation(self) -> tuple[nn.Module, FlatWeights]:
        module = copy.deepcopy(self.module).eval().requires_grad_(False)
        return module, FlatWeights(module, self.spans)

    def outputs(self, weights: Tensor, buffers: Named, x: Tensor) -> Any:
        """The module's outputs in evaluation mode: without dropout, with these running statistics."""
        with torch.no_grad():
            module, flat_weights = self._evaluation
            flat_weights.set(weights)
            if not buffers:
                return module(x)
            return torch.func.functional_call(module, {name: value.clone() for name, value in buffers.items()}, (x,))

    def add_gradients(self, total: Tensor, point: Tensor, buffers: Named, x: Tensor, y: Tensor) -> tuple[Tensor, Named]:
        """Add each client's minibatch gradient at ``point`` to ``total`` [n, D].

        ``point`` is [D], or [n, D] if clients have weights of their own; x and y are [n, b, ...]. Returns the minibatch
        losses [n] and the moving buffers [n, ...] after the pass.
        """
        if self._one_pass is not None:
            if point.dim() == 1 or self._one_pass.takes_client_weights:
                return self._one_pass.add_gradients(total, point, x, y), {}
            if not self._warned:
                self._warned = True
                self._warn_slower("with weights of their own, clients get different gradients in one pass")
        if self._can_vmap:
            try:
                return self.add_by_vmap(total, point, buffers, x, y)
            except torch.OutOfMemoryError:
                raise
            except Exception as problem:
                # vmap cannot batch every module. If the module itself is at fault, the loop raises its error.
                self._can_vmap = False
                torch.manual_seed(torch.initial_seed())  # undo the draws of the failed attempt, which may be repeated
                warnings.warn(
                    f"{type(self.module).__name__} cannot be batched over clients, they run one by one: {problem}",
                    stacklevel=2,
                )
        return self._add_one_by_one(total, point, buffers, x, y)

    def add_by_vmap(self, total: Tensor, point: Tensor, buffers: Named, x: Tensor, y: Tensor) -> tuple[Tensor, Named]:
        """``add_gradients`` by ``torch.func.vmap``, for any module that it can batch."""
        dims = (0 if point.dim() == 2 else None, 0, 0, 0)
        step = torch.func.vmap(self._gradient(), in_dims=dims, randomness="different")
        gradients, (losses, moved) = step(self._unflatten(point), buffers, x, y)
        for name, span in self.spans.items():
            total[:, span].add_(gradients[name].detach().reshape(len(x), -1))
        return losses.detach(), {name: value.detach() for name, value in moved.items()}

    def _add_one_by_one(
        self, total: Tensor, point: Tensor, buffers: Named, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Named]:
        """``add_gradients`` by a loop over the clients, for any module."""
        losses, changed = [], []
        for i in range(len(x)):
            weights = self._unflatten(point[i] if point.dim() == 2 else point)
            gradients, (loss, moved) = self._gradient()(weights, {n: b[i] for n, b in buffers.items()}, x[i], y[i])
            for name, span in self.spans.items():
                total[i, span].add_(gradients[name].detach().reshape(-1))
            losses.append(loss.detach())
            changed.append(moved)
        return torch.stack(losses), {name: torch.stack([moved[name].detach() for moved in changed]) for name in buffers}

    def enable_one_pass(self, x: Tensor, y: Tensor) -> None:
        """Compute gradients in one pass from now on if a trial batch [n, b, ...] gives the same gradients as vmap."""
        reason = f"buffer {self.moving[0]!r} changes in training" if self.moving else one_pass.unsupported(self.module)
        if reason is None:
            self._one_pass = one_pass_check.verified(self, x, y)
            if self.dim > _LARGE:
                gc.collect()  # the trial left reference cycles, also torch's own, and free memory is measured next
            if self._one_pass is not None:
                return
            reason = "on a trial batch it failed or gave different gradients"
        self._warn_slower(reason)

    def _warn_slower(self, reason: str) -> None:
        name = type(self.module).__name__
        _LOG.warning("gradients of %s are taken by vmap, not in one pass, which is slower: %s", name, reason)

    @property
    def in_one_pass(self) -> bool:
        """Whether all gradients are computed in one pass, also those of clients with weights of their own."""
        return self._one_pass is not None and self._one_pass.takes_client_weights

    def try_batch(self, x: Tensor, y: Tensor, classes: int | None) -> tuple[Any, int]:
        """Run the module and its loss on one minibatch; returns the outputs and the bytes kept for the backward pass.

        Finds the moving buffers. An error of the module or the loss becomes a ``GradsiftError``.
        """
        kept_bytes = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal kept_bytes
            kept_bytes += tensor.numel() * tensor.element_size()
            return tensor

        module = copy.deepcopy(self.module)
        shape = list(x.shape)
        try:
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                module(x)
            outputs = module(x)  # again without the hooks, which hide in-place changes from autograd
        except Exception as problem:
            raise GradsiftError(f"the model's forward pass failed on a batch of shape {shape}: {problem}") from problem
        self.loss.check_labels(outputs, classes)
        try:
            loss = self.loss(outputs, y)
        except Exception as problem:
            raise GradsiftError(f"the loss failed on the model's outputs for a batch {shape}: {problem}") from problem
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            got = list(loss.shape) if isinstance(loss, Tensor) else loss
            raise GradsiftError(f"the loss must be one number, the mean over the batch, got {got!r}")
        if not loss.requires_grad:
            raise GradsiftError("the loss does not depend on the model's trainable weights")
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as problem:
            raise GradsiftError(f"the backward pass failed on a batch of shape {shape}: {problem}") from problem
        after = dict(module.named_buffers())
        self.moving = tuple(n for n, b in self.module.named_buffers() if not torch.equal(b, after[n]))
        return outputs, kept_bytes

    def _gradient(self) -> Callable[..., Any]:
        return torch.func.grad_and_value(self._objective, has_aux=True)

    def _objective(self, weights: Named, buffers: Named, x: Tensor, y: Tensor) -> tuple[Tensor, Named]:
        """One client's loss, and its moving buffers after the pass."""
        state = {**self._constants, **weights, **{name: value.clone() for name, value in buffers.items()}}
        outputs = torch.func.functional_call(self.module, state, (x,))
        return self.loss(outputs, y), {name: state[name] for name in buffers}

    def _unflatten(self, flat: Tensor) -> Named:
        lead = flat.shape[:-1]
        return {name: flat[..., span].reshape((*lead, *self.shapes[name])) for name, span in self.spans.items()}


def chunks(total: int, size: int) -> Iterator[slice]:
    """range(total) in slices of ``size``."""
    for first in range(0, total, size):
        yield slice(first, min(first + size, total))
