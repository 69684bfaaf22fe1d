"""Where the residuals live: on the device, or in the host's memory and on the device a chunk of clients at a time."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gradsift.control import round_k
from gradsift.errors import GradsiftError
from gradsift.values import Exact

if TYPE_CHECKING:
    from gradsift.data.federated import FederatedData
    from gradsift.method import Method
    from gradsift.simulation.flat import FlatModel
    from gradsift.simulation.settings import Settings

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CACHE = "/sys/fs/cgroup/memory.stat"
_USES = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
_UPLOAD_COPIES = 5  # while they are sorted, ranked and merged
_VECTOR_COPIES = 5  # of all D elements, with their indices, while the server chooses among them
_ROUNDING_COPIES = 4  # of whole vectors, while their values are rounded
_BUFFER_COPIES = 4  # before a round and after it, as a chunk takes and leaves them, and joined
_CPU_CHUNK, _CUDA_CHUNK = 2**26, 2**34  # bytes; a CPU's is what its caches like
_CUDA_PART = 4  # a chunk takes at most one such part of the device
_USABLE = 0.9  # of what is free: the rest is for what we do not count
VMAP_KEEPS = 2  # times the activations of a plain pass
_LOG = logging.getLogger("gradsift")


@dataclass(frozen=True)
class Needs:
    """What the memory of a round depends on."""

    clients: int  # N
    dim: int  # D
    k: int  # of the first round; 0: uploads are whole vectors
    dtype: torch.dtype
    most: int = 0  # the largest k that any round may have, if that is not the first
    present: int | None = None  # n, the clients of a round; None: all
    rounded: bool = False  # whether whole vectors are rounded; if not, an upload is the residual itself
    activations: int = 0  # bytes of these, about, and of gradients, for the clients that are computed together
    losses: int = 0  # bytes of activations for the samples that losses are taken on
    buffers: int = 0  # bytes of one client's moving buffers

    @property
    def residuals(self) -> int:
        """Bytes of [N, D]."""
        return self.clients * self.dim * self.dtype.itemsize

    def beside(self, k: int) -> int:
        """Bytes that a round at ``k`` takes at most, beside the residuals.

        One more buffer [n, D], or two where only some of the clients take part, whose residuals are copied, and more
        where whole vectors are rounded; activations and gradients or, when those are gone, uploads, the vectors [D]
        made of them, and losses; moving buffers.
        """
        rows = (1 if self._present == self.clients else 2) + (_ROUNDING_COPIES if self.rounded else 0)
        copies = rows * self._present * self.dim * self.dtype.itemsize
        after = self.uploads(k) + _VECTOR_COPIES * self.dim * _pair(self.dtype) + self.losses
        return copies + max(self.activations, after) + _BUFFER_COPIES * self.clients * self.buffers

    def uploads(self, k: int) -> int:
        """Bytes of uploads [n, k] while a round is merged."""
        return upload_bytes(self._present, k, self.dtype)

    @property
    def _present(self) -> int:
        return self.clients if self.present is None else self.present


def needs(flat: "FlatModel", data: "FederatedData", method: "Method", settings: "Settings", kept: int) -> Needs:
    """What the rounds of a run take, for a model that keeps so many bytes of a minibatch for its gradient."""
    dense, controller = method.sparsifier.dense, method.controller
    first = controller.propose(controller.init(flat.dim, method.seed), 1).k
    k = max(first) if isinstance(first, tuple) else first
    present = settings.clients_per_round or data.num_clients
    activations = kept if flat.is_shared else VMAP_KEEPS * kept
    vectors = 1 if method.local.computations == 1 else 3  # local steps have their drift, and weights of their own
    return Needs(
        data.num_clients,
        flat.dim,
        k=0 if dense else min(flat.dim, round_k(k, method.seed, 1)),
        dtype=flat.dtype,
        most=0 if dense else math.ceil(min(flat.dim, controller.largest_k(flat.dim))),
        present=present,
        rounded=dense and not isinstance(method.values, Exact),
        activations=min(settings.clients_per_chunk or 1, present)
        * (activations + vectors * flat.dim * flat.dtype.itemsize),
        losses=present * settings.probe_samples * kept // settings.batch_size if controller.learns else 0,
        buffers=sum(value.nbytes for value in flat.buffers().values()),
    )


def must_stream(needs: Needs, device: torch.device) -> bool:
    """Whether residuals [N, D] must live in the host's memory; refuses them if they do not fit there either.

    If not, every round of the run fits on the device, whichever k it may come to, as far as activations are known: they
    are estimated from one minibatch. If they must, k may grow beyond what fits: they are refused by what the first
    round needs, and what a chunk of clients takes on the device is not looked at.
    """
    most = max(needs.k, needs.most)
    needed, free = needs.residuals + needs.beside(most), free_bytes(device)
    if needed <= _USABLE * free:
        return False
    if needs.residuals + needs.uploads(needs.k) + needs.activations <= _USABLE * free_bytes(torch.device("cpu")):
        _LOG.warning(
            "residuals pass a chunk of clients at a time, which is slower: with k up to %d a round takes %s, %s has %s",
            *(most, _size(needed), device, _size(free)),
        )
        return True
    kinds = dict.fromkeys((str(device), "cpu"))  # once each
    has = ", ".join(f"{kind} has {_size(free_bytes(torch.device(kind)))}" for kind in kinds)
    raise GradsiftError(
        f"the residuals do not fit: {needs.clients} clients x {needs.dim} weights x {needs.dtype.itemsize} bytes ="
        f" {_size(needs.residuals)}, with {_size(needs.uploads(needs.k))} for uploads of k = {needs.k} and"
        f" {_size(needs.activations)} for activations and gradients; free memory: {has}"
    )


def upload_bytes(present: int, k: int, dtype: torch.dtype) -> int:
    """What uploads [n, k] take while a round is merged."""
    return _UPLOAD_COPIES * present * k * _pair(dtype)


def _pair(dtype: torch.dtype) -> int:
    """Bytes of an element with its index."""
    return torch.int64.itemsize + dtype.itemsize


def chunk_bytes(device: torch.device) -> int:
    """Of activations and gradients of clients that are computed together.

    By the whole memory of a GPU, not by what is free: dropout and rounding depend on it, so it must repeat.
    """
    if device.type == "cpu":
        return _CPU_CHUNK
    return min(_CUDA_CHUNK, int(torch.cuda.get_device_properties(device).total_memory) // _CUDA_PART)


def free_bytes(device: torch.device) -> int:
    """Memory that can still be had: of a CUDA device, or of this machine and its container."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    found = [_available()]
    for limit, used in zip(_LIMITS, _USES, strict=True):
        top, now = _number(limit), _number(used)
        if top is not None and now is not None:
            found.append(max(0, top - now + _reclaimable()))
    return min(found)


def _reclaimable() -> int:
    """Bytes of files that a container holds in memory only while nobody needs it."""
    try:
        lines = Path(_CACHE).read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _available() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:  # not Linux: no way to know without another library, so nothing is refused
        return 2**63
    lines = dict(line.split(":", 1) for line in text.splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
