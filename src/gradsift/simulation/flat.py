"""Any torch module as a function of one flat weight vector, and the gradients of all clients at once.

Shapes: D trainable weights, n clients of a round, b samples a minibatch. A parameter that is frozen stays as it is; one
that is tied appears once. Buffers that change in a forward pass in training (BatchNorm's running statistics) are held
for each client, [n, ...], like weights in a FedAvg period, and averaged wherever weights are exchanged.
"""

import copy
import functools
import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradsift.errors import GradsiftError
from gradsift.simulation import shared, trial

Loss = Callable[[Any, Tensor], Tensor]  # (outputs, targets) -> the mean over the batch
Named = dict[str, Tensor]
_LARGE = 2**20  # weights from which a copy of them is worth freeing at once
_LOG = logging.getLogger("gradsift")


class FlatModel:
    """A private copy of a module, on one device in one floating-point type, with its loss."""

    def __init__(self, module: nn.Module, loss: Loss, device: torch.device, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.module = copy.deepcopy(module).to(device=device, dtype=dtype)
        self.loss = copy.deepcopy(loss).to(device=device, dtype=dtype) if isinstance(loss, nn.Module) else loss
        parts = dict(loss.named_parameters()) if isinstance(loss, nn.Module) else {}
        learned = [name for name, part in parts.items() if part.requires_grad]
        if learned:
            raise GradsiftError(f"the loss has trainable parameters ({', '.join(learned)}): put them in the model")
        reduction = getattr(loss, "reduction", "mean")
        if reduction == "sum":
            raise GradsiftError(f"the loss must be the mean over a batch, got reduction={reduction!r}")
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
        self.moving: tuple[str, ...] = ()  # buffers that a forward pass in training changes
        self._loops = False
        self._batches_loss = True
        self._shared: _Shared | None = None
        self._said = False  # that clients with weights of their own go a slower way

    def weights(self) -> Tensor:
        """[D] the module's present weights."""
        parameters = dict(self.module.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.shapes])

    def trained(self, weights: Tensor, buffers: Named) -> nn.Module:
        """A module with these weights and buffers, on the device of the run, in training mode as it came."""
        module = copy.deepcopy(self.module)
        state = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in (self._unflatten(weights) | buffers).items():
                state[name].copy_(value)
        return module

    def buffers(self) -> Named:
        """The moving buffers as the module came."""
        return {name: self._constants[name].clone() for name in self.moving}

    @functools.cached_property
    def _still(self) -> tuple[nn.Module, "_Weights"]:
        """For outputs: a copy in evaluation mode."""
        module = copy.deepcopy(self.module).eval().requires_grad_(False)
        return module, _Weights(module, self.spans)

    def outputs(self, weights: Tensor, buffers: Named, x: Tensor) -> Any:
        """The module's outputs in evaluation mode: no dropout, running statistics as given."""
        with torch.no_grad():
            module, held = self._still
            held.set(weights)
            if not buffers:
                return module(x)
            return torch.func.functional_call(module, {name: value.clone() for name, value in buffers.items()}, (x,))

    def sample_losses(self, outputs: Any, y: Tensor) -> Tensor:
        """[s] the loss of each sample by itself."""
        with torch.no_grad():
            if self._is_cross_entropy(outputs, y):
                return functional.cross_entropy(outputs, y, reduction="none")
            if self._batches_loss:
                try:
                    losses: Tensor = torch.func.vmap(self.loss)(
                        _each(outputs, lambda v: v.unsqueeze(1)), y.unsqueeze(1)
                    )
                    return losses
                except Exception:  # a loss that cannot be batched, or outputs that are not all tensors
                    self._batches_loss = False
            return torch.stack([self.loss(_row(outputs, i), y[i : i + 1]) for i in range(len(y))])

    def add_gradients(self, total: Tensor, point: Tensor, buffers: Named, x: Tensor, y: Tensor) -> tuple[Tensor, Named]:
        """Add each client's minibatch gradient at ``point`` ([D], or [n, D] if each has its own) to ``total`` [n, D].

        x and y are [n, b, ...]; returns the minibatch losses [n] and the moving buffers [n, ...] after the pass.
        """
        if self._shared is not None and (point.dim() == 1 or self._shared.own):
            return self.in_one_pass(total, point, x, y), {}
        if self._shared is not None and not self._said:
            self._said = True
            self._say_slower("its way with clients' own weights is not the same")
        if not self._loops:
            try:
                return self.batched(total, point, buffers, x, y)
            except torch.OutOfMemoryError:
                raise
            except Exception as problem:
                # Not every module can be batched over clients. Whether it can run at all, the loop will say.
                self._loops = True
                torch.manual_seed(torch.initial_seed())  # the failed try has drawn; a resumed run may try again
                warnings.warn(
                    f"{type(self.module).__name__} cannot be batched over clients, they run one by one: {problem}",
                    stacklevel=2,
                )
        return self._one_by_one(total, point, buffers, x, y)

    def in_one_pass(self, total: Tensor, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """One pass over all samples of all clients: see ``shared``."""
        assert self._shared is not None
        module, sink, held, _ = self._shared
        sink.own = point if point.dim() == 2 else None
        if sink.own is None:
            held.set(point)
        sink.total = total
        outputs = module(sink.images(x.flatten(0, 1)))
        if self._is_cross_entropy(outputs, y.flatten()):
            losses = functional.cross_entropy(outputs, y.flatten(), reduction="none").view(y.shape).mean(dim=1)
        else:
            by_client = _each(outputs, lambda values: values.reshape(*x.shape[:2], *values.shape[1:]))
            losses = torch.func.vmap(self.loss, randomness="different")(by_client, y)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        sink.forget()
        return losses.detach()

    def batched(self, total: Tensor, point: Tensor, buffers: Named, x: Tensor, y: Tensor) -> tuple[Tensor, Named]:
        """All clients by ``torch.func.vmap``: any module that it can batch, each client with its own weights or not."""
        dims = (0 if point.dim() == 2 else None, 0, 0, 0)
        step = torch.func.vmap(self._gradient(), in_dims=dims, randomness="different")
        gradients, (losses, moved) = step(self._unflatten(point), buffers, x, y)
        for name, span in self.spans.items():
            total[:, span].add_(gradients[name].detach().reshape(len(x), -1))
        return losses.detach(), {name: value.detach() for name, value in moved.items()}

    def _one_by_one(self, total: Tensor, point: Tensor, buffers: Named, x: Tensor, y: Tensor) -> tuple[Tensor, Named]:
        """A loop over the clients: any module at all."""
        values, changed = [], []
        for i in range(len(x)):
            weights = self._unflatten(point[i] if point.dim() == 2 else point)
            gradients, (value, moved) = self._gradient()(weights, {n: b[i] for n, b in buffers.items()}, x[i], y[i])
            for name, span in self.spans.items():
                total[i, span].add_(gradients[name].detach().reshape(-1))
            values.append(value.detach())
            changed.append(moved)
        return torch.stack(values), {name: torch.stack([moved[name].detach() for moved in changed]) for name in buffers}

    def choose_way(self, x: Tensor, y: Tensor) -> None:
        """Take the one-pass way if the module allows it and a trial [n, b, ...] gives the same as the general one."""
        reason = f"{self.moving[0]} moves in training" if self.moving else shared.unsupported(self.module)
        if reason is None:
            channels_last, own = trial.agreement(self, x, y)
            if self.dim > _LARGE:
                gc.collect()  # what was tried is in cycles, torch's own among them, and memory is counted next
            if channels_last is not None:
                self.share(channels_last, own)
                return
            reason = "a trial batch gave other gradients, or none"
        self._say_slower(reason)

    def _say_slower(self, reason: str) -> None:
        name = type(self.module).__name__
        _LOG.warning("gradients of %s are taken by vmap, not in one pass, which is slower: %s", name, reason)

    def share(self, channels_last: bool, own: bool) -> None:
        """Go the one-pass way, with images in that order; ``own``: also with clients that have weights of their own."""
        module = copy.deepcopy(self.module)
        named = dict(module.named_parameters())
        spans: dict[Tensor, slice] = {named[name]: span for name, span in self.spans.items()}
        sink = shared.Sink(spans, channels_last)
        shared.attach(module, sink)
        self._shared = _Shared(module, sink, _Weights(module, self.spans), own)

    def unshare(self) -> None:
        """Go the general way again."""
        self._shared = None

    @property
    def is_shared(self) -> bool:
        """Whether all gradients are taken in one pass, also with weights of their own."""
        return self._shared is not None and self._shared.own

    def parts(self) -> Iterator[nn.Module]:
        """Every module that gradients are taken through."""
        yield from self.module.modules()
        if self._shared is not None:
            yield from self._shared.module.modules()

    def _is_cross_entropy(self, outputs: Any, y: Tensor) -> bool:
        """Whether the loss is the mean of its samples' cross entropies: then torch has them all in one call."""
        plain = self.loss is functional.cross_entropy or (
            type(self.loss) is nn.CrossEntropyLoss
            and self.loss.weight is None  # which the mean would be weighted by
            and self.loss.ignore_index < 0  # and labels are not: none is left out of the mean
            and self.loss.label_smoothing == 0
            and self.loss.reduction == "mean"
        )
        return (
            plain and isinstance(outputs, Tensor) and outputs.dim() == 2 and not y.is_floating_point() and y.dim() == 1
        )

    def _check_labels(self, outputs: Any, classes: int | None) -> None:
        """Before the loss: on CUDA a label outside the outputs ends the process."""
        functions = (functional.cross_entropy, functional.nll_loss, functional.multi_margin_loss)
        modules = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
        takes_classes = self.loss in functions or isinstance(self.loss, modules)
        if classes is None or not takes_classes or not isinstance(outputs, Tensor) or outputs.dim() != 2:
            return
        if classes > outputs.shape[1]:
            raise GradsiftError(f"label {classes - 1} is outside the model's {outputs.shape[1]} classes")

    def probe_batch(self, x: Tensor, y: Tensor, classes: int | None) -> tuple[Any, int]:
        """Try the module and its loss on one minibatch; returns the outputs and the bytes a backward pass keeps.

        Finds the moving buffers. Whatever the module raises comes back as one clear error.
        """
        kept = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal kept
            kept += tensor.numel() * tensor.element_size()
            return tensor

        trial = copy.deepcopy(self.module)
        shape = list(x.shape)
        try:
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                trial(x)
            outputs = trial(x)  # without the hooks, under which autograd does not see tensors changed in place
        except Exception as problem:
            raise GradsiftError(f"the model's forward pass failed on a batch of shape {shape}: {problem}") from problem
        self._check_labels(outputs, classes)
        try:
            value = self.loss(outputs, y)
        except Exception as problem:
            raise GradsiftError(f"the loss failed on the model's outputs for a batch {shape}: {problem}") from problem
        if not isinstance(value, Tensor) or value.dim() != 0:
            got = list(value.shape) if isinstance(value, Tensor) else value
            raise GradsiftError(f"the loss must be one number, the mean over the batch, got {got!r}")
        if not value.requires_grad:
            raise GradsiftError("the loss does not depend on the model's trainable weights")
        try:
            value.backward()  # type: ignore[no-untyped-call]
        except Exception as problem:
            raise GradsiftError(f"the backward pass failed on a batch of shape {shape}: {problem}") from problem
        after = dict(trial.named_buffers())
        self.moving = tuple(n for n, b in self.module.named_buffers() if not torch.equal(b, after[n]))
        return outputs, kept

    def _gradient(self) -> Callable[..., Any]:
        return torch.func.grad_and_value(self._objective, has_aux=True)

    def _objective(self, weights: Named, buffers: Named, x: Tensor, y: Tensor) -> tuple[Tensor, Named]:
        moved = {name: value.clone() for name, value in buffers.items()}
        return self.loss(self._call(weights, moved, x), y), moved

    def _call(self, weights: Named, buffers: Named, x: Tensor) -> Any:
        state = {**self._constants, **weights, **buffers}
        outputs = torch.func.functional_call(self.module, state, (x,))
        buffers.update({name: state[name] for name in buffers})  # what the module assigned anew instead of in place
        return outputs

    def _unflatten(self, flat: Tensor) -> Named:
        lead = flat.shape[:-1]
        return {name: flat[..., span].reshape(*lead, *self.shapes[name]) for name, span in self.spans.items()}


class _Weights:
    """The trainable parameters of a module in one place: set all at once, without a loop over them."""

    def __init__(self, module: nn.Module, spans: Mapping[str, slice]) -> None:
        parameters = dict(module.named_parameters())
        self._parameters = [(parameters[name], span) for name, span in spans.items()]
        self._gather()

    def _gather(self) -> None:
        self._flat = torch.cat([parameter.detach().reshape(-1) for parameter, _ in self._parameters])
        for parameter, span in self._parameters:
            parameter.data = self._flat[span].view(parameter.shape)

    def set(self, weights: Tensor) -> None:
        """Give the module these weights [D]."""
        if self._parameters[0][0].data_ptr() != self._flat.data_ptr():  # of a copy, which has each by itself
            self._gather()
        self._flat.copy_(weights)


class _Shared(NamedTuple):
    """The one-pass way, made ready."""

    module: nn.Module
    sink: shared.Sink
    weights: _Weights
    own: bool  # whether it also takes clients with weights of their own


def _each(outputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``change`` of a tensor, or of every tensor in a dict, list, tuple or named tuple of them."""
    if isinstance(outputs, Tensor):
        return change(outputs)
    if isinstance(outputs, dict):
        return {key: _each(value, change) for key, value in outputs.items()}
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*(_each(value, change) for value in outputs))
    if isinstance(outputs, list | tuple):
        return type(outputs)(_each(value, change) for value in outputs)
    return outputs


def _row(outputs: Any, i: int) -> Any:
    return _each(outputs, lambda values: values[i : i + 1])


def chunks(total: int, size: int) -> Iterator[slice]:
    """range(total) in slices of ``size``."""
    for first in range(0, total, size):
        yield slice(first, min(first + size, total))
