"""Federated data: the container, readers for files and named data sets, and partitions among clients."""

from gradsift.data.cifar10 import cifar10, import_cifar10
from gradsift.data.describe import Description, describe
from gradsift.data.digits import digits
from gradsift.data.federated import FederatedData
from gradsift.data.femnist import femnist
from gradsift.data.leaf import import_leaf
from gradsift.data.load import load, sources
from gradsift.data.npz import load_npz, save_npz
from gradsift.data.partition import dirichlet, holdout, iid, natural, one_class

__all__ = [
    "Description",
    "FederatedData",
    "cifar10",
    "describe",
    "digits",
    "dirichlet",
    "femnist",
    "holdout",
    "iid",
    "import_cifar10",
    "import_leaf",
    "load",
    "load_npz",
    "natural",
    "one_class",
    "save_npz",
    "sources",
]
