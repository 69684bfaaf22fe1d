"""Data that is spread over clients: the one container every source gives and every driver takes.

Shapes: n training samples of all N clients, grouped by client; client i owns rows start[i] to start[i] + size[i].
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gradsift import check
from gradsift.data.convert import client_ids, tensor
from gradsift.data.datasets import Samples, read
from gradsift.errors import GradsiftError

NOBODY = -1  # the client of a test row that belongs to no client

Partition = Callable[[NDArray[np.generic]], ArrayLike]  # labels -> client ids


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Training samples grouped by client, and a test split that belongs to nobody in particular."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n] class labels (int64), or [n, ...] targets of any kind
    size: NDArray[np.int64]  # [N] samples of each client
    test_x: Tensor  # [t, ...]; t may be 0
    test_y: Tensor
    name: str = "data"
    client_names: tuple[str, ...] = field(default=(), repr=False)
    num_classes: int | None = None  # None: as many as the labels that occur need

    def __post_init__(self) -> None:
        """Refuse data that no run could use, naming what is wrong."""
        size = np.asarray(self.size)
        if size.ndim != 1 or (size.dtype.kind not in "iu" and len(size)):
            raise GradsiftError(f"size must be one integer a client, got {self.size!r}")
        object.__setattr__(self, "size", size.astype(np.int64))
        if len(self.size) == 0:
            raise GradsiftError(f"no clients in {self.name!r}")
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
            for prefix, values in (("", train), ("test_", test)):
                if not _finite(values):
                    raise GradsiftError(f"{prefix}{which} of {self.name!r} holds NaN or infinity")
        if self.num_classes is not None:
            check.integer("num_classes", self.num_classes, 1)
        if not self.labelled:
            return
        for labels in (self.y, self.test_y):
            if len(labels) and int(labels.min()) < 0:
                raise GradsiftError(f"labels must not be negative, got {int(labels.min())} in {self.name!r}")
            if self.num_classes is not None and len(labels) and int(labels.max()) >= self.num_classes:
                raise GradsiftError(
                    f"label {int(labels.max())} in {self.name!r} is outside its {self.num_classes} classes"
                )

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
        """Rows ``x``, ``y`` that belong to ``client`` (ids or names, 0 to N-1 after sorting); ``test`` marks test rows.

        Rows keep their order within a client. A client that has test rows only is refused; a test row that belongs to
        no client has client -1.
        """
        rows_x, rows_y = tensor("x", x), tensor("y", y)
        for which, rows in (("x", rows_x), ("y", rows_y)):
            if rows.dim() == 0:
                raise GradsiftError(f"{which} must have one row a sample, got the number {rows.item()}")
        if len(rows_x) != len(rows_y):
            raise GradsiftError(f"x and y differ in length: {len(rows_x)} and {len(rows_y)}")
        if not rows_y.is_floating_point():
            rows_y = rows_y.long()
        owner = client_ids(client, len(rows_x))
        is_test = _marks(test, len(owner))
        if owner.dtype.kind == "i":
            wrong = np.flatnonzero((owner < NOBODY) | ((owner == NOBODY) & ~is_test))
            if len(wrong):
                raise GradsiftError(f"client must not be negative, got {owner[wrong[0]]} in row {wrong[0]}")
            somebody = owner != NOBODY
        else:
            somebody = np.ones(len(owner), dtype=bool)
        owners = np.unique(owner[somebody])
        names = tuple(client_names) or tuple(str(o) for o in owners)
        if len(names) != len(owners):
            raise GradsiftError(f"{len(names)} client names for {len(owners)} clients")
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
        """One map-style torch dataset of (x, y) pairs a client; ``test`` is another."""
        if not datasets:
            raise GradsiftError("no clients: there is no dataset")
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
        """One map-style torch dataset of (x, y) pairs, shared out by ``client``: the ids, or a partitioner of labels.

        ``client=partial(gradsift.data.dirichlet, clients=20, alpha=0.5)``.
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
        """N."""
        return len(self.size)

    @property
    def start(self) -> NDArray[np.int64]:
        """[N] the first row of each client."""
        return np.concatenate([[0], np.cumsum(self.size)[:-1]]).astype(np.int64)

    @property
    def owner(self) -> NDArray[np.int64]:
        """[n] the client of each training row."""
        return np.repeat(np.arange(self.num_clients, dtype=np.int64), self.size)

    @property
    def share(self) -> NDArray[np.float64]:
        """[N] C_i / C."""
        return np.asarray(self.size / self.size.sum(), dtype=np.float64)

    @property
    def labelled(self) -> bool:
        """Whether y are class labels."""
        return not self.y.is_floating_point() and self.y.dim() == 1

    @property
    def classes(self) -> int:
        """How many classes there are: ``num_classes``, or else the largest label plus one."""
        if not self.labelled:
            raise GradsiftError(f"{self.name!r} has no class labels: y is {self.y.dtype} {list(self.y.shape)}")
        if self.num_classes is not None:
            return self.num_classes
        return 1 + max(int(part.max()) for part in (self.y, self.test_y) if len(part))

    def label(self, client: int) -> str:
        """What to call a client in a message."""
        name = self.client_names[client] if client < len(self.client_names) else ""
        return f"{client} ({name})" if name and name != str(client) else str(client)

    def rows(self, client: int) -> slice:
        """The rows of one client."""
        check.integer("client", client, 0, self.num_clients - 1)
        first = int(self.size[:client].sum())
        return slice(first, first + int(self.size[client]))

    def subset(self, clients: Sequence[int]) -> "FederatedData":
        """Only these clients' training data, in this order, with the same test split."""
        if len(clients) == 0:
            raise GradsiftError(f"no clients: the subset of {self.name!r} is empty")
        if len(set(clients)) != len(clients):
            twice = next(client for client in clients if list(clients).count(client) > 1)
            raise GradsiftError(f"client {twice} is in the subset twice")
        keep = torch.cat([torch.arange(rows.start, rows.stop) for rows in map(self.rows, clients)]).to(self.x.device)
        names = tuple(self.client_names[client] for client in clients) if self.client_names else ()
        return replace(self, x=self.x[keep], y=self.y[keep], size=self.size[list(clients)], client_names=names)

    def at_least(self, samples: int) -> "FederatedData":
        """Only the clients with at least so many training samples."""
        enough = np.flatnonzero(self.size >= samples)
        if len(enough) == 0:
            raise GradsiftError(f"no client has {samples} training samples: the largest has {int(self.size.max())}")
        return self.subset([int(client) for client in enough])

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "FederatedData":
        """On a device, floating-point inputs and targets in ``dtype``."""

        def move(values: Tensor) -> Tensor:
            return values.to(device, dtype if values.is_floating_point() else None)

        x, y, test_x, test_y = (move(values) for values in (self.x, self.y, self.test_x, self.test_y))
        return replace(self, x=x, y=y, test_x=test_x, test_y=test_y)

    def fingerprint(self) -> str:
        """A checksum of all samples, their types, and who owns them: a resumed run must see the same data."""
        crc = zlib.crc32(self.size.tobytes())
        for values in (self.x, self.y, self.test_x, self.test_y):
            crc = zlib.crc32(f"{values.dtype} {list(values.shape)}".encode(), crc)
            flat = values.detach().cpu().contiguous().reshape(-1)
            crc = zlib.crc32(flat.view(torch.uint8).numpy().data, crc)
        return f"{crc:08x}"


def _finite(values: Tensor) -> bool:
    if not values.is_floating_point() or values.numel() == 0:
        return True
    # NaN and infinity both show in the extremes, which need no second tensor as large as the data.
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(values))


def _marks(test: ArrayLike | None, rows: int) -> NDArray[np.bool_]:
    if test is None:
        return np.zeros(rows, dtype=bool)
    marks = np.asarray(test)
    if marks.shape != (rows,):
        raise GradsiftError(f"test must mark each of {rows} rows, got shape {list(marks.shape)}")
    if marks.dtype.kind not in "biu" and rows:
        raise GradsiftError(f"test must hold 0 (train) or 1 (test), got dtype {marks.dtype}")
    wrong = np.flatnonzero((marks != 0) & (marks != 1))
    if len(wrong):
        raise GradsiftError(f"test must hold 0 (train) or 1 (test), got {marks[wrong[0]]} in row {wrong[0]}")
    return marks.astype(bool)
