"""Federated training on Flower: a strategy for the server and a mod for the clients.

    app = ClientApp(mods=[SparseMod()])                       # the train function stays as it is
    strategy = SparseStrategy(model, fraction_train=0.5)      # in the place of FedAvg

Needs the extra ``flower``. See docs/flower.md.
"""

from gradsift.errors import install

try:
    import flwr  # noqa: F401
except ImportError as problem:
    raise ImportError(f"gradsift.flower needs Flower: {install('flower')}") from problem

from gradsift.flower.gradient_app import GradientTask, gradient_app
from gradsift.flower.mod import Probe, SparseMod
from gradsift.flower.strategy import SparseStrategy

__all__ = ["GradientTask", "Probe", "SparseMod", "SparseStrategy", "gradient_app"]
