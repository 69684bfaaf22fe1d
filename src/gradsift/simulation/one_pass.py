"""Compute the gradients of many clients in one forward and backward pass over all their samples.

Clients with equal weights differ in their samples only. Forward and backward through the activations are therefore one
ordinary batch of n * b samples; only the weight gradients are computed for each client, as batched products, and added
to the rows of a total [n, D]. Clients with weights of their own (local steps, FedAvg) also go through together: their
linear layers are batched products, their convolutions those of ``one_pass_conv``.

A model qualifies if all its trainable weights belong to ``nn.Linear`` and ``nn.Conv2d`` and its samples are
independent of each other (no BatchNorm). ``one_pass_check`` compares the gradients with those of vmap before a run
relies on them.

Images are channels last, the fastest layout for convolutions and pooling, and a ReLU just before a max-pool moves
behind it, where it has less to do and gives the same result.

Shapes: n clients, b samples each, activations [n * b, ...] with the samples of a client next to each other.
"""

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradsift import sparse
from gradsift.simulation.flat_weights import FlatWeights
from gradsift.simulation.losses import BatchLoss
from gradsift.simulation.one_pass_conv import Conv2d, pixels


class OnePass:
    """A copy of a module that computes the gradients of all clients in one pass.

    Its layers read each client's weights from here and add each client's gradient to ``total``.
    """

    def __init__(
        self,
        module: nn.Module,
        spans: Mapping[str, slice],
        loss: BatchLoss,
        *,
        channels_last: bool,
        takes_client_weights: bool,
    ) -> None:
        self.module, self.loss = copy.deepcopy(module), loss
        self.channels_last = channels_last  # the layout of images
        self.takes_client_weights = takes_client_weights  # whether it may be used for clients with weights of their own
        parameters = dict(self.module.named_parameters())
        self.spans: dict[Tensor, slice] = {parameters[name]: span for name, span in spans.items()}
        self.total = torch.empty(0)  # [n, D] gradients are added here
        self.client_weights: Tensor | None = None  # [n, D]; None if all clients have the weights of the module
        _replace_pools(self.module)
        for layer in self.module.modules():
            if any(parameter in self.spans for parameter in layer.parameters(recurse=False)):
                _replace_forward(layer, _with_client_gradients(layer, self))
        self._weights = FlatWeights(self.module, spans)

    def add_gradients(self, total: Tensor, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Add each client's minibatch gradient at ``point`` [D] or [n, D] to ``total`` [n, D]; returns losses [n]."""
        self.total, self.client_weights = total, point if point.dim() == 2 else None
        if self.client_weights is None:
            self._weights.set(point)
        losses = self.loss.of_clients(self.module(self.in_layout(x.flatten(0, 1))), y)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self.total, self.client_weights = torch.empty(0), None
        return losses.detach()

    def in_layout(self, images: Tensor) -> Tensor:
        """Copy images to the layout of the pass, also if they have one channel, for which torch sees no difference."""
        if not self.channels_last or images.dim() != 4:
            return images
        return torch.empty_like(images, memory_format=torch.channels_last).copy_(images)

    def from_channels_last(self, images: Tensor) -> Tensor:
        """Images that are channels last, in the layout of the pass."""
        return images if self.channels_last else images.contiguous()

    def gradients_of(self, parameter: Tensor) -> Tensor:
        """[n, *shape] the part of ``total`` that belongs to a parameter, as a view."""
        return self.total[:, self.spans[parameter]].view(-1, *parameter.shape)

    def weights_of(self, parameter: Tensor) -> Tensor:
        """[n, *shape] each client's value of a parameter; a frozen one is the same for all."""
        if self.client_weights is None or parameter not in self.spans:
            return parameter.expand(len(self.total), *parameter.shape)
        return self.client_weights[:, self.spans[parameter]].view(-1, *parameter.shape)

    def by_client(self, values: Tensor) -> Tensor:
        """[n, samples, features]."""
        return values.reshape(len(self.total), -1, values.shape[-1])


def unsupported(module: nn.Module) -> str | None:
    """The reason why a module does not qualify, or None if it may."""
    for name, layer in module.named_modules():
        if not any(parameter.requires_grad for parameter in layer.parameters(recurse=False)):
            continue
        if type(layer) not in (nn.Linear, nn.Conv2d):
            return f"layer {name!r} is {type(layer).__name__}" if name else f"it is {type(layer).__name__}"
        if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
            return f"layer {name!r} has padding {layer.padding!r} of mode {layer.padding_mode!r}"
        if _has_hooks(layer):
            return f"layer {name!r} has hooks"
    return None


def _replace_pools(module: nn.Module) -> None:
    """Give max-pools a faster backward pass, and move a ReLU just before a max-pool behind it.

    max-pool(ReLU(x)) = ReLU(max-pool(x)), and the gradients agree: both are 0 where no maximum is positive.
    """
    uses = Counter(part for _, part in module.named_modules(remove_duplicate=False))
    plain = {part for part, count in uses.items() if count == 1 and not _has_hooks(part)}
    pools = {part for part in plain if type(part) is nn.MaxPool2d and not part.return_indices}
    after_relu = set()
    for chain in module.modules():
        for relu, pool in itertools.pairwise(chain) if type(chain) is nn.Sequential else ():
            if type(relu) is nn.ReLU and relu in plain and pool in pools:
                _replace_forward(relu, lambda x: x)
                after_relu.add(pool)
    for pool in pools:
        _replace_forward(pool, _pool_forward(pool, relu=pool in after_relu))


def _replace_forward(part: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
    part.forward = forward


def _has_hooks(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def _pool_forward(pool: nn.MaxPool2d, relu: bool) -> Callable[[Tensor], Tensor]:
    tall, wide = (pool.kernel_size,) * 2 if isinstance(pool.kernel_size, int) else pool.kernel_size
    disjoint = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1)) and pool.kernel_size == pool.stride

    def forward(x: Tensor) -> Tensor:
        divides = x.dim() == 4 and x.shape[2] % tall == x.shape[3] % wide == 0
        if disjoint and divides and sparse.queued(x) and torch.is_grad_enabled():
            largest = _MaxPool2d.apply(x, pool.kernel_size)  # type: ignore[no-untyped-call]
        else:
            largest = nn.MaxPool2d.forward(pool, x)
        return functional.relu(largest) if relu else largest

    return forward


def _with_client_gradients(layer: nn.Module, one_pass: OnePass) -> Callable[[Tensor], Tensor]:
    function = _Linear if isinstance(layer, nn.Linear) else Conv2d
    device = next(layer.parameters()).device
    anchor = torch.zeros((), device=device, requires_grad=True)  # autograd skips a layer without such an input

    def forward(x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return type(layer).forward(layer, x)  # type: ignore[no-any-return]
        result: Tensor = function.apply(x, anchor, layer, one_pass)  # type: ignore[no-untyped-call]
        return result

    return forward


class _MaxPool2d(torch.autograd.Function):
    """Max-pooling with disjoint windows: backward writes each gradient to where its maximum was, and sums nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int | tuple[int, int]) -> Tensor:
        largest, where = functional.max_pool2d(x, size, return_indices=True)
        ctx.shape = x.shape
        ctx.save_for_backward(where)
        return largest

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (g,), (where,) = grads, ctx.saved_tensors
        images, channels, tall, wide = ctx.shape
        full = g.new_zeros(images, tall * wide, channels).scatter_(1, pixels(where), pixels(g))
        return full.view(images, tall, wide, channels).permute(0, 3, 1, 2), None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: nn.Linear, one_pass: OnePass) -> Tensor:
        del anchor
        ctx.layer, ctx.one_pass = layer, one_pass
        ctx.save_for_backward(x)
        if one_pass.client_weights is None:
            return functional.linear(x, layer.weight, layer.bias)
        out = one_pass.by_client(x) @ one_pass.weights_of(layer.weight).transpose(1, 2)
        if layer.bias is not None:
            out += one_pass.weights_of(layer.bias)[:, None]
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        (g,), (x,), layer, one_pass = grads, ctx.saved_tensors, ctx.layer, ctx.one_pass
        gs, xs = one_pass.by_client(g), one_pass.by_client(x)
        if layer.weight in one_pass.spans:
            one_pass.gradients_of(layer.weight).baddbmm_(gs.transpose(1, 2), xs)
        if layer.bias is not None and layer.bias in one_pass.spans:
            one_pass.gradients_of(layer.bias).add_(gs.sum(dim=1))
        down = None
        if ctx.needs_input_grad[0]:
            if one_pass.client_weights is None:
                down = g @ layer.weight
            else:
                down = (gs @ one_pass.weights_of(layer.weight)).view_as(x)
        return down, None, None, None
