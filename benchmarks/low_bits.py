"""Values rounded to a few bits, in a plain way: what such messages need at least, and in which format.

``benchmarks.wire`` prints these tables.
"""

import bz2
import lzma
import math
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import common
from gradsift import Sparse, top_k
from gradsift.values import FewBits
from gradsift.wire import batch, codec, encode
from gradsift.wire.levels import MAX_LEVELS
from gradsift.wire.number_types import number_type

BITS = (1, 2, 3, 4, 8)


def rounded(sparse: Sparse, bits: int) -> Sparse:
    """The message [k] or [N, k] with values of so many bits."""
    return FewBits(bits).rounded(sparse)


def bound(sparse: Sparse) -> float:
    """log2 C(dim, k), the entropy of the levels and of the signs one by one, and the table, in bits.

    Values of more than 128 magnitudes count as they are.
    """
    dim, k = sparse.dim, sparse.size
    choose = (math.lgamma(dim + 1) - math.lgamma(k + 1) - math.lgamma(dim - k + 1)) / math.log(2)
    levels, often = np.unique(sparse.values.abs().numpy(), return_counts=True)
    if len(levels) > MAX_LEVELS:
        return choose + 8 * sparse.values.element_size() * k
    signs = np.bincount(sparse.values.numpy() < 0)
    return choose + entropy(often) + entropy(signs) + 8 * levels.nbytes


def entropy(counts: NDArray[np.int64]) -> float:
    """In bits, of all that was counted."""
    used = counts[counts > 0]
    return float(-(used * np.log2(used / used.sum())).sum())


def plain(sparse: Sparse) -> bytes:
    """What one would write first: the differences of the indices, then the values, in planes of bytes.

    Values of at most 128 magnitudes are a byte each, sign and place in a table, after the table.
    """
    order = sparse.indices.argsort()
    gaps = np.diff(sparse.indices[order].numpy(), prepend=0).astype("<u4")
    values = sparse.values[order].numpy()
    levels, places = np.unique(np.abs(values), return_inverse=True)
    if len(levels) <= MAX_LEVELS:
        return _planes(gaps) + levels.tobytes() + (places + 128 * (values < 0)).astype(np.uint8).tobytes()
    return _planes(gaps) + _planes(values)


def _planes(numbers: NDArray[Any]) -> bytes:
    """The first bytes of all numbers, then the second ones, and so on."""
    return numbers.view(np.uint8).reshape(len(numbers), -1).T.tobytes()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "zlib -9": lambda data: zlib.compress(data, 9),
    "bz2 -9": lambda data: bz2.compress(data, 9),
    "lzma -9": lambda data: lzma.compress(data, preset=9),
}
try:
    import zstandard

    PACKERS["zstd -19"] = zstandard.ZstdCompressor(level=19).compress
except ImportError:
    pass


def bits_an_element(messages: list[Sparse], bits: int | None) -> list[float]:
    """The bound, ours and the plain format as each packer leaves it, of all messages together; exact if no bits."""
    sent = [sparse if bits is None else rounded(sparse, bits) for sparse in messages]
    totals = [[bound(sparse), 8 * len(encode(sparse)), *_packed(sparse)] for sparse in sent]
    elements = sum(sparse.size for sparse in sent)
    return [sum(column) / elements for column in zip(*totals, strict=True)]


def _packed(sparse: Sparse) -> list[int]:
    return [8 * len(pack(plain(sparse))) for pack in PACKERS.values()]


def show(groups: dict[str, list[Sparse]]) -> None:
    """Bits an element of each group of messages, exact and rounded to a few bits."""
    lines = []
    for name, messages in groups.items():
        for bits in (None, *BITS):
            least, ours, *others = bits_an_element(messages, bits)
            label = "exact" if bits is None else f"{bits} bit{'s' * (bits > 1)}"
            ratios = [f"{ours / least:.3f}", f"{min(others) / ours:.2f}"]
            lines.append([name, label, f"{least:.2f}", f"**{ours:.2f}**", *(f"{o:.2f}" for o in others), *ratios])
    heads = ["message", "values", "bound", "**ours**", *PACKERS, "ours of bound", "best other of ours"]
    print(common.markdown(heads, lines) + "\n", flush=True)


def show_batch(device: torch.device, clients: int = 156, k: int = 10_000, dim: int = 444_062) -> None:
    """How long the sizes of all messages take, one by one and all at once."""
    torch.manual_seed(0)
    exact = top_k(torch.distributions.Laplace(0.0, 1.0).sample(torch.Size([clients, dim])), k)
    kind = number_type("float32")
    lines = []
    for bits in (None, *BITS):
        uploads = (exact if bits is None else rounded(exact, bits)).to(device)
        single, at_once = codec._sizes(uploads, None), batch.sizes(uploads, kind)
        assert at_once is not None
        assert np.array_equal(single, at_once)
        before = _milliseconds(partial(codec._sizes, uploads, None))
        after = _milliseconds(partial(batch.sizes, uploads, kind))
        counts = batch._counted(uploads.indices, uploads.values.view(torch.int32), dim, kind)
        host = _milliseconds(partial(batch._content, counts, k, dim, kind), calls=21)
        label = "exact" if bits is None else str(bits)
        lines.append([label, f"{before:.0f}", f"{after:.1f}", f"{before / after:.1f}", f"{host:.2f}"])
    print(f"{clients} messages of {k:,} elements of {dim:,}, on {device}")
    heads = ["bits", "one by one, ms", "at once, ms", "ratio", "of it on the host, ms"]
    print(common.markdown(heads, lines) + "\n", flush=True)


def _milliseconds(action: Callable[[], object], calls: int = 7) -> float:
    """Median of some calls; their results are numbers on the host, so a device has finished."""
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return 1e3 * float(np.median(times))
