"""Federated training on Flower: a strategy for the server and a mod for the clients.

    app = ClientApp(mods=[SparseMod()])                       # the train function stays as it is
    strategy = SparseStrategy(model, fraction_train=0.5)      # in the place of FedAvg

Needs the extra ``flower``. docs/flower.md has the rest.
"""

try:
    import flwr  # noqa: F401
except ImportError as problem:
    raise ImportError("gradsift.flower needs Flower: pip install '.[flower]' in a checkout of gradsift") from problem

from gradsift.flower.gradient_app import GradientTask, gradient_app
from gradsift.flower.mod import Probe, SparseMod
from gradsift.flower.strategy import SparseStrategy

__all__ = ["GradientTask", "Probe", "SparseMod", "SparseStrategy", "gradient_app"]
