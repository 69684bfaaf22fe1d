"""One adaptive round of the simulator against one plain forward and backward pass over the same samples.

    python -m benchmarks.round                     20 clients on the CPU: also against the plain loop over the clients
    python -m benchmarks.round --device cuda       156 clients on one GPU
    python -m benchmarks.round --device cuda --model paper-cnn

Everything is measured in one process, interleaved, on the same model; the table gives medians and ratios. The
controller below proposes a given k with a probe at k/2 and learns like any other, so every part of an adaptive round
is there: gradients, residuals, top-k, fair merge, probe, settle, three losses, metrics. On a GPU a few rounds of each
kind are profiled after that, and for how long the device was busy is kept with the times.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import gradsift
from benchmarks import kernels
from benchmarks.common import about, write_json
from gradsift.control import Controller, Observation, Proposal
from gradsift.method import Method
from gradsift.models.paper_cnn import paper_cnn
from gradsift.simulation.engine import Engine
from gradsift.simulation.settings import Settings

QUEUED = 10
WARM_UP = 3
CLIENTS = {"cpu": 20, "cuda": 156}
PASS, LOOP, FEDAVG, SEND_ALL = (
    "plain batched pass",
    "plain loop over clients",
    "gradients only (FedAvg)",
    "send-all round",
)
Work = Callable[[], Any]


class Pinned(Controller[dict[str, float]]):
    """k as told, with a probe at k/2, every round."""

    name = "pinned"
    probes = True

    def __init__(self, k: int) -> None:
        self.k = k

    def init(self, dim: int, seed: int = 0) -> dict[str, float]:
        del dim, seed
        return {"seen": 0}

    def propose(self, state: dict[str, float], number: int) -> Proposal:
        del state
        return Proposal(number, float(self.k), max(1.0, self.k / 2))

    def update(self, state: dict[str, float], seen: Observation) -> dict[str, float]:
        del seen
        return {"seen": state["seen"] + 1}


def plain_cnn(seed: int = 0) -> nn.Module:
    """The paper's CNN without local response normalisation: what peers' benchmarks run."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1568, 256), nn.ReLU(), nn.Linear(256, 62)),
    )


def random_data(clients: int, each: int = 200, shape: tuple[int, ...] = (1, 28, 28)) -> gradsift.FederatedData:
    """FEMNIST's shape, or another; random pixels: what is in them does not change the time."""
    source = np.random.default_rng(0)
    x = source.random((clients * each, *shape), dtype=np.float32)
    y = source.integers(0, 62 if shape[0] == 1 else 10, clients * each)
    return gradsift.FederatedData.from_arrays(x, y, np.repeat(np.arange(clients), each), name="random")


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain-cnn": (plain_cnn, (1, 28, 28)),
    "paper-cnn": (lambda: paper_cnn(62, 1, 28), (1, 28, 28)),
    "cifar-cnn": (lambda: paper_cnn(10, 3, 32), (3, 32, 32)),
}


def passes(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> dict[str, Work]:
    """What a round is held against, on samples [n, b, ...]."""
    loss = nn.functional.cross_entropy
    all_x, all_y = xs.flatten(0, 1).contiguous(), ys.flatten().contiguous()

    def batched() -> None:
        model.zero_grad(set_to_none=True)
        loss(model(all_x), all_y).backward()  # type: ignore[no-untyped-call]

    def loop() -> None:
        total = None
        for x, y in zip(xs, ys, strict=True):
            model.zero_grad(set_to_none=True)
            loss(model(x), y).backward()  # type: ignore[no-untyped-call]
            gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
            total = gradient if total is None else total + gradient

    return {PASS: batched, LOOP: loop}


def timed(work: Work, cuda: bool, times: int) -> float:
    """Seconds each; on CUDA several are queued before waiting, as in a run, the plain pass and our round alike."""
    if cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        work()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / times


def measure(works: dict[str, Work], cuda: bool, repeats: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each, in turn; on CUDA also the most memory that each takes, in MiB, beside what is there before."""
    times: dict[str, list[float]] = {name: [] for name in works}
    at_once = {name: QUEUED if cuda and name != LOOP else 1 for name in works}  # the loop is long
    for name, work in works.items():
        for _ in range(WARM_UP):
            timed(work, cuda, at_once[name])
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(timed(work, cuda, at_once[name]))
    peaks: dict[str, float] = {}
    for name, work in works.items() if cuda else ():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        timed(work, cuda, at_once[name])
        peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return times, peaks


def show(record: dict[str, Any]) -> None:
    """The table, for a terminal."""
    times, peaks, profile = record["times"], record["peaks"], record["profile"]
    print(
        f"{record['machine']}; torch {record['torch']}; {record['model']}, D = {record['dim']},"
        f" {record['clients']} clients x {record['batch']} samples"
    )
    print(f"{'':28} {'median ms':>10} {'min':>9} {'x batched':>10} {'x loop':>8} {'busy ms':>8} {'peak MiB':>9}")
    median = {name: statistics.median(values) for name, values in times.items()}
    for name, middle in median.items():
        busy = profile[name]["busy_ms"] if name in profile else float("nan")
        print(
            f"{name:28} {1e3 * middle:10.2f} {1e3 * min(times[name]):9.2f} {middle / median[PASS]:10.2f}"
            f" {middle / median[LOOP]:8.2f} {busy:8.2f} {peaks.get(name, float('nan')):9.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, help=f"by default {CLIENTS['cpu']}, on a GPU {CLIENTS['cuda']}")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9, help="repeats")
    parser.add_argument("--model", choices=tuple(MODELS), default="plain-cnn")
    parser.add_argument("--k", type=int, nargs="+", help="by default 1,000, 10,000, D/2 and D")
    parser.add_argument("--profile", type=Path, help="write tables of the operators of each kind of round here")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = torch.device(given.device)
    cuda, clients = device.type == "cuda", given.clients or CLIENTS[device.type]
    make, shape = MODELS[given.model]
    model, data = make(), random_data(clients, shape=shape)
    dim = sum(p.numel() for p in model.parameters())

    def engine(sparsifier: str, controller: Controller[Any]) -> Engine:
        method, settings = Method.of(sparsifier=sparsifier, controller=controller), Settings(batch_size=given.batch)
        return Engine(model, nn.functional.cross_entropy, data, method, settings, device=device, dtype=torch.float32)

    ks = given.k or [1000, 10_000, dim // 2, dim]
    engines = {f"round, k = {k}": engine("fab-top-k", Pinned(k)) for k in ks}
    # FedAvg inside a period: each client takes its gradient at weights of its own, and nothing is sent.
    engines[FEDAVG] = engine("fedavg", gradsift.controller("fixed", k=1))
    engines[SEND_ALL] = engine("send-all", gradsift.controller("fixed", k=1))
    xs = data.x.view(clients, -1, *shape)[:, : given.batch].to(device)
    ys = data.y.view(clients, -1)[:, : given.batch].to(device)
    works = passes(make().to(device), xs, ys) | {name: made.begin for name, made in engines.items()}
    times, peaks = measure(works, cuda, given.rounds)

    profiles: dict[str, torch.profiler.profile] = {}
    if cuda or given.profile:
        kernels.profiled(works[PASS], int, cuda)  # the profiler's own start
        profiles[PASS] = kernels.profiled(works[PASS], int, cuda)
        profiles |= {name: kernels.profiled(made.begin, made.finish, cuda) for name, made in engines.items()}
    record = {
        **about("benchmarks.round", device),
        "repeats": given.rounds,
        "queued": QUEUED if cuda else 1,
        "model": given.model,
        "dim": dim,
        "clients": clients,
        "batch": given.batch,
        "times": times,
        "peaks": peaks,
        "profile": {name: kernels.summary(profile) for name, profile in profiles.items()} if cuda else {},
    }
    show(record)
    if given.json:
        write_json(given.json, record)
    if given.profile:
        key = "self_cuda_time_total" if cuda else "self_cpu_time_total"
        given.profile.parent.mkdir(parents=True, exist_ok=True)
        given.profile.write_text("\n".join(f"{name}\n{_table(profile, key)}" for name, profile in profiles.items()))


def _table(profile: torch.profiler.profile, key: str) -> str:
    return str(profile.key_averages().table(sort_by=key, row_limit=25, max_name_column_width=70))


if __name__ == "__main__":
    main()
