"""A plain PyTorch loop over the clients, dense: forward, backward, add up, step. What a simulator can be held to."""

import sys

import torch
from torch.nn.functional import cross_entropy

from benchmarks.peers.meter import Meter
from benchmarks.peers.workload import LR, flat, torch_client, torch_net


def main(clients: int) -> None:
    meter, net = Meter(), torch_net()
    data = [torch_client(number) for number in range(clients)]
    parameters: list[torch.Tensor] = list(net.parameters())
    meter.ready("torch", "numpy", weights=lambda: flat(parameters))
    while True:
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for x, y in data:
            gradients = torch.autograd.grad(cross_entropy(net(x), y), parameters)
            torch._foreach_add_(total, gradients, alpha=1 / clients)
        with torch.no_grad():
            torch._foreach_sub_(parameters, total, alpha=LR)
        meter.tick(lambda: flat(parameters))


if __name__ == "__main__":
    main(int(sys.argv[1]))
