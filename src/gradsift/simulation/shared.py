"""Gradients of many clients for about the price of one plain pass over all their samples.

Clients with equal weights differ in their samples only, so forward and backward through the activations are one
ordinary batch of n * b samples; only the gradients of the weights are taken client by client, as batched products, and
added straight to the rows of a total [n, D]. Clients with weights of their own (inside a FedAvg period) go through
together as well, their layers as batched products and grouped convolutions. That covers models whose trainable weights
all belong to ``nn.Linear`` and ``nn.Conv2d`` and whose samples do not meet in the forward pass (no BatchNorm); the
caller compares one batch with the general way before it trusts this one.

Images go through channels last, which convolutions and pooling are quickest in, and a ReLU before a max-pool goes
after it, where there is less to do and the result is the same.

Shapes: n clients, b samples each, activations [n * b, ...] with a client's samples next to each other.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradsift import sparse

# Inputs times kernel elements up to which unfolded products beat convolutions: of a client after the other, and, where
# work is queued, of one group a client.
UNFOLD_LIMIT, QUEUED_UNFOLD_LIMIT = 32, 80


class Sink:
    """Where the layers of one backward pass put each client's gradient, and find its weights."""

    def __init__(self, spans: Mapping[Tensor, slice], channels_last: bool) -> None:
        self.spans = spans
        self.total: Tensor = torch.empty(0)  # [n, D]
        self.own: Tensor | None = None  # [n, D] each client's weights; None: those of the module
        self.channels_last = channels_last  # whether images go through in that order

    def forget(self) -> None:
        """Let go of the tensors of the pass that has ended."""
        self.total, self.own = torch.empty(0), None

    def images(self, values: Tensor) -> Tensor:
        """[n, C, H, W] in memory as [n, H, W, C], also where one channel leaves torch the choice."""
        if not self.channels_last or values.dim() != 4:
            return values
        return torch.empty_like(values, memory_format=torch.channels_last).copy_(values)

    def ordered(self, images: Tensor) -> Tensor:
        """Images that are channels last, in the order of this pass."""
        return images if self.channels_last else images.contiguous()

    def rows(self, parameter: Tensor) -> Tensor:
        """[n, *shape] the total's view of one parameter."""
        return self.total[:, self.spans[parameter]].view(-1, *parameter.shape)

    def each(self, parameter: Tensor) -> Tensor:
        """[n, *shape] each client's own value of a parameter; a frozen one is the same for all."""
        if self.own is None or parameter not in self.spans:
            return parameter.expand(len(self.total), *parameter.shape)
        return self.own[:, self.spans[parameter]].view(-1, *parameter.shape)


def unsupported(module: nn.Module) -> str | None:
    """Why a module cannot go this way; None if it may."""
    for name, part in module.named_modules():
        if not any(parameter.requires_grad for parameter in part.parameters(recurse=False)):
            continue
        if type(part) not in (nn.Linear, nn.Conv2d):
            return f"{name or 'it'} is {type(part).__name__}"
        if isinstance(part, nn.Conv2d) and (part.padding_mode != "zeros" or isinstance(part.padding, str)):
            return f"{name} pads by {part.padding_mode!r}, {part.padding!r}"
        if _hooked(part):
            return f"{name} has hooks"
    return None


def attach(module: nn.Module, sink: Sink) -> None:
    """Make the layers of ``module`` put their clients' gradients into ``sink`` when backward passes them."""
    _rewire_pools(module)
    for part in module.modules():
        if any(parameter in sink.spans for parameter in part.parameters(recurse=False)):
            _replace_forward(part, _tapped(part, sink))


def _rewire_pools(module: nn.Module) -> None:
    """Pools with a quicker backward; a ReLU just before one goes after it.

    max-pool(ReLU(x)) is ReLU(max-pool(x)), gradients included: where no maximum is positive, neither has any.
    """
    uses: dict[nn.Module, int] = {}
    for _, part in module.named_modules(remove_duplicate=False):
        uses[part] = uses.get(part, 0) + 1
    plain = {part for part, count in uses.items() if count == 1 and not _hooked(part)}
    pools = {part for part in plain if type(part) is nn.MaxPool2d and not part.return_indices}
    after_relu = set()
    for chain in module.modules():
        for relu, pool in itertools.pairwise(chain) if type(chain) is nn.Sequential else ():
            if type(relu) is nn.ReLU and relu in plain and pool in pools:
                _replace_forward(relu, lambda x: x)
                after_relu.add(pool)
    for pool in pools:
        _replace_forward(pool, _pooled(pool, relu=pool in after_relu))


def _replace_forward(part: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
    part.forward = forward


def _hooked(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def _pooled(pool: nn.MaxPool2d, relu: bool) -> Callable[[Tensor], Tensor]:
    tall, wide = (pool.kernel_size,) * 2 if isinstance(pool.kernel_size, int) else pool.kernel_size
    apart = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1)) and pool.kernel_size == pool.stride

    def forward(x: Tensor) -> Tensor:
        even = x.dim() == 4 and x.shape[2] % tall == x.shape[3] % wide == 0
        if apart and even and sparse.queued(x) and torch.is_grad_enabled():
            largest = _MaxPool2d.apply(x, pool.kernel_size)  # type: ignore[no-untyped-call]
        else:
            largest = nn.MaxPool2d.forward(pool, x)
        return functional.relu(largest) if relu else largest

    return forward


def _tapped(part: nn.Module, sink: Sink) -> Callable[[Tensor], Tensor]:
    function = _Linear if isinstance(part, nn.Linear) else _Conv2d
    device = next(part.parameters()).device
    anchor = torch.zeros((), device=device, requires_grad=True)  # so that backward comes here in any case

    def forward(x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return type(part).forward(part, x)  # type: ignore[no-any-return]
        result: Tensor = function.apply(x, anchor, part, sink)  # type: ignore[no-untyped-call]
        return result

    return forward


class _MaxPool2d(torch.autograd.Function):
    """Windows that do not overlap: backward puts each gradient where its maximum was, and adds nothing up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int | tuple[int, int]) -> Tensor:
        largest, where = functional.max_pool2d(x, size, return_indices=True)
        ctx.shape = x.shape
        ctx.save_for_backward(where)
        return largest

    @staticmethod
    def backward(ctx: Any, *up: Tensor) -> tuple[Tensor, None]:
        (g,), (where,) = up, ctx.saved_tensors
        images, channels, tall, wide = ctx.shape
        full = g.new_zeros(images, tall * wide, channels).scatter_(1, _pixels(where), _pixels(g))
        return full.view(images, tall, wide, channels).permute(0, 3, 1, 2), None


def _pixels(images: Tensor) -> Tensor:
    """[n, C, H, W] as [n, H W, C], without a copy if it is channels last."""
    return images.permute(0, 2, 3, 1).flatten(1, 2)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, part: nn.Linear, sink: Sink) -> Tensor:
        del anchor
        ctx.part, ctx.sink = part, sink
        ctx.save_for_backward(x)
        if sink.own is None:
            return functional.linear(x, part.weight, part.bias)
        out = _by_client(x, sink) @ sink.each(part.weight).transpose(1, 2)
        if part.bias is not None:
            out += sink.each(part.bias)[:, None]
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *up: Tensor) -> tuple[Tensor | None, None, None, None]:
        (g,), (x,), part, sink = up, ctx.saved_tensors, ctx.part, ctx.sink
        gs, xs = _by_client(g, sink), _by_client(x, sink)
        if part.weight in sink.spans:
            sink.rows(part.weight).baddbmm_(gs.transpose(1, 2), xs)
        if part.bias is not None and part.bias in sink.spans:
            sink.rows(part.bias).add_(gs.sum(dim=1))
        down = None
        if ctx.needs_input_grad[0]:
            down = g @ part.weight if sink.own is None else (gs @ sink.each(part.weight)).view_as(x)
        return down, None, None, None


def _by_client(values: Tensor, sink: Sink) -> Tensor:
    """[n, all its samples, features]."""
    return values.reshape(len(sink.total), -1, values.shape[-1])


class _Conv2d(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, part: nn.Conv2d, sink: Sink) -> Tensor:
        del anchor
        ctx.part, ctx.sink = part, sink
        ctx.save_for_backward(x)
        if sink.own is not None:
            return _own_convolution(x, part, sink)
        return _convolution(x, sink.images(part.weight), part.bias, part, part.groups)

    @staticmethod
    def backward(ctx: Any, *up: Tensor) -> tuple[Tensor | None, None, None, None]:
        (g,), (x,), part, sink = up, ctx.saved_tensors, ctx.part, ctx.sink
        clients = len(sink.total)
        if part.weight in sink.spans:
            _add_conv_weight(sink.rows(part.weight), g, x, part)
        if part.bias is not None and part.bias in sink.spans:
            sink.rows(part.bias).add_(_pixels(g).reshape(clients, -1, g.shape[1]).sum(dim=1))
        down = None
        if ctx.needs_input_grad[0]:
            down = _input_gradient(g, x, part, sink) if sink.own is None else _own_input_gradient(g, x, part, sink)
        return down, None, None, None


def _own_convolution(x: Tensor, part: nn.Conv2d, sink: Sink) -> Tensor:
    """Each client's samples by its own weights."""
    weights = sink.each(part.weight)
    bias = None if part.bias is None else sink.each(part.bias)
    clients, each = len(weights), len(x) // len(weights)
    if not sparse.queued(x):
        parts = enumerate(_slices(clients, each))
        own_bias = [None] * clients if bias is None else bias
        return torch.cat([_convolution(x[own], weights[i], own_bias[i], part, part.groups) for i, own in parts])
    if _unfolds(x, part):
        # A few inputs and many clients: as groups of a convolution they would be slow.
        windows = _windows(x, part).view(clients, -1, weights[0, 0].numel())
        out = windows @ weights.flatten(2).transpose(1, 2)  # [n, b L, out]
        if bias is not None:
            out += bias[:, None]
        tall, wide = _sides(x, part)
        return sink.ordered(out.view(len(x), tall, wide, -1).permute(0, 3, 1, 2))
    if _simple(part):
        return sink.ordered(_by_rows(x, weights, bias, part.padding))
    flat = None if bias is None else bias.flatten()
    out = _convolution(_grouped(x, clients), weights.flatten(0, 1), flat, part, clients * part.groups)
    return _ungrouped(out, clients, sink)


def _by_rows(x: Tensor, weights: Tensor, bias: Tensor | None, padding: Any) -> Tensor:
    """Each client's samples by its own ``weights`` [n, out, in, h, w] at unit stride, as h batched products.

    As groups of one convolution every client would be a kernel of its own. Windows are unfolded along the width only,
    which takes a part in h of the memory of whole ones; rows of pixels come before samples, so that the windows that
    one row of weights looks at are next to each other for all samples of a client.
    """
    clients, outputs, inputs, high, wide = weights.shape
    up, left = padding
    padded = functional.pad(x.permute(0, 2, 3, 1), (0, 0, left, left, up, up)).contiguous()
    padded = padded.view(clients, -1, *padded.shape[1:])  # [n, b, rows, columns, in]
    _, each, rows, columns, _ = padded.shape
    columns -= wide - 1
    client, sample, row, column, _ = padded.stride()
    windows = padded.as_strided(
        (clients, rows, each, columns, wide * inputs), (client, row, sample, column, 1), padded.storage_offset()
    ).reshape(clients, rows, each * columns, -1)
    taps = weights.permute(0, 3, 4, 2, 1).reshape(clients, high, wide * inputs, outputs)
    kept = rows - high + 1
    with _precision_of_convolutions():
        out = windows[:, :kept].flatten(1, 2) @ taps[:, 0]  # [n, rows b columns, out]
        for i in range(1, high):
            out.baddbmm_(windows[:, i : i + kept].flatten(1, 2), taps[:, i])
    if bias is not None:
        out += bias[:, None]
    return out.view(clients, kept, each, columns, -1).transpose(1, 2).flatten(0, 1).permute(0, 3, 1, 2)


@contextmanager
def _precision_of_convolutions() -> Iterator[None]:
    """Products that stand for a convolution are as exact as cuDNN's would be: TF32, unless that is switched off."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    if before == "tf32" or torch.backends.cudnn.conv.fp32_precision != "tf32":  # type: ignore[attr-defined]
        yield
        return
    matmul.allow_tf32 = True  # of torch's two switches this one sets both; the other alone would leave them at odds
    try:
        yield
    finally:
        matmul.allow_tf32 = False
        matmul.fp32_precision = before


def _simple(part: nn.Conv2d) -> bool:
    """Whether the gradient of a convolution's input is a convolution of the same kind, with its weights turned."""
    assert not isinstance(part.padding, str)
    within = all(pad < size for size, pad in zip(part.kernel_size, part.padding, strict=True))
    return part.stride == part.dilation == (1, 1) and part.groups == 1 and within


def _turned(weights: Tensor) -> Tensor:
    """[..., in, out, h, w] the weights of that convolution."""
    return weights.flip(-2, -1).transpose(-4, -3)


def _turned_padding(part: nn.Conv2d) -> tuple[int, int]:
    assert not isinstance(part.padding, str)
    up, left = (size - 1 - pad for size, pad in zip(part.kernel_size, part.padding, strict=True))
    return up, left


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, part: nn.Conv2d, groups: int) -> Tensor:
    """``part`` with other weights."""
    return functional.conv2d(x, weight, bias, part.stride, part.padding, part.dilation, groups)


def _own_input_gradient(g: Tensor, x: Tensor, part: nn.Conv2d, sink: Sink) -> Tensor:
    weights = sink.each(part.weight)
    clients, each = len(weights), len(x) // len(weights)
    only_input = (True, False, False)
    if not sparse.queued(x):
        parts = enumerate(_slices(clients, each))
        return torch.cat(
            [_conv_backward(g[own], x[own], weights[i], part, part.groups, only_input)[0] for i, own in parts]
        )
    if _simple(part):
        return sink.ordered(_by_rows(g, _turned(weights), None, _turned_padding(part)))
    gs, xs = _grouped(g, clients), _grouped(x, clients)
    down = _conv_backward(gs, xs, weights.flatten(0, 1), part, clients * part.groups, only_input)[0]
    return _ungrouped(down, clients, sink)


def _grouped(images: Tensor, clients: int) -> Tensor:
    """[n b, C, ...] as [b, n C, ...]: the clients are groups of one convolution."""
    return images.reshape(clients, -1, *images.shape[1:]).transpose(0, 1).flatten(1, 2)


def _ungrouped(images: Tensor, clients: int, sink: Sink) -> Tensor:
    """[b, n C, ...] as [n b, C, ...]."""
    apart = images.view(len(images), clients, -1, *images.shape[2:]).transpose(0, 1)  # [n, b, C, ...]
    if not sink.channels_last:
        return apart.flatten(0, 1)
    return apart.permute(0, 1, 3, 4, 2).flatten(0, 1).permute(0, 3, 1, 2)


def _sides(x: Tensor, part: nn.Conv2d) -> tuple[int, int]:
    """The height and width that a convolution gives."""
    assert not isinstance(part.padding, str)
    tall, wide = (
        (side + 2 * pad - size) // stride + 1
        for side, pad, size, stride in zip(x.shape[2:], part.padding, part.kernel_size, part.stride, strict=True)
    )
    return tall, wide


def _unfolds(x: Tensor, part: nn.Conv2d) -> bool:
    limit = QUEUED_UNFOLD_LIMIT if sparse.queued(x) else UNFOLD_LIMIT
    return part.groups == 1 and part.dilation == (1, 1) and part.weight[0].numel() <= limit


def _add_conv_weight(rows: Tensor, g: Tensor, x: Tensor, part: nn.Conv2d) -> None:
    """Add each client's gradient of a convolution's weight to ``rows`` [n, out, in / groups, h, w]."""
    clients, each = len(rows), len(g) // len(rows)
    if _unfolds(x, part):
        products = torch.bmm(_pixels(g).transpose(1, 2), _windows(x, part))  # [n b, out, taps]
        rows.add_(products.view(clients, each, *rows.shape[1:]).sum(dim=1))
    elif sparse.queued(g):
        gs, xs = _grouped(g, clients), _grouped(x, clients)
        weight = part.weight.expand(clients, *part.weight.shape).flatten(0, 1)
        rows.add_(_conv_backward(gs, xs, weight, part, clients * part.groups, (False, True, False))[1].view_as(rows))
    else:
        for row, own in zip(rows, _slices(clients, each), strict=True):
            row.add_(_conv_backward(g[own], x[own], part.weight, part, part.groups, (False, True, False))[1])


def _input_gradient(g: Tensor, x: Tensor, part: nn.Conv2d, sink: Sink) -> Tensor:
    """The gradient of a convolution's input."""
    if sparse.queued(g) and _simple(part):  # cuDNN has much quicker kernels for it that way
        return functional.conv2d(g, sink.images(_turned(part.weight)), padding=_turned_padding(part))
    return _conv_backward(g, x, sink.images(part.weight), part, part.groups, (True, False, False))[0]


def _windows(x: Tensor, part: nn.Conv2d) -> Tensor:
    """[n b, L, taps] what each output of a convolution looked at; ``functional.unfold`` is slow on CUDA."""
    assert not isinstance(part.padding, str)
    up, left = part.padding
    tall, wide = part.kernel_size
    padded = functional.pad(x, (left, left, up, up))
    views = padded.unfold(2, tall, part.stride[0]).unfold(3, wide, part.stride[1])  # [n b, in, rows, columns, h, w]
    return views.permute(0, 2, 3, 1, 4, 5).reshape(len(x), -1, x.shape[1] * tall * wide)


def _slices(clients: int, each: int) -> Iterator[slice]:
    return (slice(i * each, (i + 1) * each) for i in range(clients))


def _conv_backward(
    g: Tensor, x: Tensor, weight: Tensor, part: nn.Conv2d, groups: int, which: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        g, x, weight, None, part.stride, part.padding, part.dilation, False, [0, 0], groups, list(which)
    )
    return result
