"""Where the residuals live: on the device, or in the host's memory and on the device a chunk of clients at a time."""

from pathlib import Path

import torch

from gradsift.errors import GradsiftError

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CACHE = "/sys/fs/cgroup/memory.stat"
_USES = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
_COPIES = 4  # of an upload, while it is sorted, ranked and merged
_USABLE = 0.9  # of what is free: the rest is for what we do not count


def must_stream(num_clients: int, dim: int, k: int, dtype: torch.dtype, device: torch.device, other: int = 0) -> bool:
    """Whether residuals [N, D] must live in the host's memory; refuses them if they do not fit there either.

    A round at ``k`` needs them and one more buffer of their size, its uploads with what is made of them on the way, and
    ``other`` bytes for activations and gradients.
    """
    residuals = num_clients * dim * dtype.itemsize
    uploads = upload_bytes(num_clients, k, dtype)
    if 2 * residuals + uploads + other <= _USABLE * free_bytes(device):
        return False
    if residuals + uploads + other <= _USABLE * free_bytes(torch.device("cpu")):
        return True
    kinds = dict.fromkeys((str(device), "cpu"))  # once each
    free = ", ".join(f"{kind} has {_size(free_bytes(torch.device(kind)))}" for kind in kinds)
    raise GradsiftError(
        f"the residuals do not fit: {num_clients} clients x {dim} weights x {dtype.itemsize} bytes ="
        f" {_size(residuals)}, with {_size(uploads)} for uploads of k = {k} and {_size(other)} for activations and"
        f" gradients; free memory: {free}"
    )


def upload_bytes(num_clients: int, k: int, dtype: torch.dtype) -> int:
    """What uploads [N, k] take while a round is merged."""
    return _COPIES * num_clients * k * (torch.int64.itemsize + dtype.itemsize)


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
