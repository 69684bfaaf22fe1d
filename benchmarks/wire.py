"""Bytes and times of the wire format, on random messages and on the uploads of real runs.

    python -m benchmarks.wire random
    python -m benchmarks.wire digits                    # trains on the digits, a minute
    python -m benchmarks.wire train uploads.npz         # some minutes; FEMNIST from the folder in GRADSIFT_DATA
    python -m benchmarks.wire real uploads.npz
    python -m benchmarks.wire batch --device cuda       # the sizes of many messages, one by one and at once

Prints the tables of docs/results/wire.md. The columns for zstd need the package zstandard; without it they are empty.
Times are CPU time of the one thread that works, the median of many calls, so that other work on the machine counts
little.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import low_bits
from gradsift import Round, Sparse, apply, sparsifier, top_k
from gradsift.data import FederatedData, digits, femnist
from gradsift.models import model, paper_cnn
from gradsift.wire import Limits, decode, encode, encoded_size, huffman, sets, values
from gradsift.wire.bits import Part
from gradsift.wire.number_types import number_type

try:
    import zstandard
except ImportError:
    zstandard = None

DIM = 444_062  # the paper's CNN for FEMNIST
CLIENTS = 10
FRACTIONS = [1e-4, 1e-3, 1e-2, 10_000 / DIM, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]
TRAINED = {445: 50, 4_441: 50, 10_000: 200, 44_406: 50, 222_031: 20, DIM: 20}  # k: rounds
KEPT = (1, 5, 20, 50, 200)  # rounds whose messages are kept
FEW_BITS = ((445, 50), (4_441, 50), (10_000, 1), (10_000, 200), (44_406, 50))  # k and round of uploads to be rounded
ROUNDED = (1_000, 10_000, 44_406, 222_031)  # k of the messages with values of a few bits


def entropy_bytes(dim: int, k: int) -> float:
    """(log2 C(dim, k) + 32 k) / 8: a set of indices that are all alike, and values of 32 random bits."""
    choose = math.lgamma(dim + 1) - math.lgamma(k + 1) - math.lgamma(dim - k + 1)
    return (choose / math.log(2) + 32 * k) / 8


def pairs(sparse: Sparse) -> bytes:
    """The usual format: 4 bytes of index and 4 of value, pair after pair, in the order that suits zstd best."""
    order = sparse.indices.argsort()
    both = np.stack([sparse.indices[order].numpy().astype("<i4"), sparse.values[order].numpy().view("<i4")], axis=1)
    return both.tobytes()


def zstd_size(data: bytes, level: int) -> int | None:
    return None if zstandard is None else len(zstandard.ZstdCompressor(level=level).compress(data))


def milliseconds(action: Callable[[], object], least: float = 0.25) -> float:
    """Median CPU time of a call, over enough calls to take ``least`` seconds."""
    action()
    times: list[float] = []
    while sum(times) < least or len(times) < 5:
        before = time.thread_time()
        action()
        times.append(time.thread_time() - before)
    return 1e3 * float(np.median(times))


class Trained(NamedTuple):
    """One round of training: its number, the loss before it and its messages."""

    number: int
    loss: float
    uploads: Sparse
    merged: Sparse


class Row(NamedTuple):
    """One message or the mean of several, in bytes and milliseconds."""

    elements: float
    entropy: float
    ours: float
    indices: float
    zstd3: float
    zstd19: float
    float16: float
    bfloat16: float
    int8: float
    encode: float
    decode: float
    sizing: float


def measure(sparse: Sparse) -> Row:
    data, limits, raw = encode(sparse), Limits.of(sparse.dim), pairs(sparse)
    order = sparse.indices.argsort()
    back = decode(data, limits)
    assert torch.equal(back.indices, sparse.indices[order])
    assert torch.equal(back.values.view(torch.int32), sparse.values[order].view(torch.int32))
    return Row(
        sparse.size,
        entropy_bytes(sparse.dim, sparse.size),
        len(data),
        sets.plan_indices(sparse.indices[order].numpy(), sparse.dim).size,
        zstd_size(raw, 3) or math.nan,
        zstd_size(raw, 19) or math.nan,
        *(int(encoded_size(sparse, values=kind)) for kind in ("float16", "bfloat16", "int8")),
        milliseconds(lambda: encode(sparse)),
        milliseconds(lambda: decode(data, limits)),
        milliseconds(lambda: encoded_size(sparse)),
    )


def mean(rows: list[Row]) -> Row:
    return Row(*(float(np.mean(column)) for column in zip(*rows, strict=True)))


def table(heads: list[str], lines: list[list[str]]) -> None:
    for cells in (heads, ["---"] * len(heads), *lines):
        print("| " + " | ".join(cells) + " |")
    print(flush=True)


def show(rows: dict[str, Row]) -> None:
    """Sizes, then the lossy types and the times."""
    sizes, rest = [], []
    for name, row in rows.items():
        k = f"{row.elements:,.0f}"
        naive = 8 * row.elements
        numbers = [f"{size:,.0f}" for size in (naive, row.zstd3, row.zstd19, row.entropy)]
        ratios = [f"{row.ours / row.entropy:.3f}", f"{row.ours / naive:.3f}"]
        bits = [f"{8 * part / row.elements:.2f}" for part in (row.indices, row.ours - row.indices)]
        sizes.append([name, k, *numbers, f"**{row.ours:,.0f}**", *ratios, *bits])
        times = [f"{value:.2f}" for value in (row.encode, row.decode, row.encode + row.decode, row.sizing)]
        rest.append([name, k, *(f"{size:,.0f}" for size in (row.float16, row.bfloat16, row.int8)), *times])
    heads = ["message", "k"]
    names = ["pairs", "zstd -3", "zstd -19", "entropy", "**ours**"]
    table([*heads, *names, "of entropy", "of pairs", "bits an index", "bits a value"], sizes)
    table([*heads, "float16", "bfloat16", "int8", "encode, ms", "decode, ms", "both, ms", "size only, ms"], rest)


def random_message(k: int, source: np.random.Generator, any_bits: bool) -> Sparse:
    indices = np.sort(source.choice(DIM, k, replace=False))
    numbers = source.standard_normal(k).astype(np.float32)
    if any_bits:
        bits = source.integers(0, 2**32, k, dtype=np.uint32)
        bits[bits & 0x7F000000 == 0x7F000000] &= 0x80FFFFFF  # finite, also when rounded
        numbers = bits.view(np.float32)
    return Sparse(torch.from_numpy(indices), torch.from_numpy(numbers), DIM)


def run_random() -> None:
    for name, any_bits in (("normal", False), ("random bits", True)):
        rows = {}
        for fraction in FRACTIONS:
            row = measure(random_message(round(fraction * DIM), np.random.default_rng(1), any_bits))
            assert row.ours <= 1.03 * row.entropy + 64
            rows[f"{name}, k/D = {fraction:.4g}"] = row
        show(rows)
    shuffled = random_message(10_000, np.random.default_rng(1), False)
    order = torch.from_numpy(np.random.default_rng(2).permutation(10_000))
    shuffled = Sparse(shuffled.indices[order], shuffled.values[order], DIM)
    print(f"k = 10,000 in no order: encode {milliseconds(lambda: encode(shuffled)):.2f} ms\n")
    torch.manual_seed(1)
    vector = torch.distributions.Laplace(0.0, 1.0).sample(torch.Size([DIM]))
    low_bits.show({f"exponential tail, k = {k:,}": [top_k(vector, k)] for k in ROUNDED})


def train(data: FederatedData, network: torch.nn.Module, k: int, rounds: int, step: float) -> Iterator[Trained]:
    """FAB-top-k with a fixed k, through the core: each client's accumulated gradient, its upload, the merged B."""
    parameters = list(network.parameters())
    weights = torch.nn.utils.parameters_to_vector(parameters).detach()
    start = np.cumsum(data.size) - data.size
    share = torch.from_numpy(data.size / data.size.sum())
    method, source = sparsifier("fab-top-k"), np.random.default_rng(0)
    initial, residual = weights.clone(), torch.zeros(CLIENTS, len(weights))
    for number in range(1, rounds + 1):
        torch.nn.utils.vector_to_parameters(weights, parameters)
        loss = 0.0
        for client in range(CLIENTS):
            rows = torch.from_numpy(start[client] + source.choice(data.size[client], 32, replace=False))
            value = functional.cross_entropy(network(data.x[rows]), data.y[rows])
            gradient: tuple[Tensor, ...] = torch.autograd.grad(value, parameters)
            residual[client] += torch.cat([part.reshape(-1) for part in gradient])
            loss += float(share[client]) * value.item()
        rnd = Round(number, k)
        uploads = method.upload(residual, rnd)
        merged = method.merge(uploads, share, rnd)
        yield Trained(number, loss, uploads, merged)
        residual = method.settle(residual, uploads, merged)
        weights = apply(weights, merged, step)
    torch.nn.utils.vector_to_parameters(initial, parameters)


def clients_of(uploads: Sparse) -> list[Sparse]:
    """The uploads of three clients."""
    return [Sparse(uploads.indices[client], uploads.values[client], uploads.dim) for client in range(3)]


def run_train(path: str) -> None:
    data, network = femnist(clients=CLIENTS), paper_cnn(62, 1, 28)
    kept: dict[str, np.ndarray] = {}
    for k, rounds in TRAINED.items():
        for number, loss, uploads, merged in train(data, network, k, rounds, 0.01):
            if number in KEPT:
                print(f"k = {k}, round {number}: loss {loss:.3f}", flush=True)
                for client, row in enumerate(clients_of(uploads)):
                    keep(kept, f"up {k} {number} {client}", row)
                keep(kept, f"down {k} {number} 0", merged)
    np.savez(path, **kept)


def run_digits() -> None:
    data = digits(clients=CLIENTS)
    network = model("small-cnn", data)
    dim = sum(weights.numel() for weights in network.parameters())
    groups = {}
    for k in (dim // 100, dim // 10):
        *_, last = train(data, network, k, 50, 0.3)
        groups[f"digits, D = {dim:,}, k = {k:,}, round {last.number}"] = clients_of(last.uploads)
    low_bits.show(groups)


def keep(kept: dict[str, np.ndarray], name: str, sparse: Sparse) -> None:
    kept[f"{name} indices"] = sparse.indices.numpy().astype(np.int32)
    kept[f"{name} values"] = sparse.values.numpy().astype(np.float32)


def load(path: str) -> Iterator[tuple[str, Sparse]]:
    arrays = np.load(path)
    for name in arrays.files:
        if name.endswith(" indices"):
            name = name.removesuffix(" indices")
            indices = torch.from_numpy(arrays[f"{name} indices"].astype(np.int64))
            yield name.rsplit(" ", 1)[0], Sparse(indices, torch.from_numpy(arrays[f"{name} values"]), DIM)


def run_real(path: str) -> None:
    groups: dict[str, list[Sparse]] = {}
    for name, sparse in load(path):
        groups.setdefault(name, []).append(sparse)
    rows = {}
    for name, messages in groups.items():
        direction, k, number = name.split()
        rows[f"{direction}, {int(k):,}, round {number}"] = mean([measure(sparse) for sparse in messages])
    show(rows)
    over = [excess(sparse) for name, messages in groups.items() if name.startswith("up 10000") for sparse in messages]
    print(f"Huffman above the entropy of its symbols, uploads of k = 10,000: {np.mean(over):.2%} of the message\n")
    low_bits.show({f"up, {k:,}, round {number}": groups[f"up {k} {number}"] for k, number in FEW_BITS})


def excess(sparse: Sparse) -> float:
    """How much of a message an ideal entropy coder of the same symbols would save."""
    seen: list[tuple[np.ndarray, Part]] = []
    real = huffman.plan

    def watched(symbols: np.ndarray, counts: np.ndarray) -> Part:
        seen.append((counts, real(symbols, counts)))
        return seen[-1][1]

    order = sparse.indices.argsort()
    indices, numbers = sparse.indices[order].numpy(), sparse.values[order].numpy()
    huffman.plan = watched
    try:
        parts = [sets._plan_gaps(indices, sparse.dim)]
        kind = number_type("float32")
        parts.append(values.plan(kind.split(numbers), kind))
    finally:
        huffman.plan = real
    saved = 0.0
    for counts, part in seen:
        used = counts[counts > 0]
        entropy = -(used * np.log2(used / used.sum())).sum() / 8
        saved += part.size - 1 - (len(counts) + 1) // 2 - entropy
    return saved / sum(part.size for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("random")
    commands.add_parser("digits")
    commands.add_parser("batch").add_argument("--device", type=torch.device, default=torch.device("cpu"))
    for name in ("train", "real"):
        commands.add_parser(name).add_argument("path")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "random":
        run_random()
    elif options.command == "digits":
        run_digits()
    elif options.command == "batch":
        low_bits.show_batch(options.device)
    elif options.command == "train":
        run_train(options.path)
    else:
        run_real(options.path)


if __name__ == "__main__":
    main()
