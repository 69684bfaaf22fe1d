"""FedLab: its standalone pipeline with the serial FedAvg trainer; with its own top-k compressor."""

import sys
import types
from typing import Any

# Only FedLab's collection of data sets uses torchvision; the one it installs may not fit the torch that is here.
for name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["torchvision"].__dict__.update(
    transforms=sys.modules["torchvision.transforms"], datasets=sys.modules["torchvision.datasets"]
)

import torch  # noqa: E402
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # noqa: E402
from fedlab.contrib.compressor.topk import TopkCompressor  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402
from fedlab.utils import Aggregators, SerializationTool  # noqa: E402

from benchmarks.peers.meter import Meter  # noqa: E402
from benchmarks.peers.workload import BATCH, DIM, LR, TOP_K, flat, torch_client, torch_net  # noqa: E402

COMPRESSOR = TopkCompressor((TOP_K - 0.5) / DIM)  # it rounds up


class Data:
    """A ready minibatch a client: spares FedLab a DataLoader that would pick sample by sample."""

    def __init__(self, clients: int) -> None:
        self.batches = [torch_client(number) for number in range(clients)]

    def get_dataloader(self, number: int, batch_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        del batch_size
        return [self.batches[number]]


class TopKTrainer(FedAvgSerialClientTrainer):
    def train(self, model_parameters: torch.Tensor, train_loader: Any) -> list[torch.Tensor]:
        (trained,) = super().train(model_parameters, train_loader)
        return list(COMPRESSOR.compress(trained - model_parameters))


class TopKHandler(FedAvgServerHandler):
    def global_update(self, buffer: list[list[torch.Tensor]]) -> None:
        changes = [COMPRESSOR.decompress(values, indices, (DIM,)) for values, indices in buffer]
        after = self.model_parameters + Aggregators.fedavg_aggregate(changes)
        SerializationTool.deserialize_model(self._model, after)


class Pipeline(StandalonePipeline):
    meter: Meter

    def evaluate(self) -> None:
        self.meter.tick(lambda: flat(self.handler.model.parameters()))


def main(clients: int, top_k: bool) -> None:
    meter, net = Meter(), torch_net()
    handler = (TopKHandler if top_k else FedAvgServerHandler)(net, global_round=10**9, sample_ratio=1.0)
    trainer = (TopKTrainer if top_k else FedAvgSerialClientTrainer)(net, clients)
    trainer.setup_dataset(Data(clients))
    trainer.setup_optim(epochs=1, batch_size=BATCH, lr=LR)
    pipeline = Pipeline(handler, trainer)
    pipeline.meter = meter
    meter.ready("fedlab", "torch", "numpy", weights=lambda: flat(net.parameters()))
    pipeline.main()


if __name__ == "__main__":
    main(int(sys.argv[1]), "top-k" in sys.argv)
