"""``FederatedData``, the container of training and test samples that all readers return and all drivers take.

Shapes: n training samples of N clients, grouped by client; client i owns the rows start[i] to start[i] + size[i].
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gradsift import check, check_tensors
from gradsift.data.convert import client_ids, split_mask, tensor
from gradsift.data.datasets import Samples, read
from gradsift.errors import GradsiftError

NO_CLIENT = -1  # the client id of a test row that belongs to no client

Partition = Callable[[NDArray[np.generic]], ArrayLike]  # labels -> client ids


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Training samples grouped by client, and a test split that is shared by all clients."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n] class labels (int64), or [n, ...] targets of any kind
    size: NDArray[np.int64]  # [N] samples of each client
    test_x: Tensor  # [t, ...]; t may be 0
    test_y: Tensor
    name: str = "data"
    client_names: tuple[str, ...] = field(default=(), repr=False)
    num_classes: int | None = None  # by default the largest label plus one

    def __post_init__(self) -> None:
        """Refuse data that cannot be trained on."""
        size = np.asarray(self.size)
        if size.ndim != 1 or (size.dtype.kind not in "iu" and len(size)):
            raise GradsiftError(f"size must be one integer for each client, got {self.size!r}")
        object.__setattr__(self, "size", size.astype(np.int64))
        if len(self.size) == 0:
            raise GradsiftError(f"{self.name!r} has no clients")
        if self.client_names and len(self.client_names) != len(self.size):
            raise GradsiftError(f"{len(self.client_names)} client names for {len(self.size)} clients")
        empty = np.flatnonzero(self.size < 1)
        if len(empty):
            more = f", nor have {len(empty) - 1} others" if len(empty) > 1 else ""
            raise GradsiftError(f"client {self.label(int(empty[0]))} of {self.name!r} has no training samples{more}")
        if not len(self.x) == len(self.y) == int(self.size.sum()):
            raise GradsiftError(f"x has {len(self.x)} rows, y {len(self.y)}, the clients own {int(self.size.sum())}")
        if len(self.test_x) != len(self.test_y):
            raise GradsiftError(f"test_x has {len(self.test_x)} rows, test_y {len(self.test_y)}")
        self._check_values()

    def _check_values(self) -> None:
        for which, train, test in (("x", self.x, self.test_x), ("y", self.y, self.test_y)):
            kinds = [(part.dtype, list(part.shape[1:])) for part in (train, test)]
            if len(test) and kinds[0] != kinds[1]:
                raise GradsiftError(f"{which} and test_{which} of {self.name!r} differ: {kinds[0]} and {kinds[1]}")
            for label, values in ((which, train), (f"test_{which}", test)):
                # The minimum and maximum show NaN and infinity without a second tensor as large as the data.
                if values.is_floating_point() and values.numel() and not all(map(torch.isfinite, values.aminmax())):
                    check_tensors.finite(f"{label} of {self.name!r}", values)
        if self.num_classes is not None:
            check.integer("num_classes", self.num_classes, 1)
        if not self.labelled:
            return
        for lowest, highest in (map(int, labels.aminmax()) for labels in (self.y, self.test_y) if len(labels)):
            if lowest < 0:
                raise GradsiftError(f"labels must not be negative, got {lowest} in {self.name!r}")
            if self.num_classes is not None and highest >= self.num_classes:
                raise GradsiftError(f"label {highest} in {self.name!r} is outside its {self.num_classes} classes")

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike | Tensor,
        y: ArrayLike | Tensor,
        client: ArrayLike,
        *,
        test: ArrayLike | None = None,
        name: str = "data",
        client_names: Sequence[str] = (),
        num_classes: int | None = None,
    ) -> "FederatedData":
        """Group the samples ``x``, ``y`` by ``client``, which holds ids or names; ``test`` is 1 for test samples.

        Clients are numbered from 0 in the order of their sorted ids; samples keep their order within a client. A client
        with test samples only is refused; a test sample that belongs to no client has client -1.
        """
        rows_x, rows_y = tensor("x", x), tensor("y", y)
        for which, rows in (("x", rows_x), ("y", rows_y)):
            if rows.dim() == 0:
                raise GradsiftError(f"{which} must have one row for each sample, got the number {rows.item()}")
        if len(rows_x) != len(rows_y):
            raise GradsiftError(f"x and y differ in length: {len(rows_x)} and {len(rows_y)}")
        if not rows_y.is_floating_point():
            rows_y = rows_y.long()
        owner = client_ids(client, len(rows_x))
        is_test = split_mask("test", np.zeros(len(owner)) if test is None else test, len(owner))
        owners = np.unique(owner)
        if owner.dtype.kind == "i":
            bad = np.flatnonzero((owner < NO_CLIENT) | ((owner == NO_CLIENT) & ~is_test))
            if len(bad):
                raise GradsiftError(f"client must not be negative, got {owner[bad[0]]} in row {bad[0]}")
            owners = owners[owners != NO_CLIENT]
        names = tuple(client_names) or tuple(map(str, owners))
        train = np.flatnonzero(~is_test)
        number = np.searchsorted(owners, owner[train])
        order = torch.from_numpy(train[np.argsort(number, kind="stable")])
        held = torch.from_numpy(np.flatnonzero(is_test))
        size = np.bincount(number, minlength=len(owners)).astype(np.int64)
        return cls(rows_x[order], rows_y[order], size, rows_x[held], rows_y[held], name, names, num_classes)

    @classmethod
    def from_datasets(
        cls,
        datasets: Sequence[Samples],
        *,
        test: Samples | None = None,
        name: str = "data",
        client_names: Sequence[str] = (),
        num_classes: int | None = None,
    ) -> "FederatedData":
        """Take one map-style torch dataset of (x, y) pairs for each client, and one as the test split."""
        if not datasets:
            raise GradsiftError("from_datasets needs at least one dataset")
        parts = [read(dataset, f"dataset {number}") for number, dataset in enumerate(datasets)]
        for number, (x, y) in enumerate(parts):
            kinds = [(part.dtype, list(part.shape[1:])) for part in (x, y, *parts[0])]
            if kinds[:2] != kinds[2:]:
                raise GradsiftError(f"dataset {number} gives (x, y) as {kinds[:2]}, dataset 0 as {kinds[2:]}")
        x, y = (torch.cat(columns) for columns in zip(*parts, strict=True))
        test_x, test_y = (x[:0], y[:0]) if test is None else read(test, "test")
        size = np.array([len(part) for part, _ in parts], dtype=np.int64)
        return cls(x, y, size, test_x, test_y, name, tuple(client_names), num_classes)

    @classmethod
    def from_dataset(
        cls,
        dataset: Samples,
        client: ArrayLike | Partition,
        *,
        test: Samples | None = None,
        name: str = "data",
        num_classes: int | None = None,
    ) -> "FederatedData":
        """Partition one map-style torch dataset of (x, y) pairs by client ids, or by a function from labels to ids.

        An example of such a function is ``client=partial(gradsift.data.dirichlet, clients=20, alpha=0.5)``.
        """
        x, y = read(dataset, "dataset")
        ids = client(y.numpy()) if callable(client) else client
        data = cls.from_arrays(x, y, ids, name=name, num_classes=num_classes)
        if test is None:
            return data
        test_x, test_y = read(test, "test")
        return replace(data, test_x=test_x, test_y=test_y)

    @property
    def num_clients(self) -> int:
        """The number of clients, N."""
        return len(self.size)

    @property
    def start(self) -> NDArray[np.int64]:
        """The first row of each client, [N]."""
        return np.concatenate([[0], np.cumsum(self.size)[:-1]]).astype(np.int64)

    @property
    def owner(self) -> NDArray[np.int64]:
        """The client of each training row, [n]."""
        return np.repeat(np.arange(self.num_clients, dtype=np.int64), self.size)

    @property
    def share(self) -> NDArray[np.float64]:
        """The fraction of all training samples that each client has, [N]; the paper's C_i / C."""
        return np.asarray(self.size / self.size.sum(), dtype=np.float64)

    @property
    def labelled(self) -> bool:
        """Whether y holds class labels and not targets."""
        return not self.y.is_floating_point() and self.y.dim() == 1

    @property
    def classes(self) -> int:
        """The number of classes: ``num_classes``, by default the largest label plus one."""
        if not self.labelled:
            raise GradsiftError(f"{self.name!r} has no class labels: y is {self.y.dtype} {list(self.y.shape)}")
        if self.num_classes is not None:
            return self.num_classes
        return 1 + max(int(part.max()) for part in (self.y, self.test_y) if len(part))

    def label(self, client: int) -> str:
        """Return the number and the name of a client, for messages."""
        name = self.client_names[client] if client < len(self.client_names) else ""
        return f"{client} ({name})" if name and name != str(client) else str(client)

    def rows(self, client: int) -> slice:
        """Return the training rows of one client."""
        check.integer("client", client, 0, self.num_clients - 1)
        first = int(self.size[:client].sum())
        return slice(first, first + int(self.size[client]))

    def subset(self, clients: Sequence[int]) -> "FederatedData":
        """Return the training data of these clients, in this order, with the same test split."""
        if len(clients) == 0:
            raise GradsiftError(f"a subset of {self.name!r} needs at least one client")
        if len(set(clients)) != len(clients):
            twice = next(client for client in clients if list(clients).count(client) > 1)
            raise GradsiftError(f"client {twice} is in the subset twice")
        keep = torch.cat([torch.arange(rows.start, rows.stop) for rows in map(self.rows, clients)]).to(self.x.device)
        names = tuple(self.client_names[client] for client in clients) if self.client_names else ()
        return replace(self, x=self.x[keep], y=self.y[keep], size=self.size[list(clients)], client_names=names)

    def at_least(self, samples: int) -> "FederatedData":
        """Return the data of the clients that have at least ``samples`` training samples."""
        enough = np.flatnonzero(self.size >= samples)
        if len(enough) == 0:
            raise GradsiftError(f"no client has {samples} training samples: the largest has {int(self.size.max())}")
        return self.subset([int(client) for client in enough])

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "FederatedData":
        """Move the data to a device, and convert floating-point inputs and targets to ``dtype``."""

        def move(values: Tensor) -> Tensor:
            return values.to(device, dtype if values.is_floating_point() else None)

        return self.converted(move, move)

    def converted(self, x: Callable[[Tensor], Tensor], y: Callable[[Tensor], Tensor]) -> "FederatedData":
        """Apply the function ``x`` to the inputs and ``y`` to the labels, of the training and of the test samples."""
        return replace(self, x=x(self.x), y=y(self.y), test_x=x(self.test_x), test_y=y(self.test_y))

    def fingerprint(self) -> str:
        """Return a checksum of all samples, their types and their clients: a resumed run must use the same data."""
        crc = zlib.crc32(self.size.tobytes())
        for values in (self.x, self.y, self.test_x, self.test_y):
            crc = zlib.crc32(f"{values.dtype} {list(values.shape)}".encode(), crc)
            flat = values.detach().cpu().contiguous().reshape(-1)
            crc = zlib.crc32(flat.view(torch.uint8).numpy().data, crc)
        return f"{crc:08x}"
