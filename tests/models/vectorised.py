"""Per-client gradients of a model, as the simulator takes them and one by one."""

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

Gradients = dict[str, Tensor]


def assert_vmap_agrees(model: nn.Module, x: Tensor, y: Tensor, atol: float) -> None:
    """x [N, b, ...], y [N, b]: gradients under vmap, at shared and at own weights, are those of a plain backward."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(at: Gradients, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, at, (x,)), y)

    shared = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    own = {name: value + 0.01 * torch.arange(len(x)).view(-1, *[1] * value.dim()) for name, value in weights.items()}
    private = vmap(grad(loss))(own, x, y)
    for client in range(len(x)):
        for at, gradients in ((weights, shared), ({name: value[client] for name, value in own.items()}, private)):
            leaves = {name: value.clone().requires_grad_() for name, value in at.items()}
            loss(leaves, x[client], y[client]).backward()  # type: ignore[no-untyped-call]
            for name, leaf in leaves.items():
                assert leaf.grad is not None
                torch.testing.assert_close(gradients[name][client], leaf.grad, rtol=1e-4, atol=atol)
