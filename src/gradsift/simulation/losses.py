"""The loss function of a run: checked once, and evaluated for batches, for single samples and for clients.

Shapes: n clients, b samples each, s samples.
"""

import copy
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradsift.errors import GradsiftError

Loss = Callable[[Any, Tensor], Tensor]  # (outputs, targets) -> the mean over the batch
_CLASSIFIERS = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
_CLASSIFIER_FUNCTIONS = (functional.cross_entropy, functional.nll_loss, functional.multi_margin_loss)


class BatchLoss:
    """A private copy of the user's loss, which is the mean over a batch."""

    def __init__(self, loss: Loss, device: torch.device, dtype: torch.dtype) -> None:
        self.function = loss
        if isinstance(loss, nn.Module):
            self.function = copy.deepcopy(loss).to(device=device, dtype=dtype)
            learned = [name for name, parameter in loss.named_parameters() if parameter.requires_grad]
            if learned:
                raise GradsiftError(f"the loss has trainable parameters ({', '.join(learned)}): put them in the model")
        reduction = getattr(loss, "reduction", "mean")
        if reduction == "sum":
            raise GradsiftError(f"the loss must be the mean over a batch, got reduction={reduction!r}")
        self._can_vmap = True

    def __call__(self, outputs: Any, y: Tensor) -> Tensor:
        """The mean over the batch."""
        return self.function(outputs, y)

    @torch.no_grad()
    def of_samples(self, outputs: Any, y: Tensor) -> Tensor:
        """[s] the loss of each sample."""
        if self._is_cross_entropy(outputs, y):
            return functional.cross_entropy(outputs, y, reduction="none")
        batches_of_one = _map_tensors(outputs, lambda values: values.unsqueeze(1)), y.unsqueeze(1)
        if self._can_vmap:
            try:
                losses: Tensor = torch.func.vmap(self.function)(*batches_of_one)
                return losses
            except Exception:  # a loss that vmap cannot batch, or outputs that are not all tensors
                self._can_vmap = False
        samples = (_map_tensors(batches_of_one, itemgetter(i)) for i in range(len(y)))
        return torch.stack([self.function(*sample) for sample in samples])

    def of_clients(self, outputs: Any, y: Tensor) -> Tensor:
        """[n] the loss of each client, from the outputs [n * b, ...] of all samples and the targets [n, b, ...]."""
        if self._is_cross_entropy(outputs, y.flatten()):
            return functional.cross_entropy(outputs, y.flatten(), reduction="none").view(y.shape).mean(dim=1)
        by_client = _map_tensors(outputs, lambda values: values.reshape(*y.shape[:2], *values.shape[1:]))
        losses: Tensor = torch.func.vmap(self.function, randomness="different")(by_client, y)
        return losses

    def _is_cross_entropy(self, outputs: Any, y: Tensor) -> bool:
        """Whether the loss is the mean of the samples' cross entropies, which torch computes in one call."""
        loss = self.function
        plain = loss is functional.cross_entropy or (
            type(loss) is nn.CrossEntropyLoss
            and loss.weight is None  # class weights would change the mean
            and loss.ignore_index < 0  # labels are not negative, so no sample is ignored
            and loss.label_smoothing == 0
            and loss.reduction == "mean"
        )
        labels = not y.is_floating_point() and y.dim() == 1
        return plain and labels and isinstance(outputs, Tensor) and outputs.dim() == 2

    def check_labels(self, outputs: Any, classes: int | None) -> None:
        """Refuse labels outside the model's outputs before they reach the loss: on CUDA they would end the process."""
        takes_labels = self.function in _CLASSIFIER_FUNCTIONS or isinstance(self.function, _CLASSIFIERS)
        if classes is None or not takes_labels or not isinstance(outputs, Tensor) or outputs.dim() != 2:
            return
        if classes > outputs.shape[1]:
            raise GradsiftError(f"label {classes - 1} is outside the model's {outputs.shape[1]} classes")


def _map_tensors(outputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply ``change`` to a tensor, or to every tensor in a dict, list, tuple or named tuple."""
    if isinstance(outputs, Tensor):
        return change(outputs)
    if isinstance(outputs, dict):
        return {key: _map_tensors(value, change) for key, value in outputs.items()}
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*(_map_tensors(value, change) for value in outputs))
    if isinstance(outputs, list | tuple):
        return type(outputs)(_map_tensors(value, change) for value in outputs)
    return outputs
