"""Estimates the memory of a run, to decide where its residuals are: on the device, or in the host's memory.

Residuals in the host's memory are on the device one chunk of clients at a time.
"""

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gradsift.errors import GradsiftError
from gradsift.local import LocalComputation, LocalSteps
from gradsift.values import Exact, FewBits, ValueType

if TYPE_CHECKING:
    from gradsift.data.federated import FederatedData
    from gradsift.method import Method
    from gradsift.simulation.flat import FlatModel
    from gradsift.simulation.settings import Settings

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CACHE = "/sys/fs/cgroup/memory.stat"
_USES = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
_UPLOAD_COPIES = 5  # of the uploads, while they are sorted, ranked and merged
_VECTOR_COPIES = 5  # of all D elements with their indices, while the server chooses among them
_ROUNDING_COPIES = 4  # of dense uploads, while their values are rounded
_FEW_BITS_BYTES = 64  # for each element of them, if to few bits
_BUFFER_COPIES = 4  # of the moving buffers: before and after a round, before and after a chunk
_CPU_CHUNK, _CUDA_CHUNK = 2**26, 2**34  # bytes; that of a CPU suits its caches
_CUDA_FRACTION = 4  # a chunk takes at most 1/4 of the device's memory
_USABLE = 0.9  # of the free memory; the remainder is for what is not counted here
_VMAP_ACTIVATIONS = 2  # memory of activations under vmap, relative to a plain pass
_LOG = logging.getLogger("gradsift")


@dataclass(frozen=True)
class Needs:
    """The quantities that decide how much memory a round takes."""

    clients: int  # N
    dim: int  # D
    k: int  # of the first round; 0 if uploads are dense
    dtype: torch.dtype
    most: int = 0  # the largest k of any later round
    present: int | None = None  # n, the clients of a round; None for all
    rounding: int = 0  # bytes to round an element of dense uploads; 0 if these are the residuals themselves
    activations: int = 0  # bytes, estimated, of a chunk of clients, with their gradients
    losses: int = 0  # bytes of activations of the samples that losses are taken on
    buffers: int = 0  # bytes of one client's moving buffers

    @property
    def residuals(self) -> int:
        """Bytes of the residuals [N, D]."""
        return self.clients * self.dim * self.dtype.itemsize

    def beside(self, k: int) -> int:
        """Bytes that a round at ``k`` takes at most, in addition to the residuals.

        That is one copy of the residuals [n, D], or two if only some of the clients take part, and more if dense
        uploads are rounded; the larger of activations with gradients, and of uploads with the vectors [D] made of them
        and losses; and the moving buffers.
        """
        copies = 1 if self._present == self.clients else 2
        rows = self._present * self.dim * (copies * self.dtype.itemsize + self.rounding)
        merging = self.uploads(k) + _VECTOR_COPIES * self.dim * _element_bytes(self.dtype) + self.losses
        return rows + max(self.activations, merging) + _BUFFER_COPIES * self.clients * self.buffers

    def uploads(self, k: int) -> int:
        """Bytes that merging uploads [n, k] takes."""
        return upload_bytes(self._present, k, self.dtype)

    @property
    def _present(self) -> int:
        return self.clients if self.present is None else self.present


def needs(
    flat: "FlatModel", data: "FederatedData", method: "Method", settings: "Settings", k: int, activations: int
) -> Needs:
    """The memory needs of a run with ``k`` in its first round; ``activations`` are the bytes for one minibatch."""
    dense, controller = method.sparsifier.dense, method.controller
    present = settings.clients_per_round or data.num_clients
    vectors = _vectors(method.local) * flat.dim * flat.dtype.itemsize
    per_client = activations * (1 if flat.in_one_pass else _VMAP_ACTIVATIONS) + vectors
    return Needs(
        data.num_clients,
        flat.dim,
        k=0 if dense else k,
        dtype=flat.dtype,
        most=0 if dense else math.ceil(min(flat.dim, controller.largest_k(flat.dim))),
        present=present,
        rounding=_rounding(method.values, flat.dtype) if dense else 0,
        activations=min(settings.clients_per_chunk or 1, present) * per_client,
        losses=present * settings.probe_samples * activations // settings.batch_size if controller.learns else 0,
        buffers=sum(value.nbytes for value in flat.buffers().values()),
    )


def _vectors(local: LocalComputation) -> int:
    """The vectors [D] of a client at work: its gradient; with local steps also its weights and their change.

    Steps that do not follow the gradient alone have a velocity, and a gradient apart from their change.
    """
    beside = 0 if not isinstance(local, LocalSteps) or local.plain else 2
    return (1 if local.computations == 1 else 3) + beside


def _rounding(values: ValueType, dtype: torch.dtype) -> int:
    """Bytes that rounding an element of a dense upload takes."""
    if isinstance(values, Exact):
        return 0
    return _FEW_BITS_BYTES if isinstance(values, FewBits) else _ROUNDING_COPIES * dtype.itemsize


def must_stream(needs: Needs, device: torch.device) -> bool:
    """Whether the residuals [N, D] must be in the host's memory; refuses a run that does not fit there either.

    If they are on the device, every round fits, up to the largest k; activations are estimated from one minibatch. In
    the host's memory only the first round is sure to fit, since k may grow, and what a chunk takes on the device is not
    checked.
    """
    most = max(needs.k, needs.most)
    needed, free = needs.residuals + needs.beside(most), free_bytes(device)
    if needed <= _USABLE * free:
        return False
    if needs.residuals + needs.uploads(needs.k) + needs.activations <= _USABLE * free_bytes(torch.device("cpu")):
        _LOG.warning(
            "residuals are kept in the host's memory, which is slower: with k up to %d a round takes %s, %s has %s",
            *(most, _size(needed), device, _size(free)),
        )
        return True
    kinds = dict.fromkeys((str(device), "cpu"))  # without repetition
    has = ", ".join(f"{kind} has {_size(free_bytes(torch.device(kind)))}" for kind in kinds)
    raise GradsiftError(
        f"the residuals do not fit: {needs.clients} clients x {needs.dim} weights x {needs.dtype.itemsize} bytes ="
        f" {_size(needs.residuals)}, with {_size(needs.uploads(needs.k))} for uploads of k = {needs.k} and"
        f" {_size(needs.activations)} for activations and gradients; free memory: {has}"
    )


def upload_bytes(present: int, k: int, dtype: torch.dtype) -> int:
    """Bytes that merging uploads [n, k] takes."""
    return _UPLOAD_COPIES * present * k * _element_bytes(dtype)


def merge_device(present: int, k: int, dtype: torch.dtype, device: torch.device) -> torch.device:
    """Where to merge uploads [n, k]: on ``device``, if that takes at most half of its free memory, or on the CPU."""
    return device if upload_bytes(present, k, dtype) <= free_bytes(device) // 2 else torch.device("cpu")


def _element_bytes(dtype: torch.dtype) -> int:
    """Bytes of an element with its index."""
    return torch.int64.itemsize + dtype.itemsize


def chunk_bytes(device: torch.device) -> int:
    """The bytes that the activations and gradients of one chunk of clients may take.

    On a GPU it depends on the total memory, not on the free memory: the size of a chunk affects dropout and rounding
    errors, and must be the same in a repeated run.
    """
    if device.type == "cpu":
        return _CPU_CHUNK
    return min(_CUDA_CHUNK, int(torch.cuda.get_device_properties(device).total_memory) // _CUDA_FRACTION)


def free_bytes(device: torch.device) -> int:
    """The free memory of a CUDA device, or of this machine within the limit of its container."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = _available()
    for limit_file, use_file in zip(_LIMITS, _USES, strict=True):
        limit, used = _number(limit_file), _number(use_file)
        if limit is not None and used is not None:
            free = min(free, max(0, limit - used + _reclaimable()))
    return free


def _reclaimable() -> int:
    """Bytes of the container's file cache that the kernel frees on demand."""
    try:
        lines = Path(_CACHE).read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _available() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:  # not Linux: unknown without another library, so nothing is refused
        return 2**63
    lines = dict(line.split(":", 1) for line in text.splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
