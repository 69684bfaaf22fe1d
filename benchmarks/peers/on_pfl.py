"""Apple's pfl: FederatedAveraging on its SimulatedBackend, in one process; with top-k as its tutorial does it."""

import sys
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.postprocessor.base import Postprocessor
from torch.nn.functional import cross_entropy

from benchmarks.peers.meter import Meter
from benchmarks.peers.workload import BATCH, LR, TOP_K, flat, torch_client, torch_net


class Net(torch.nn.Module):
    """The network as pfl wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch_net()

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.layers(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        del x, y
        return {}


class TopK(Postprocessor):
    """Each client keeps its largest elements; no residual."""

    def postprocess_one_user(self, *, stats: Any, user_context: Any) -> tuple[Any, Metrics]:
        del user_context
        names = list(stats.keys())
        whole = torch.cat([stats[name].reshape(-1) for name in names])
        places = whole.abs().topk(TOP_K, sorted=False).indices
        kept = torch.zeros_like(whole)
        kept[places] = whole[places]
        for name, part in zip(names, kept.split([stats[name].numel() for name in names]), strict=True):
            stats[name] = part.view_as(stats[name])
        return stats, Metrics()


class Ticks(TrainingProcessCallback):
    def __init__(self, meter: Meter, parameters: list[torch.nn.Parameter]) -> None:
        self.meter, self.parameters = meter, parameters

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, **where: Any) -> tuple[bool, Metrics]:
        del aggregate_metrics, model, where
        self.meter.tick(lambda: flat(self.parameters))
        return False, Metrics()


def main(clients: int, top_k: bool) -> None:
    meter, net = Meter(), Net()
    parameters = list(net.parameters())
    users = {str(number): PyTorchTensorDataset(torch_client(number)) for number in range(clients)}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    meter.ready("pfl", "torch", "numpy", weights=lambda: flat(parameters))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(10**9, 10**9, clients, 0),  # no evaluation after the first round
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[TopK()] if top_k else []),
        model=PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(parameters, lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=None, local_num_steps=1, local_learning_rate=LR, local_batch_size=BATCH
        ),
        callbacks=[Ticks(meter, parameters)],
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), "top-k" in sys.argv)
