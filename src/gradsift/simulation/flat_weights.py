"""The trainable parameters of a module as one flat vector."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class FlatWeights:
    """Makes the trainable parameters of a module views of one vector, so that one copy sets them all."""

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
        if self._parameters[0][0].data_ptr() != self._flat.data_ptr():  # after a deepcopy, which unties the views
            self._gather()
        self._flat.copy_(weights)
