"""Convolutions for ``OnePass``: a weight gradient for every client, and weights of its own if clients differ.

On the CPU the clients' convolutions run one after another. On CUDA they are one operation: batched products where the
weights allow it, grouped convolutions elsewhere.

Shapes: n clients, b samples each; images [n * b, C, H, W] with the samples of a client next to each other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradsift import sparse

if TYPE_CHECKING:
    from gradsift.simulation.one_pass import OnePass

# Input channels times kernel elements up to which products of unfolded images beat convolutions: one convolution per
# client on the CPU, one group per client on CUDA.
UNFOLD_LIMIT, QUEUED_UNFOLD_LIMIT = 32, 80
INPUT, WEIGHT = 0, 1  # the gradients that a convolution's backward pass can compute


class Conv2d(torch.autograd.Function):
    """A convolution whose backward pass adds each client's weight gradient to the total of the pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: nn.Conv2d, one_pass: "OnePass") -> Tensor:
        """The layer's outputs, from each client's own weights if the pass has them."""
        del anchor
        ctx.layer, ctx.one_pass = layer, one_pass
        ctx.save_for_backward(x)
        if one_pass.client_weights is not None:
            return _client_convolutions(x, layer, one_pass)
        return _convolution(x, one_pass.in_layout(layer.weight), layer.bias, layer, layer.groups)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        """Adds the gradients of weight and bias to the total, and returns that of the input."""
        (g,), (x,), layer, one_pass = grads, ctx.saved_tensors, ctx.layer, ctx.one_pass
        if layer.weight in one_pass.spans:
            _add_weight_gradients(one_pass.gradients_of(layer.weight), g, x, layer)
        if layer.bias is not None and layer.bias in one_pass.spans:
            by_client = pixels(g).reshape(len(one_pass.total), -1, g.shape[1])
            one_pass.gradients_of(layer.bias).add_(by_client.sum(dim=1))
        return _input_gradient(g, x, layer, one_pass) if ctx.needs_input_grad[0] else None, None, None, None


def pixels(images: Tensor) -> Tensor:
    """[n, C, H, W] as [n, H W, C], without a copy if the images are channels last."""
    return images.permute(0, 2, 3, 1).flatten(1, 2)


def _client_convolutions(x: Tensor, layer: nn.Conv2d, one_pass: "OnePass") -> Tensor:
    """Convolve each client's samples with its own weights."""
    weights = one_pass.weights_of(layer.weight)
    bias = None if layer.bias is None else one_pass.weights_of(layer.bias)
    clients = len(weights)
    if not sparse.queued(x):
        samples = zip(x.chunk(clients), weights, [None] * clients if bias is None else bias, strict=True)
        return torch.cat([_convolution(*client, layer, layer.groups) for client in samples])
    if _unfolds(x, layer):
        # Few input channels and many clients: a grouped convolution would be slow.
        windows = _windows(x, layer)
        out = windows.view(clients, -1, windows.shape[-1]) @ weights.flatten(2).transpose(1, 2)  # [n, b H W, out]
        if bias is not None:
            out += bias[:, None]
        return one_pass.from_channels_last(out.view(*windows.shape[:3], -1).permute(0, 3, 1, 2))
    if _has_flipped_form(layer):
        return one_pass.from_channels_last(conv_by_rows(x, weights, bias, _padding(layer)))
    flat_bias = None if bias is None else bias.flatten()
    out = _convolution(_grouped(x, clients), weights.flatten(0, 1), flat_bias, layer, clients * layer.groups)
    return _ungrouped(out, clients, one_pass)


def conv_by_rows(x: Tensor, weights: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    """Convolve each client's samples with its ``weights`` [n, out, in, h, w] at unit stride, as h batched products.

    In a grouped convolution every client would be a kernel of its own. Images are unfolded along the width only, which
    takes 1/h of the memory of complete windows. Rows of pixels come before samples, so that the windows under one row
    of a kernel are next to each other for all samples of a client.
    """
    clients, outputs, inputs, high, wide = weights.shape
    up, left = padding
    padded = functional.pad(x.permute(0, 2, 3, 1), (0, 0, left, left, up, up)).contiguous()
    padded = padded.view(clients, -1, *padded.shape[1:])  # [n, b, rows, columns, in]
    _, samples, rows, columns, _ = padded.shape
    columns -= wide - 1
    client, sample, row, column, _ = padded.stride()
    windows = padded.as_strided(
        (clients, rows, samples, columns, wide * inputs), (client, row, sample, column, 1), padded.storage_offset()
    ).reshape(clients, rows, samples * columns, -1)
    taps = weights.permute(0, 3, 4, 2, 1).reshape(clients, high, wide * inputs, outputs)
    out_rows = rows - high + 1
    with conv_precision():
        out = windows[:, :out_rows].flatten(1, 2) @ taps[:, 0]  # [n, rows b columns, out]
        for i in range(1, high):
            out.baddbmm_(windows[:, i : i + out_rows].flatten(1, 2), taps[:, i])
    if bias is not None:
        out += bias[:, None]
    return out.view(clients, out_rows, samples, columns, -1).transpose(1, 2).flatten(0, 1).permute(0, 3, 1, 2)


@contextmanager
def conv_precision() -> Iterator[None]:
    """Compute matrix products as precisely as cuDNN computes convolutions: in TF32, unless that is switched off."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    if before == "tf32" or torch.backends.cudnn.conv.fp32_precision != "tf32":  # type: ignore[attr-defined]
        yield
        return
    matmul.allow_tf32 = True  # sets both of torch's switches; fp32_precision alone would leave them at odds
    try:
        yield
    finally:
        matmul.allow_tf32 = False
        matmul.fp32_precision = before


def _input_gradient(g: Tensor, x: Tensor, layer: nn.Conv2d, one_pass: "OnePass") -> Tensor:
    queued = sparse.queued(g)
    if one_pass.client_weights is None:
        if queued and _has_flipped_form(layer):  # cuDNN's forward kernels are much faster here than its backward ones
            return functional.conv2d(g, one_pass.in_layout(flipped(layer.weight)), padding=flipped_padding(layer))
        return _conv_backward(INPUT, g, x, one_pass.in_layout(layer.weight), layer, layer.groups)
    weights = one_pass.weights_of(layer.weight)
    clients = len(weights)
    if not queued:
        samples = zip(g.chunk(clients), x.chunk(clients), weights, strict=True)
        return torch.cat([_conv_backward(INPUT, *client, layer, layer.groups) for client in samples])
    if _has_flipped_form(layer):
        return one_pass.from_channels_last(conv_by_rows(g, flipped(weights), None, flipped_padding(layer)))
    gs, xs = _grouped(g, clients), _grouped(x, clients)
    return _ungrouped(
        _conv_backward(INPUT, gs, xs, weights.flatten(0, 1), layer, clients * layer.groups), clients, one_pass
    )


def _add_weight_gradients(total: Tensor, g: Tensor, x: Tensor, layer: nn.Conv2d) -> None:
    """Add each client's gradient of the layer's weight to ``total`` [n, out, in / groups, h, w]."""
    clients = len(total)
    if _unfolds(x, layer):
        products = torch.bmm(pixels(g).transpose(1, 2), _windows(x, layer).flatten(1, 2))  # [n b, out, taps]
        total.add_(products.view(clients, -1, *total.shape[1:]).sum(dim=1))
    elif sparse.queued(g):
        gs, xs = _grouped(g, clients), _grouped(x, clients)
        weight = layer.weight.expand(clients, *layer.weight.shape).flatten(0, 1)
        total.add_(_conv_backward(WEIGHT, gs, xs, weight, layer, clients * layer.groups).view_as(total))
    else:
        for row, own_g, own_x in zip(total, g.chunk(clients), x.chunk(clients), strict=True):
            row.add_(_conv_backward(WEIGHT, own_g, own_x, layer.weight, layer, layer.groups))


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Conv2d, groups: int) -> Tensor:
    """``layer`` with other weights."""
    return functional.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, groups)


def _conv_backward(which: int, g: Tensor, x: Tensor, weight: Tensor, layer: nn.Conv2d, groups: int) -> Tensor:
    """One gradient of a convolution: that of its INPUT or its WEIGHT."""
    mask = [which == INPUT, which == WEIGHT, False]
    geometry = (layer.stride, layer.padding, layer.dilation)
    gradients = torch.ops.aten.convolution_backward(g, x, weight, None, *geometry, False, [0, 0], groups, mask)
    return cast("Tensor", gradients[which])


def _has_flipped_form(layer: nn.Conv2d) -> bool:
    """Whether the gradient of the layer's input is again a convolution at unit stride, with flipped kernels."""
    fits = all(pad < size for size, pad in zip(layer.kernel_size, _padding(layer), strict=True))
    return layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and fits


def flipped(weights: Tensor) -> Tensor:
    """[..., in, out, h, w] the weights of the convolution that gives the input's gradient."""
    return weights.flip(-2, -1).transpose(-4, -3)


def flipped_padding(layer: nn.Conv2d) -> tuple[int, int]:
    """The padding of the convolution that gives the input's gradient."""
    up, left = (size - 1 - pad for size, pad in zip(layer.kernel_size, _padding(layer), strict=True))
    return up, left


def _padding(layer: nn.Conv2d) -> tuple[int, int]:
    return cast("tuple[int, int]", layer.padding)  # ``one_pass.unsupported`` refuses padding given by name


def _grouped(images: Tensor, clients: int) -> Tensor:
    """[n b, C, ...] as [b, n C, ...]: the clients are groups of one convolution."""
    return images.reshape(clients, -1, *images.shape[1:]).transpose(0, 1).flatten(1, 2)


def _ungrouped(images: Tensor, clients: int, one_pass: "OnePass") -> Tensor:
    """[b, n C, ...] as [n b, C, ...]."""
    by_client = images.view(len(images), clients, -1, *images.shape[2:]).transpose(0, 1)  # [n, b, C, ...]
    if not one_pass.channels_last:
        return by_client.flatten(0, 1)
    return by_client.permute(0, 1, 3, 4, 2).flatten(0, 1).permute(0, 3, 1, 2)


def _unfolds(x: Tensor, layer: nn.Conv2d) -> bool:
    """Whether the layer's windows are small enough to unfold."""
    limit = QUEUED_UNFOLD_LIMIT if sparse.queued(x) else UNFOLD_LIMIT
    return layer.groups == 1 and layer.dilation == (1, 1) and layer.weight[0].numel() <= limit


def _windows(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """[n b, H, W, taps] the window under each output of a convolution; ``functional.unfold`` is slow on CUDA."""
    up, left = _padding(layer)
    tall, wide = layer.kernel_size
    padded = functional.pad(x, (left, left, up, up))
    views = padded.unfold(2, tall, layer.stride[0]).unfold(3, wide, layer.stride[1])  # [n b, in, H, W, h, w]
    return views.permute(0, 2, 3, 1, 4, 5).flatten(3)
